/* The card: sectors with checksums, two copies of what a step changes, commits, and a journal.
 *
 * A step reads what was committed and writes the other copy; what it changes row by row lies once,
 * and its old sectors go to the journal first. A commit is one sector: it says which copy counts,
 * after how many steps. Two sectors take turns at it, so that one of them is whole whenever power
 * goes. A sector's checksum knows its place and the step that wrote it, so a sector that was never
 * written, or written elsewhere, is as damaged as one whose bits have changed.
 */
#include "step.h"

#if POET_COUNTERS
#define COUNT(statement) statement
#else
#define COUNT(statement) ((void)0)
#endif

enum { WORDS = POET_SECTOR / 4, CHECK = WORDS - 1 };

/* What a commit says; the rest of its sector is 0, but for the checksum. */
struct commit {
    char magic[8];
    uint32_t version, generation, steps, side, seed, unused;
    double learning_rate;
    char fingerprint[32];
};

/* An entry of the journal: the sector before it belongs at `target`. */
struct entry {
    char magic[8];
    uint32_t generation, number, target;
};

/* Of the buffer: as it was read, known to be whole, or newer than the store. */
enum { RAW, WHOLE, DIRTY };

enum region { FIXED, OLD, FRESH, ROWS, PAGES };

static enum region region_of(const struct poet *ctx, uint32_t sector)
{
    const struct poet_network *net = &poet_network;
    if (sector - net->copy_at < 2 * net->copy_sectors) {
        int is_second = sector - net->copy_at >= net->copy_sectors;
        return is_second == (ctx->old != 0) ? OLD : FRESH;
    }
    if (sector - net->rows_at < net->row_sectors)
        return ROWS;
    return sector - net->pages_at < net->page_sectors ? PAGES : FIXED;
}

static uint32_t check_of(const struct poet *ctx, uint32_t sector)
{
    static const uint8_t is_stamped[] = {[FIXED] = 0, [OLD] = 1, [FRESH] = 2, [ROWS] = 0, [PAGES] = 2};
    uint32_t stamps[] = {0, ctx->saved_steps, ctx->stamp};
    uint32_t stamp = stamps[is_stamped[region_of(ctx, sector)]];
    uint32_t sum = (sector + 1u) * 0x9e3779b1u ^ (stamp + 1u) * 0x85ebca6bu;
    for (int i = 0; i < CHECK; i++) {
        sum ^= ctx->buffer[i];
        sum = (sum << 13 | sum >> 19) * 5u + 0xe6546b64u;
    }
    return sum;
}

/* ---- the store ---- */

static void watch(struct poet *ctx)
{
    if (ctx->io.watchdog != NULL)
        ctx->io.watchdog(ctx->io.user);
}

static void read_sector(struct poet *ctx, uint32_t sector)
{
    if (ctx->error != POET_OK)
        return;
    ctx->sector = sector;
    if (ctx->io.read(ctx->io.user, sector * POET_SECTOR, ctx->buffer, POET_SECTOR) != 0)
        ctx->error = POET_ERROR_READ;
    COUNT(ctx->counts.sectors_read++);
    watch(ctx);
}

static void write_sector(struct poet *ctx, uint32_t sector)
{
    if (ctx->error != POET_OK)
        return;
    ctx->sector = sector;
    if (ctx->io.write(ctx->io.user, sector * POET_SECTOR, ctx->buffer, POET_SECTOR) != 0)
        ctx->error = POET_ERROR_WRITE;
    COUNT(ctx->counts.sectors_written++);
    watch(ctx);
}

static void flush(struct poet *ctx)
{
    if (ctx->error == POET_OK && ctx->io.flush != NULL && ctx->io.flush(ctx->io.user) != 0)
        ctx->error = POET_ERROR_WRITE;
}

/* What is in the buffer alone goes to the store. */
static void settle(struct poet *ctx)
{
    if (ctx->state != DIRTY)
        return;
    ctx->state = WHOLE;
    ctx->buffer[CHECK] = check_of(ctx, ctx->sector);
    write_sector(ctx, ctx->sector);
}

/* ---- sectors that small tensors share ----
 *
 * Between two small tensors a step moves large ones. The sector that the small ones share waits in a
 * buffer of its own until another takes its turn, so that it is written once for all of them.
 */

static void release(struct poet *ctx)
{
    if (ctx->held == POET_NOWHERE)
        return;
    settle(ctx);
    poet_copy(ctx->buffer, poet_network.shared, POET_SECTOR);
    ctx->sector = ctx->held;
    ctx->state = DIRTY;
    ctx->held = POET_NOWHERE;
}

static void load(struct poet *ctx, uint32_t sector, int is_checked)
{
    if (sector == ctx->held)
        release(ctx);
    if (ctx->sector != sector) {
        settle(ctx);
        read_sector(ctx, sector);
        ctx->state = RAW;
    }
    if (!is_checked || ctx->state != RAW || ctx->error != POET_OK)
        return;
    ctx->state = WHOLE;
    if (ctx->buffer[CHECK] != check_of(ctx, sector))
        ctx->error = POET_ERROR_DAMAGED;
}

static void hold(struct poet *ctx, uint32_t sector)
{
    if (sector == ctx->held)
        return;
    release(ctx);
    load(ctx, sector, 0);
    if (ctx->error != POET_OK)
        return;
    poet_copy(poet_network.shared, ctx->buffer, POET_SECTOR);
    ctx->held = sector;
    ctx->sector = POET_NOWHERE;
    ctx->state = RAW;
}

/* ---- the journal ---- */

static void put_head(struct poet *ctx, const void *head, uint32_t count)
{
    for (int i = 0; i < WORDS; i++)
        ctx->buffer[i] = 0;
    poet_copy(ctx->buffer, head, count);
    ctx->buffer[CHECK] = poet_crc(ctx->buffer, POET_SECTOR - 4);
}

static int is_head(const struct poet *ctx, const char *magic)
{
    const uint8_t *bytes = (const uint8_t *)ctx->buffer;
    for (int i = 0; i < 8; i++)
        if (bytes[i] != (uint8_t)magic[i])
            return 0;
    return 1;
}

static int is_whole(const struct poet *ctx)
{
    return ctx->buffer[CHECK] == poet_crc(ctx->buffer, POET_SECTOR - 4);
}

/* The buffer has a sector as it was committed, which is about to change in its place. */
static void keep(struct poet *ctx)
{
    struct entry entry = {.magic = {'P', 'O', 'E', 'T', 'U', 'N', 'D', 'O'},
                          .generation = ctx->generation,
                          .number = ctx->journaled,
                          .target = ctx->sector};
    uint32_t at = poet_network.journal_at + 2 * ctx->journaled;
    if (ctx->journaled >= poet_network.journal_entries && ctx->error == POET_OK)
        ctx->error = POET_ERROR_WRITE;
    ctx->journaled++;
    write_sector(ctx, at);
    flush(ctx);
    put_head(ctx, &entry, sizeof entry);
    write_sector(ctx, at + 1);
    flush(ctx);
    read_sector(ctx, entry.target);
}

static int has_entry(struct poet *ctx, uint32_t number, uint32_t *target)
{
    struct entry entry;
    if (number >= poet_network.journal_entries)
        return 0;
    read_sector(ctx, poet_network.journal_at + 2 * number + 1);
    if (ctx->error != POET_OK || !is_head(ctx, "POETUNDO") || !is_whole(ctx))
        return 0;
    poet_copy(&entry, ctx->buffer, sizeof entry);
    *target = entry.target;
    return entry.generation == ctx->generation && entry.number == number &&
           entry.target - poet_network.rows_at < poet_network.row_sectors;
}

/* Of a sector that was kept twice the first is what was committed: it comes last. */
static void undo(struct poet *ctx)
{
    uint32_t count = 0, target = 0;
    while (has_entry(ctx, count, &target))
        count++;
    if (count == 0)
        return;
    for (uint32_t number = count; number-- > 0;) {
        if (!has_entry(ctx, number, &target))
            return;
        read_sector(ctx, poet_network.journal_at + 2 * number);
        write_sector(ctx, target);
    }
    poet_recommit(ctx); /* the entries are of an older generation now */
}

/* ---- commits ---- */

static void choose(struct poet *ctx, uint32_t side)
{
    uint32_t span = poet_network.copy_sectors * POET_HELD;
    ctx->old = side ? span : 0;
    ctx->fresh = side ? 0 : span;
}

static void commit(struct poet *ctx, uint32_t side)
{
    struct commit commit = {.magic = {'P', 'O', 'E', 'T', 'C', 'A', 'R', 'D'},
                            .version = POET_CARD_VERSION,
                            .generation = ctx->generation + 1,
                            .steps = ctx->steps,
                            .side = side,
                            .seed = ctx->seed,
                            .learning_rate = ctx->learning_rate};
    poet_copy(commit.fingerprint, poet_network.fingerprint, sizeof commit.fingerprint);
    release(ctx);
    settle(ctx);
    flush(ctx);
    put_head(ctx, &commit, sizeof commit);
    write_sector(ctx, commit.generation & 1);
    flush(ctx);
    if (ctx->error != POET_OK)
        return;
    ctx->generation++;
    ctx->saved_steps = ctx->steps;
    ctx->journaled = 0;
    choose(ctx, side);
}

enum poet_error poet_commit(struct poet *ctx)
{
    commit(ctx, poet_network.copy_sectors > 0 && ctx->old == 0);
    return ctx->error;
}

enum poet_error poet_recommit(struct poet *ctx)
{
    commit(ctx, ctx->old != 0);
    return ctx->error;
}

static enum poet_error read_commit(struct poet *ctx, uint32_t sector, struct commit *found)
{
    read_sector(ctx, sector);
    if (ctx->error != POET_OK)
        return ctx->error;
    if (!is_head(ctx, "POETCARD"))
        return POET_ERROR_NO_CARD;
    poet_copy(found, ctx->buffer, sizeof *found);
    if (!is_whole(ctx))
        return POET_ERROR_DAMAGED;
    if (found->version != POET_CARD_VERSION)
        return POET_ERROR_VERSION;
    for (uint32_t i = 0; i < sizeof found->fingerprint; i++)
        if (found->fingerprint[i] != poet_network.fingerprint[i])
            return POET_ERROR_OTHER_NETWORK;
    return POET_OK;
}

/* Of two commits the one that counts. */
static uint32_t newest_of(const enum poet_error *errors, const struct commit *found)
{
    if (errors[0] != POET_OK || errors[1] != POET_OK)
        return errors[0] != POET_OK;
    return found[1].generation - found[0].generation < 0x80000000u;
}

enum poet_error poet_open_card(struct poet *ctx)
{
    struct commit found[2];
    enum poet_error errors[2];
    ctx->sector = ctx->held = POET_NOWHERE;
    ctx->state = RAW;
    for (uint32_t i = 0; i < 2; i++)
        errors[i] = read_commit(ctx, i, &found[i]);
    if (ctx->error != POET_OK)
        return ctx->error;
    if (errors[0] != POET_OK && errors[1] != POET_OK) {
        /* Of two that cannot be used, the one that says more. */
        ctx->error = errors[0] == POET_ERROR_NO_CARD ? errors[1] : errors[0];
        return ctx->error;
    }
    uint32_t newest = newest_of(errors, found);
    ctx->generation = found[newest].generation;
    ctx->steps = ctx->saved_steps = found[newest].steps;
    ctx->stamp = ctx->steps + 1;
    ctx->seed = found[newest].seed;
    ctx->learning_rate = found[newest].learning_rate;
    ctx->journaled = 0;
    choose(ctx, found[newest].side & 1);
    undo(ctx);
    ctx->sector = POET_NOWHERE;
    return ctx->error;
}

/* ---- a new card ---- */

static void clear_sector(struct poet *ctx, uint32_t sector)
{
    for (int i = 0; i < WORDS; i++)
        ctx->buffer[i] = 0;
    write_sector(ctx, sector);
}

void poet_erase_card(struct poet *ctx)
{
    struct commit found[2];
    enum poet_error errors[2];
    for (uint32_t i = 0; i < 2; i++) {
        errors[i] = read_commit(ctx, i, &found[i]);
        if (errors[i] == POET_ERROR_OTHER_NETWORK || errors[i] == POET_ERROR_VERSION)
            errors[i] = POET_OK; /* its program may come back */
        ctx->error = POET_OK; /* nor need what was never written be readable */
    }
    uint32_t newest = newest_of(errors, found);
    clear_sector(ctx, 1 - newest); /* while the newest is there, it is what counts */
    flush(ctx);
    clear_sector(ctx, newest);
    flush(ctx);
    for (uint32_t i = 0; i < poet_network.journal_entries; i++)
        clear_sector(ctx, poet_network.journal_at + 2 * i + 1);
    ctx->sector = ctx->held = POET_NOWHERE;
    ctx->state = RAW;
    ctx->generation = UINT32_MAX; /* the commit of a new card is 0 */
    ctx->steps = ctx->saved_steps = ctx->stamp = ctx->journaled = 0;
    choose(ctx, 1);
}

void poet_seal(struct poet *ctx, uint32_t sector)
{
    ctx->buffer[CHECK] = check_of(ctx, sector);
    write_sector(ctx, sector);
}

/* ---- bytes ---- */

void poet_get(struct poet *ctx, void *to, uint32_t card, uint32_t count)
{
    uint8_t *out = to;
    if (card >= POET_FLASH_AT) {
        poet_copy(to, poet_flash + (card - POET_FLASH_AT), count);
        return;
    }
    while (count > 0 && ctx->error == POET_OK) {
        uint32_t at = card % POET_HELD, part = POET_HELD - at;
        if (part > count)
            part = count;
        load(ctx, card / POET_HELD, 1);
        if (ctx->error != POET_OK)
            return;
        poet_copy(out, (const uint8_t *)ctx->buffer + at, part);
        out += part;
        card += part;
        count -= part;
    }
}

static int is_shared(enum region region, uint32_t sector)
{
    uint32_t at = sector - poet_network.copy_at;
    return region == FRESH && at % poet_network.copy_sectors < poet_network.shared_sectors;
}

/* Whether nobody else's bytes are in a sector that a whole tensor begins or fills. */
static int is_alone(enum region region, uint32_t sector)
{
    return region == PAGES || (region == FRESH && !is_shared(region, sector));
}

void poet_put(struct poet *ctx, const void *from, uint32_t card, uint32_t count, int is_all)
{
    const uint8_t *in = from;
    while (count > 0 && ctx->error == POET_OK) {
        uint32_t at = card % POET_HELD, part = POET_HELD - at, sector = card / POET_HELD;
        if (part > count)
            part = count;
        enum region region = region_of(ctx, sector);
        uint32_t *to = ctx->buffer;
        if (poet_network.shared != NULL && is_shared(region, sector)) {
            hold(ctx, sector);
            to = poet_network.shared;
        } else if (region == ROWS) {
            load(ctx, sector, 1);
            if (ctx->state != DIRTY && ctx->error == POET_OK)
                keep(ctx);
        } else if (part < POET_HELD && !(is_all && at == 0 && is_alone(region, sector))) {
            load(ctx, sector, 0);
        } else if (ctx->sector != sector) {
            settle(ctx);
            ctx->sector = sector;
        }
        if (ctx->error != POET_OK)
            return;
        poet_copy((uint8_t *)to + at, in, part);
        if (to == ctx->buffer)
            ctx->state = DIRTY;
        in += part;
        card += part;
        count -= part;
    }
}
