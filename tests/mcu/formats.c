/* Makes new cards of stores in every condition, cuts the power at each write of that, in every way,
 * and looks at what is left: what was there before, no card, or the whole new one. Made again, it
 * must be the new one, and train as that does.
 *
 * words: the card, where to write a new card that was made of a trained one, and whether weights
 * come from flash.
 */
#include "dying_store.h"
#include "step.h"

enum store { ZEROS, ONES, NOISE, TRAINED, SAVED_AGAIN, OTHERS, STORES };
enum { OLD_STEPS = 3 };

static uint8_t *first, *base, *known, *after, *old, *next_old, *found;
static uint32_t bytes, is_from_flash, left_old, left_none, left_new;

/* ---- what a network begins with ---- */

/* Other numbers than those of the card that it is made of, so that nothing old goes unseen. */
static int give(void *user, uint32_t number, uint32_t at, void *to, uint32_t count)
{
    (void)user;
    for (uint32_t n = 0; n < number; n++)
        at += poet_weights[n].bytes;
    memcpy(to, known + at, count);
    return 0;
}

static enum poet_error format(void)
{
    const struct poet_beginning from = {
        .weight = is_from_flash ? NULL : give, .seed = 7, .learning_rate = 0.03};
    memset(&net, 0xa5, sizeof net);
    memset(poet_arena, 0xa5, POET_ARENA_BYTES);
    pending_count = 0;
    return poet_format(&net, &io, &from);
}

static void expect_new(void)
{
    double rate;
    expect(poet_get_learning_rate(&net, &rate));
    if (steps_done() != 0 || net.seed != 7 || rate != 0.03)
        fail("a new network is not at its beginning");
    weights(found);
    if (memcmp(found, known, bytes) != 0)
        fail("a new network does not begin as it was told");
}

static void expect_training(const uint8_t *wanted)
{
    expect(poet_train_stored(&net, 0, NULL));
    expect(poet_save(&net));
    start();
    weights(found);
    if (memcmp(found, wanted, bytes) != 0)
        fail("it does not train as it should");
}

static int give_none(void *user, uint32_t number, uint32_t at, void *to, uint32_t count)
{
    (void)user, (void)number, (void)at, (void)to, (void)count;
    return 1;
}

/* ---- stores ---- */

static void put_samples(void)
{
    size_t at = (size_t)poet_network.records_at / POET_HELD * POET_SECTOR;
    memcpy(base + at, first + at, card_bytes - at);
}

static void put_commits_of_another(void)
{
    for (uint8_t *sector = base; sector < base + 2 * POET_SECTOR; sector += POET_SECTOR) {
        sector[48] ^= 1;
        uint32_t sum = poet_crc(sector, POET_SECTOR - 4);
        memcpy(sector + POET_SECTOR - 4, &sum, 4);
    }
}

static void make_base(enum store kind, uint32_t steps)
{
    uint32_t chance = 1;
    cut_at = 0;
    memset(base, kind == ONES ? 0xff : 0, card_bytes);
    for (size_t i = 0; kind == NOISE && i < card_bytes; i++)
        base[i] = (uint8_t)((chance = chance * 1664525u + 1013904223u) >> 24);
    if (kind >= TRAINED) {
        memcpy(card, first, card_bytes);
        start();
        for (uint32_t step = 0; step < steps; step++)
            expect(poet_train_stored(&net, (step + 1) % 2, NULL));
        if (kind == SAVED_AGAIN) /* the newest commit is in the other sector */
            expect(poet_save(&net));
        weights(old);
        memcpy(base, card, card_bytes);
        expect(poet_train_stored(&net, 0, NULL));
        weights(next_old);
    }
    if (kind == OTHERS)
        put_commits_of_another();
    put_samples();
}

/* ---- cuts ---- */

static void look(enum store kind)
{
    memset(&net, 0xa5, sizeof net);
    memset(poet_arena, 0xa5, POET_ARENA_BYTES);
    cut_at = pending_count = 0;
    enum poet_error error = poet_init(&net, &io);
    int is_refused = error == POET_ERROR_NO_CARD || error == POET_ERROR_DAMAGED;
    if (kind == OTHERS && error == POET_ERROR_OTHER_NETWORK) {
        left_old++;
    } else if (is_refused) {
        left_none++;
    } else if (error != POET_OK) {
        fail(poet_error_text(error));
    } else if (steps_done() == 0) {
        left_new++;
        expect_new();
        expect_training(after);
    } else {
        left_old++;
        if (kind != TRAINED && kind != SAVED_AGAIN)
            fail("there was no network");
        weights(found);
        if (steps_done() != OLD_STEPS || memcmp(found, old, bytes) != 0)
            fail("the network that was there has changed");
        expect_training(next_old);
    }
}

static uint32_t cut_everywhere(enum store kind)
{
    make_base(kind, OLD_STEPS);
    memcpy(card, base, card_bytes);
    writes = 0;
    expect(format());
    expect_new();
    uint32_t all = writes;
    expect_training(after);
    for (uint32_t at = 1; at <= all; at++)
        for (int how = BEFORE; how < MORE_WAYS; how++) {
            memcpy(card, base, card_bytes);
            writes = 0, cut_at = at, way = (enum way)how;
            if (setjmp(power) == 0) {
                expect(format());
                fail("it was not cut");
            }
            look(kind);
            cut_at = 0;
            expect(format());
            expect_new();
            expect_training(after);
        }
    return all;
}

/* Of a store of zeros it is the card that `poet emit` writes, but for its order and samples. */
static void expect_the_image(void)
{
    struct poet_beginning from = {.weight = is_from_flash ? NULL : give, .learning_rate = 0.01};
    size_t own = (size_t)poet_network.records_at / POET_HELD * POET_SECTOR;
    if (own != POET_STORE_BYTES)
        fail("network.h says another size");
    memset(card, 0, card_bytes);
    expect(poet_format(&net, &io, &from));
    if (memcmp(card, first, 2 * POET_SECTOR) != 0 ||
        memcmp(card + 3 * POET_SECTOR, first + 3 * POET_SECTOR, own - 3 * POET_SECTOR) != 0)
        fail("it is not the card that poet emit writes");
}

/* Another network of the same kind than the card's: what is old must not go for new. */
static void change_known(void)
{
    uint8_t *at = known;
    for (uint32_t n = 0; n < POET_WEIGHTS; at += poet_weights[n++].bytes) {
        const char *name = poet_weights[n].name, *end = strrchr(name, '.');
        if (poet_weights[n].card >= POET_FLASH_AT || poet_weights[n].is_state || end == NULL)
            continue;
        if (strcmp(end, ".weight") == 0 || strcmp(end, ".bias") == 0)
            for (uint32_t i = 0; i < poet_weights[n].bytes; i += 4)
                at[i] ^= 0x11;
    }
}

static void expect_refusals(void)
{
    struct poet_beginning from = {.weight = NULL, .learning_rate = -1.0};
    if (poet_format(&net, &io, &from) != POET_ERROR_ARGUMENT ||
        poet_format(&net, &io, NULL) != POET_ERROR_ARGUMENT ||
        poet_format(&net, NULL, &from) != POET_ERROR_ARGUMENT ||
        poet_format(NULL, &io, &from) != POET_ERROR_ARGUMENT)
        fail("nonsense goes for a new card");
    from.learning_rate = 0.01;
    memcpy(card, first, card_bytes);
    if (!is_from_flash && poet_format(&net, &io, &from) != POET_ERROR_NO_WEIGHTS)
        fail("nobody gave weights");
    if (!is_from_flash && memcmp(card, first, card_bytes) != 0)
        fail("what cannot be formatted was written to");
    from.weight = give_none;
    if (poet_format(&net, &io, &from) != POET_ERROR_NO_WEIGHTS ||
        poet_train_stored(&net, 0, NULL) != POET_ERROR_NOT_READY)
        fail("weights that were not given go for weights");
}

static void load(const char *name)
{
    FILE *file = fopen(name, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        exit(2);
    card_bytes = (size_t)ftell(file);
    rewind(file);
    first = room(card_bytes);
    if (fread(first, 1, card_bytes, file) != card_bytes)
        exit(2);
    fclose(file);
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    load(words[1]);
    is_from_flash = words[3][0] == '1';
    bytes = weight_bytes();
    card = room(card_bytes), base = room(card_bytes);
    pending = room((size_t)MOST_PENDING * POET_SECTOR);
    known = room(bytes), after = room(bytes), old = room(bytes), next_old = room(bytes);
    found = room(bytes);
    memcpy(card, first, card_bytes);
    start();
    weights(known);
    expect_the_image();
    expect_refusals();
    if (!is_from_flash)
        change_known();
    memcpy(card, first, card_bytes);
    expect(format());
    expect(poet_train_stored(&net, 0, NULL));
    weights(after);
    uint32_t all = 0;
    for (int kind = ZEROS; kind < STORES; kind++)
        all = cut_everywhere((enum store)kind);
    make_base(TRAINED, 1); /* its journal is of the generation of a new card's first step */
    memcpy(card, base, card_bytes);
    expect(format());
    FILE *file = fopen(words[2], "wb");
    if (file == NULL || fwrite(card, 1, card_bytes, file) != card_bytes || fclose(file) != 0)
        return 2;
    printf("writes %u old %u none %u new %u\n", (unsigned)all, (unsigned)left_old,
           (unsigned)left_none, (unsigned)left_new);
    return 0;
}
