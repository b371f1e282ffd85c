/* The library around the step: opens the card, hands samples in, answers, saves. */
#include <stddef.h>

#include "step.h"

#if defined(__GNUC__)
typedef uint32_t __attribute__((may_alias)) word;
#endif

void poet_copy(void *to, const void *from, uint32_t count)
{
    uint8_t *out = to;
    const uint8_t *in = from;
#if defined(__GNUC__)
    if ((((uintptr_t)to | (uintptr_t)from) & 3) == 0)
        for (; count >= 4; count -= 4, out += 4, in += 4)
            *(word *)(void *)out = *(const word *)(const void *)in;
#endif
    while (count-- > 0)
        *out++ = *in++;
}

uint32_t poet_crc(const void *bytes, uint32_t count)
{
    const uint8_t *in = bytes;
    uint32_t sum = 0xffffffffu;
    while (count-- > 0) {
        sum ^= *in++;
        for (int bit = 0; bit < 8; bit++)
            sum = (sum >> 1) ^ (0xedb88320u & (0u - (sum & 1)));
    }
    return ~sum;
}

/* ---- ops ---- */

void poet_log_number(struct poet *ctx, uint64_t number)
{
    char digits[21];
    int at = 20;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + (int)(number % 10));
        number /= 10;
    } while (number != 0);
    ctx->io.log(ctx->io.user, digits + at);
}

#ifdef POET_PROFILE
void poet_op_begins(struct poet *ctx, uint32_t op)
{
    (void)op;
    if (ctx->io.clock != NULL)
        ctx->began = ctx->io.clock(ctx->io.user);
}

static void report(struct poet *ctx, uint32_t op)
{
    if (ctx->io.clock == NULL || ctx->io.log == NULL)
        return;
    uint64_t took = ctx->io.clock(ctx->io.user) - ctx->began;
    ctx->io.log(ctx->io.user, "op ");
    poet_log_number(ctx, op);
    ctx->io.log(ctx->io.user, " ticks ");
    poet_log_number(ctx, took);
    ctx->io.log(ctx->io.user, "\n");
}
#else
#define report(ctx, op) ((void)(op))
#endif

enum poet_error poet_op_ends(struct poet *ctx, uint32_t op)
{
    report(ctx, op);
    if (ctx->error == POET_OK)
        ctx->error = poet_failure();
    if (ctx->io.watchdog != NULL)
        ctx->io.watchdog(ctx->io.user);
    return ctx->error;
}

/* ---- the card ---- */

enum poet_error poet_load(struct poet *ctx)
{
    if (ctx == NULL)
        return POET_ERROR_ARGUMENT;
    ctx->is_ready = 0;
    ctx->error = POET_OK;
    poet_forget_failures();
    if (poet_open_card(ctx) != POET_OK)
        return ctx->error;
    for (uint32_t i = 0; i < poet_network.resident_count; i++) {
        const struct poet_slot *slot = &poet_network.residents[i];
        uint32_t card = (slot->is_twin ? ctx->old : 0) + slot->card;
        poet_get(ctx, poet_arena + slot->arena, card, slot->bytes);
    }
    ctx->is_ready = ctx->error == POET_OK;
    return ctx->error;
}

enum poet_error poet_init(struct poet *ctx, const struct poet_io *io)
{
    if (ctx == NULL || io == NULL || io->read == NULL || io->write == NULL)
        return POET_ERROR_ARGUMENT;
    ctx->io = *io;
    ctx->save_every = poet_network.save_every;
    return poet_load(ctx);
}

static enum poet_error ready(const struct poet *ctx)
{
    if (ctx == NULL)
        return POET_ERROR_ARGUMENT;
    return ctx->is_ready ? POET_OK : POET_ERROR_NOT_READY;
}

/* After an error in the middle of something the network is no longer whole. */
static enum poet_error ended(struct poet *ctx)
{
    if (ctx->error != POET_OK)
        ctx->is_ready = 0;
    return ctx->error;
}

static void save(struct poet *ctx)
{
    for (uint32_t i = 0; i < poet_network.resident_count; i++) {
        const struct poet_slot *slot = &poet_network.residents[i];
        if (slot->is_twin)
            poet_put(ctx, poet_arena + slot->arena, ctx->fresh + slot->card, slot->bytes, 1);
    }
    if (ctx->error == POET_OK)
        poet_commit(ctx);
}

enum poet_error poet_save(struct poet *ctx)
{
    enum poet_error error = ready(ctx);
    if (error != POET_OK)
        return error;
    if (poet_network.commits && ctx->saved_steps == ctx->steps) {
        poet_recommit(ctx); /* what the last step wrote is there; the learning rate may be new */
        return ended(ctx);
    }
    ctx->stamp = ctx->steps;
    save(ctx);
    return ended(ctx);
}

enum poet_error poet_set_save_every(struct poet *ctx, uint32_t steps)
{
    enum poet_error error = ready(ctx);
    if (error == POET_OK)
        ctx->save_every = steps;
    return error;
}

/* ---- steps ---- */

static void begin_counting(struct poet *ctx)
{
    static const struct poet_counts none = {0};
    ctx->counts = none;
    ctx->counts.live_bytes = ctx->counts.peak_bytes = poet_network.start_bytes;
    ctx->stamp = ctx->steps + 1;
}

static enum poet_error step(struct poet *ctx, float *loss)
{
    const struct poet_network *net = &poet_network;
    int64_t number = (int64_t)ctx->steps + 1;
    if (net->rate_at != POET_NOWHERE)
        poet_copy(poet_arena + net->rate_at, &ctx->learning_rate, sizeof ctx->learning_rate);
    if (net->count_at != POET_NOWHERE)
        poet_copy(poet_arena + net->count_at, &number, sizeof number);
    if (ctx->error == POET_OK)
        poet_run_step(ctx);
    if (ctx->error == POET_OK) {
        ctx->steps++;
        if (net->commits || (ctx->save_every > 0 && ctx->steps % ctx->save_every == 0))
            save(ctx);
    }
    if (ctx->error == POET_OK && loss != NULL) {
        *loss = 0.0f;
        if (net->loss_at != POET_NOWHERE)
            poet_copy(loss, poet_arena + net->loss_at, sizeof *loss);
    }
    return ended(ctx);
}

/* Where a batch that comes from RAM is put: the arena, or its record on the card. */
static void hand_in(struct poet *ctx, const void *const *batch, int is_inference)
{
    for (uint32_t i = 0; i < poet_network.input_count; i++) {
        const struct poet_input *input = &poet_network.inputs[i];
        if (is_inference && !input->is_inferred_from)
            continue;
        if (input->arena != POET_NOWHERE)
            poet_copy(poet_arena + input->arena, batch[i], input->bytes);
        else
            poet_put(ctx, batch[i], ctx->record + input->record, input->bytes, 1);
    }
}

static int is_complete(const void *const *batch, int is_inference)
{
    for (uint32_t i = 0; i < poet_network.input_count; i++)
        if (batch[i] == NULL && !(is_inference && !poet_network.inputs[i].is_inferred_from))
            return 0;
    return 1;
}

enum poet_error poet_train_step(struct poet *ctx, const void *const *batch, float *loss)
{
    enum poet_error error = ready(ctx);
    if (error != POET_OK)
        return error;
    if (batch == NULL || !is_complete(batch, 0))
        return POET_ERROR_ARGUMENT;
    begin_counting(ctx);
    ctx->record = poet_network.batch_at;
    hand_in(ctx, batch, 0);
    return step(ctx, loss);
}

enum poet_error poet_train_next(struct poet *ctx, float *loss)
{
    enum poet_error error = ready(ctx);
    if (error != POET_OK)
        return error;
    if (ctx->io.sample == NULL)
        return POET_ERROR_ARGUMENT;
    begin_counting(ctx);
    ctx->record = poet_network.batch_at;
    for (uint32_t i = 0; i < poet_network.input_count; i++) {
        const struct poet_input *input = &poet_network.inputs[i];
        uint8_t some[64];
        uint32_t part = input->arena != POET_NOWHERE ? input->bytes : sizeof some;
        for (uint32_t at = 0; at < input->bytes; at += part) {
            void *to = input->arena != POET_NOWHERE ? poet_arena + input->arena : some;
            if (part > input->bytes - at)
                part = input->bytes - at;
            if (ctx->io.sample(ctx->io.user, ctx->steps, i, at, to, part) != 0)
                return POET_ERROR_NO_SAMPLE;
            if (input->arena == POET_NOWHERE)
                poet_put(ctx, some, ctx->record + input->record + at, part, 0);
        }
    }
    return step(ctx, loss);
}

enum poet_error poet_train_stored(struct poet *ctx, uint32_t number, float *loss)
{
    enum poet_error error = ready(ctx);
    if (error != POET_OK)
        return error;
    begin_counting(ctx);
    ctx->record = poet_network.records_at + number * poet_network.record_bytes;
    for (uint32_t i = 0; i < poet_network.input_count; i++) {
        const struct poet_input *input = &poet_network.inputs[i];
        if (input->arena != POET_NOWHERE)
            poet_get(ctx, poet_arena + input->arena, ctx->record + input->record, input->bytes);
    }
    return step(ctx, loss);
}

enum poet_error poet_infer(struct poet *ctx, const void *const *inputs, void *const *outputs)
{
    enum poet_error error = ready(ctx);
    if (error != POET_OK)
        return error;
    if (inputs == NULL || outputs == NULL || !is_complete(inputs, 1))
        return POET_ERROR_ARGUMENT;
    begin_counting(ctx);
    ctx->record = poet_network.batch_at;
    hand_in(ctx, inputs, 1);
    error = poet_run_inference(ctx, outputs);
    if (error == POET_ERROR_INDEX || error == POET_ERROR_CHECK) {
        ctx->error = POET_OK; /* nothing of the network was changed */
        poet_forget_failures();
    }
    return error;
}

/* ---- numbers and weights ---- */

enum poet_error poet_get_steps(const struct poet *ctx, uint32_t *steps)
{
    if (steps == NULL)
        return POET_ERROR_ARGUMENT;
    enum poet_error error = ready(ctx);
    *steps = error == POET_OK ? ctx->steps : 0;
    return error;
}

enum poet_error poet_set_learning_rate(struct poet *ctx, double learning_rate)
{
    enum poet_error error = ready(ctx);
    if (error != POET_OK)
        return error;
    if (!(learning_rate >= 0.0 && learning_rate <= 1e300))
        return POET_ERROR_ARGUMENT;
    ctx->learning_rate = learning_rate;
    return POET_OK;
}

enum poet_error poet_get_learning_rate(const struct poet *ctx, double *learning_rate)
{
    if (learning_rate == NULL)
        return POET_ERROR_ARGUMENT;
    enum poet_error error = ready(ctx);
    *learning_rate = error == POET_OK ? ctx->learning_rate : 0.0;
    return error;
}

enum poet_error poet_get_weights(struct poet *ctx, uint32_t number, uint32_t first, void *to,
                                 uint32_t count)
{
    enum poet_error error = ready(ctx);
    if (error != POET_OK)
        return error;
    if (to == NULL || number >= poet_network.weight_count)
        return POET_ERROR_ARGUMENT;
    const struct poet_weights *weights = &poet_weights[number];
    if (first > weights->bytes || count > weights->bytes - first)
        return POET_ERROR_ARGUMENT;
    if (weights->arena != POET_NOWHERE)
        poet_copy(to, poet_arena + weights->arena + first, count);
    else
        poet_get(ctx, to, (weights->is_twin ? ctx->old : 0) + weights->card + first, count);
    return ended(ctx);
}

const char *poet_error_text(enum poet_error error)
{
    static const char *const texts[POET_ERRORS] = {
        [POET_OK] = "all is well",
        [POET_ERROR_ARGUMENT] = "an argument is missing or out of range",
        [POET_ERROR_NOT_READY] = "the network is not loaded",
        [POET_ERROR_READ] = "the card cannot be read",
        [POET_ERROR_WRITE] = "the card cannot be written",
        [POET_ERROR_NO_CARD] = "this is not a card of POET",
        [POET_ERROR_VERSION] = "the card is of another version",
        [POET_ERROR_DAMAGED] = "the card is damaged",
        [POET_ERROR_OTHER_NETWORK] = "the card is of another network",
        [POET_ERROR_INDEX] = "the data has an index or a label that the network does not know",
        [POET_ERROR_NO_SAMPLE] = "there is no sample",
        [POET_ERROR_NO_INFERENCE] = "this network has no inference",
        [POET_ERROR_CHECK] = "a check in the model or its loss fails for this batch",
        [POET_ERROR_NO_WEIGHTS] = "what a weight begins with is not known",
    };
    unsigned number = (unsigned)error;
    return number < POET_ERRORS ? texts[number] : "no error code of POET";
}
