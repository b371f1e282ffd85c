/* Transfers between RAM and the card, and what they add up to. */
#include "step.h"

#if POET_COUNTERS
#define COUNT(statement) statement
#else
#define COUNT(statement) ((void)0)
#endif

/* Built with -DPOET_TRACE, every transfer of a tile is said: where on the card, and how many bytes. */
#ifdef POET_TRACE
static void trace(struct poet *ctx, const char *verb, uint32_t card, uint32_t count)
{
    if (ctx->io.log == NULL)
        return;
    ctx->io.log(ctx->io.user, verb);
    poet_log_number(ctx, card);
    ctx->io.log(ctx->io.user, " ");
    poet_log_number(ctx, count);
    ctx->io.log(ctx->io.user, "\n");
}
#else
#define trace(ctx, verb, card, count) ((void)0)
#endif

void poet_page_in(struct poet *ctx, void *to, uint32_t card, uint32_t count)
{
    poet_take(ctx, count);
    poet_get(ctx, to, card, count);
    COUNT(ctx->counts.page_ins++);
    COUNT(ctx->counts.page_in_bytes += count);
}

void poet_page_out(struct poet *ctx, const void *from, uint32_t card, uint32_t count)
{
    poet_put(ctx, from, card, count, 1);
    COUNT(ctx->counts.page_outs++);
    COUNT(ctx->counts.page_out_bytes += count);
}

/* Built with -DPOET_PROFILE, what transfers take is not the op's: its clock stands still. */
#ifdef POET_PROFILE
static uint64_t ticks(const struct poet *ctx)
{
    return ctx->io.clock != NULL ? ctx->io.clock(ctx->io.user) : 0;
}
#define PAUSE(ctx) uint64_t paused = ticks(ctx)
#define RESUME(ctx) ctx->began += ticks(ctx) - paused
#else
#define PAUSE(ctx) ((void)0)
#define RESUME(ctx) ((void)0)
#endif

void poet_stream_in(struct poet *ctx, void *to, uint32_t card, uint32_t count)
{
    PAUSE(ctx);
    poet_get(ctx, to, card, count);
    RESUME(ctx);
    trace(ctx, "reads ", card, count);
    COUNT(ctx->counts.streamed_in_bytes += count);
}

void poet_stream_out(struct poet *ctx, const void *from, uint32_t card, uint32_t count)
{
    PAUSE(ctx);
    poet_put(ctx, from, card, count, 0);
    RESUME(ctx);
    trace(ctx, "writes ", card, count);
    COUNT(ctx->counts.streamed_out_bytes += count);
}

#define FOR_RUNS(s)                                                                                \
    for (uint32_t i = 0; i < (s)->count[0]; i++)                                                   \
        for (uint32_t j = 0; j < (s)->count[1]; j++)                                               \
            for (uint32_t k = 0; k < (s)->count[2]; k++)

#define RUN(s) (i * (s)->step[0] + j * (s)->step[1] + k * (s)->step[2])

void poet_stream_in_runs(struct poet *ctx, void *to, uint32_t card, const struct poet_runs *shape)
{
    uint8_t *at = to;
    FOR_RUNS(shape)
    {
        poet_stream_in(ctx, at, card + RUN(shape), shape->bytes);
        at += shape->bytes;
    }
}

void poet_stream_out_runs(struct poet *ctx, const void *from, uint32_t card,
                          const struct poet_runs *shape)
{
    const uint8_t *at = from;
    FOR_RUNS(shape)
    {
        poet_stream_out(ctx, at, card + RUN(shape), shape->bytes);
        at += shape->bytes;
    }
}

#if POET_COUNTERS
void poet_take(struct poet *ctx, uint32_t count)
{
    ctx->counts.live_bytes += count;
    if (ctx->counts.live_bytes > ctx->counts.peak_bytes)
        ctx->counts.peak_bytes = ctx->counts.live_bytes;
}

void poet_give(struct poet *ctx, uint32_t count)
{
    ctx->counts.live_bytes -= count;
}
#endif
