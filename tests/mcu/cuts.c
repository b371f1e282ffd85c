/* Cuts the power at every write of some steps, in every way, and takes the network up again.
 *
 * The store is memory. A write can be cut before it, in the middle of the sector, or after it; or
 * with all that was not flushed written in part, as a store with a cache of its own may leave it.
 * What is in RAM is then overwritten, and the network must be as it was after a step that had been
 * done: bit for bit, no step that was safe lost, and trained on, it must end as if nothing had
 * happened. Where taking it up writes, that is cut as well, write by write.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "network.h"
#include "poet.h"

enum way { BEFORE, TORN, AFTER, UNFLUSHED, WAYS };
enum { STEPS = 3, MOST_PENDING = 4096 };

static struct poet net;
static uint8_t *card, *first, *safe, *pending, *known, *found;
static size_t card_bytes;
static uint32_t bytes, samples, safe_steps, cuts_while_taken_up;
static uint32_t writes, cut_at, pending_count, pendings[MOST_PENDING];
static enum way way;
static jmp_buf power;

/* ---- a store that dies ---- */

static int read_card(void *user, uint32_t offset, void *to, uint32_t count)
{
    (void)user;
    if (offset % POET_SECTOR || count % POET_SECTOR || offset + count > card_bytes)
        return 1;
    memcpy(to, card + offset, count);
    return 0;
}

static int flush_card(void *user)
{
    (void)user;
    pending_count = 0;
    return 0;
}

/* Of each sector that was not flushed, chance decides whether it is there. */
static void lose_some(void)
{
    uint32_t chance = cut_at * 2654435761u;
    for (uint32_t i = 0; i < pending_count; i++) {
        chance = chance * 1664525u + 1013904223u;
        if (chance >> 31)
            memcpy(card + pendings[i], pending + (size_t)i * POET_SECTOR, POET_SECTOR);
    }
}

static int write_card(void *user, uint32_t offset, const void *from, uint32_t count)
{
    (void)user;
    if (offset % POET_SECTOR || count != POET_SECTOR || offset + count > card_bytes)
        return 1;
    if (pending_count == MOST_PENDING)
        return 1;
    memcpy(pending + (size_t)pending_count * POET_SECTOR, card + offset, POET_SECTOR);
    pendings[pending_count++] = offset;
    writes++;
    if (writes != cut_at) {
        memcpy(card + offset, from, count);
        return 0;
    }
    if (way == TORN) {
        memcpy(card + offset, from, 200);
        memset(card + offset + 200, 0xa5, 56);
    } else if (way != BEFORE) {
        memcpy(card + offset, from, count);
    }
    if (way == UNFLUSHED)
        lose_some(); /* what was there before comes back for some of them */
    longjmp(power, 1);
}

static const struct poet_io io = {.read = read_card, .write = write_card, .flush = flush_card};

/* ---- a network, and what it should be ---- */

static uint32_t weight_bytes(void)
{
    uint32_t sum = 0;
    for (uint32_t n = 0; n < POET_WEIGHTS; n++)
        sum += poet_weights[n].bytes;
    return sum;
}

static void fail(const char *what)
{
    printf("cut %u, way %d: %s\n", (unsigned)cut_at, (int)way, what);
    exit(1);
}

static void expect(enum poet_error error)
{
    if (error != POET_OK)
        fail(poet_error_text(error));
}

static void weights(uint8_t *to)
{
    for (uint32_t n = 0; n < POET_WEIGHTS; n++) {
        expect(poet_get_weights(&net, n, 0, to, poet_weights[n].bytes));
        to += poet_weights[n].bytes;
    }
}

static uint32_t steps_done(void)
{
    uint32_t steps;
    expect(poet_get_steps(&net, &steps));
    return steps;
}

static void start(void)
{
    memset(&net, 0xa5, sizeof net);
    memset(poet_arena, 0xa5, POET_ARENA_BYTES);
    pending_count = 0;
    expect(poet_init(&net, &io));
}

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

static uint8_t *room(size_t count)
{
    uint8_t *made = malloc(count);
    if (made == NULL)
        exit(2);
    return made;
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
