/* Cuts the power at every write of some steps, in every way, and takes the network up again.
 *
 * What is in RAM is then overwritten, and the network must be as it was after a step that had been
 * done: bit for bit, no step that was safe lost, and trained on, it must end as if nothing had
 * happened. Where taking it up writes, that is cut as well, write by write.
 */
#include "dying_store.h"

enum { STEPS = 3 };

static uint8_t *first, *safe, *known, *found;
static uint32_t bytes, samples, safe_steps, cuts_while_taken_up;

static void train(void)
{
    while (steps_done() < STEPS) {
        expect(poet_train_stored(&net, steps_done() % samples, NULL));
        safe_steps = net.saved_steps;
    }
    expect(poet_save(&net));
    safe_steps = STEPS;
}

static void check_and_finish(uint32_t least)
{
    uint32_t here = steps_done();
    cut_at = 0;
    if (here < least || here > STEPS)
        fail("a step that was safe is lost");
    weights(found);
    if (memcmp(found, known + (size_t)here * bytes, bytes) != 0)
        fail("the network is not what it was after any step");
    train();
    weights(found);
    if (memcmp(found, known + (size_t)STEPS * bytes, bytes) != 0)
        fail("it does not end as if nothing had happened");
}

/* Cuts the power at a write of the steps, takes the network up, and cuts that, too. */
static void cut(uint32_t at, enum way how)
{
    static volatile uint32_t second, least;
    memcpy(card, first, card_bytes);
    writes = 0, cut_at = at, way = how, safe_steps = 0;
    if (setjmp(power) == 0) {
        start();
        train();
        fail("it was not cut");
    }
    least = safe_steps;
    memcpy(safe, card, card_bytes);
    for (second = 1;; second++) {
        memcpy(card, safe, card_bytes);
        writes = 0, cut_at = second;
        if (setjmp(power) == 0) {
            start();
            break; /* to take it up takes fewer writes than that */
        }
        cut_at = 0;
        cuts_while_taken_up++;
        start();
        check_and_finish(least);
    }
    check_and_finish(least);
}

int main(int count, char **words)
{
    FILE *file = count == 3 ? fopen(words[1], "rb") : NULL;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        return 2;
    samples = (uint32_t)atoi(words[2]);
    card_bytes = (size_t)ftell(file);
    rewind(file);
    bytes = weight_bytes();
    card = room(card_bytes), first = room(card_bytes), safe = room(card_bytes);
    pending = room((size_t)MOST_PENDING * POET_SECTOR);
    known = room((size_t)(STEPS + 1) * bytes), found = room(bytes);
    if (fread(first, 1, card_bytes, file) != card_bytes)
        return 2;
    fclose(file);

    memcpy(card, first, card_bytes);
    start();
    weights(known);
    for (uint32_t step = 1; step <= STEPS; step++) {
        expect(poet_train_stored(&net, (step - 1) % samples, NULL));
        weights(known + (size_t)step * bytes);
    }
    expect(poet_save(&net));
    uint32_t all = writes, cuts = 0;
    for (uint32_t at = 1; at <= all; at++)
        for (int how = BEFORE; how < WAYS; how++, cuts++)
            cut(at, (enum way)how);
    printf("writes %u cuts %u while taken up %u\n", (unsigned)all, (unsigned)cuts,
           (unsigned)cuts_while_taken_up);
    return 0;
}
