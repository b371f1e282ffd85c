/* A new card, written by the device itself.
 *
 * First the commits of whatever was there go, the older one before the newer; then each sector of
 * the new network is written, once; then its commit. So a power cut leaves the network that was
 * there as it was, or no card, or the new one. What a step writes before it reads it (the second
 * copy, pages) is left as it is.
 */
#include "step.h"

/* Whether the program is asked for it, and not the library's own tables. */
static int is_asked_for(const struct poet_beginning *from, const struct poet_weights *weights)
{
    return from->weight != NULL && !(weights->is_state && weights->first == POET_FILLED);
}

static void fill(void *to, uint32_t word, uint32_t first, uint32_t count)
{
    uint8_t *out = to;
    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint8_t)(word >> 8 * ((first + i) % 4));
}

/* Some bytes of a weight as it begins. */
static void begin_with(struct poet *ctx, const struct poet_beginning *from, uint32_t number,
                       uint32_t first, void *to, uint32_t count)
{
    const struct poet_weights *weights = &poet_weights[number];
    if (ctx->error != POET_OK)
        return;
    if (is_asked_for(from, weights)) {
        if (from->weight(ctx->io.user, number, first, to, count) != 0)
            ctx->error = POET_ERROR_NO_WEIGHTS;
    } else if (weights->first == POET_FILLED) {
        fill(to, weights->filled_with, first, count);
    } else {
        poet_copy(to, poet_flash + weights->first + first, count);
    }
}

static void put_sector(struct poet *ctx, const struct poet_beginning *from, uint32_t sector)
{
    uint32_t begin = sector * POET_HELD;
    for (uint32_t i = 0; i < POET_SECTOR / 4; i++)
        ctx->buffer[i] = 0;
    for (uint32_t n = 0; n < poet_network.weight_count; n++) {
        const struct poet_weights *weights = &poet_weights[n];
        if (weights->card >= POET_FLASH_AT || weights->card >= begin + POET_HELD ||
            weights->card + weights->bytes <= begin)
            continue;
        uint32_t first = weights->card > begin ? 0 : begin - weights->card;
        uint32_t at = weights->card + first - begin, count = POET_HELD - at;
        if (count > weights->bytes - first)
            count = weights->bytes - first;
        begin_with(ctx, from, n, first, (uint8_t *)ctx->buffer + at, count);
    }
    poet_seal(ctx, sector);
}

static int can_begin(const struct poet_beginning *from)
{
    for (uint32_t n = 0; n < poet_network.weight_count; n++)
        if (poet_weights[n].first == POET_NOWHERE && !is_asked_for(from, &poet_weights[n]))
            return 0;
    return 1;
}

enum poet_error poet_format(struct poet *ctx, const struct poet_io *io,
                            const struct poet_beginning *from)
{
    const struct poet_network *net = &poet_network;
    if (ctx == NULL || io == NULL || io->read == NULL || io->write == NULL || from == NULL)
        return POET_ERROR_ARGUMENT;
    if (!(from->learning_rate >= 0.0 && from->learning_rate <= 1e300))
        return POET_ERROR_ARGUMENT;
    if (!can_begin(from))
        return POET_ERROR_NO_WEIGHTS;
    ctx->io = *io;
    ctx->is_ready = 0;
    ctx->error = POET_OK;
    ctx->seed = from->seed;
    ctx->learning_rate = from->learning_rate;
    poet_erase_card(ctx);
    for (uint32_t i = 0; i < net->copy_sectors; i++)
        put_sector(ctx, from, net->copy_at + i);
    for (uint32_t sector = net->rows_at; sector < net->pages_at; sector++)
        put_sector(ctx, from, sector);
    if (net->batch_at != POET_NOWHERE)
        for (uint32_t at = 0; at < net->record_bytes; at += POET_HELD)
            put_sector(ctx, from, (net->batch_at + at) / POET_HELD);
    if (ctx->error == POET_OK)
        poet_commit(ctx);
    return ctx->error == POET_OK ? poet_init(ctx, io) : ctx->error;
}
