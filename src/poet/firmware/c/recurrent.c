/* A layer of LSTM cells over all moments: the four gates of a moment lie side by side, as weights
 * have them: what to let in, what to keep, what is new, what to let out. */
#include "layers.h"

enum { BLOCK = 64 }; /* products that are summed at a time */

/* What is kept from the forward pass, and room for the gradients of one moment behind it. */
struct kept {
    float *gates, *cells, *room;
};

static struct kept kept_in(void *memory, const struct poet_lstm *s)
{
    struct kept kept = {memory, NULL, NULL};
    kept.cells = kept.gates + s->moments * s->batch * 4 * s->hidden;
    kept.room = kept.cells + s->moments * s->batch * s->hidden;
    return kept;
}

/* Moments in the order in which the cells see them. */
static int32_t moment_of(const struct poet_lstm *s, int32_t n)
{
    return s->is_reversed ? s->moments - 1 - n : n;
}

static void gate(float *gates, float *cell, float *out, const float *before,
                 const struct poet_lstm *s)
{
    int32_t h = s->hidden;
    for (int32_t b = 0; b < s->batch; b++, gates += 4 * h, cell += h, out += h, before += h)
        for (int32_t i = 0; i < h; i++) {
            gates[i] = poet_sigmoid(gates[i]);
            gates[h + i] = poet_sigmoid(gates[h + i]);
            gates[2 * h + i] = poet_tanh(gates[2 * h + i]);
            gates[3 * h + i] = poet_sigmoid(gates[3 * h + i]);
            cell[i] = gates[h + i] * before[i] + gates[i] * gates[2 * h + i];
            out[i] = gates[3 * h + i] * poet_tanh(cell[i]);
        }
}

void poet_lstm(float *out, float *last, float *last_cell, void *memory, const float *in,
               const float *in_weight, const float *weight, const float *in_bias,
               const float *bias, const float *first, const float *first_cell,
               const struct poet_lstm *shape)
{
    const struct poet_lstm *s = shape;
    int32_t h = s->hidden, states = s->batch * h;
    struct kept kept = kept_in(memory, s);
    struct poet_matmul of_in = {.m = s->batch, .n = 4 * h, .k = s->inputs, .a_row = s->in_sample,
                                .a_column = s->in_element, .b_row = 1, .b_column = s->inputs,
                                .out_row = 4 * h, .block = BLOCK};
    struct poet_matmul of_state = {.m = s->batch, .n = 4 * h, .k = h, .a_row = h, .a_column = 1,
                                   .b_row = 1, .b_column = h, .out_row = 4 * h, .block = BLOCK};
    for (int32_t n = 0; n < s->moments; n++) {
        int32_t t = moment_of(s, n);
        float *gates = kept.gates + t * 4 * states, *cell = kept.cells + t * states;
        poet_matmul(gates, in + t * s->in_moment, in_weight, in_bias, &of_in);
        poet_matmul_part(gates, first, weight, NULL, &of_state, 1);
        for (int32_t b = 0; bias && b < s->batch; b++)
            poet_add(gates + b * 4 * h, gates + b * 4 * h, bias, 1.0f, 4 * h);
        gate(gates, cell, out + t * states, first_cell, s);
        first = out + t * states;
        first_cell = cell;
    }
    if (last)
        poet_copy_bytes(last, first, 4 * states);
    if (last_cell)
        poet_copy_bytes(last_cell, first_cell, 4 * states);
}

/* The gradients of a moment's gates, in `made`, and of the cell before it. */
static void gate_gradient(float *made, float *to_cell, const float *to_state, const float *gates,
                          const float *cell, const float *before, const struct poet_lstm *s)
{
    int32_t h = s->hidden;
    for (int32_t b = 0; b < s->batch; b++) {
        for (int32_t i = 0; i < h; i++) {
            float in = gates[i], keep = gates[h + i], new = gates[2 * h + i];
            float out = gates[3 * h + i], shown = poet_tanh(cell[i]), g = to_state[i];
            float c = to_cell[i] + g * out * (1.0f - shown * shown);
            made[i] = c * new * in * (1.0f - in);
            made[h + i] = c * before[i] * keep * (1.0f - keep);
            made[2 * h + i] = c * in * (1.0f - new * new);
            made[3 * h + i] = g * shown * out * (1.0f - out);
            to_cell[i] = c * keep;
        }
        made += 4 * h;
        gates += 4 * h;
        to_cell += h;
        to_state += h;
        cell += h;
        before += h;
    }
}

static void take_over(float *to, const float *from, int32_t count)
{
    if (from)
        poet_copy_bytes(to, from, 4 * count);
    else
        poet_fill(to, 0.0f, count);
}

void poet_lstm_gradient(float *to_in, float *to_in_weight, float *to_weight, float *to_in_bias,
                        float *to_bias, float *to_first, float *to_first_cell,
                        const float *gradient, const float *last, const float *last_cell,
                        const float *in, const float *in_weight, const float *weight,
                        const float *out, const float *first, const float *first_cell, void *memory,
                        const struct poet_lstm *shape)
{
    const struct poet_lstm *s = shape;
    int32_t h = s->hidden, states = s->batch * h;
    struct kept kept = kept_in(memory, s);
    float *made = kept.room;
    struct poet_matmul to_inputs = {.m = s->batch, .n = s->inputs, .k = 4 * h, .a_row = 4 * h,
                                    .a_column = 1, .b_row = s->inputs, .b_column = 1,
                                    .out_row = s->inputs, .block = BLOCK};
    struct poet_matmul to_state = {.m = s->batch, .n = h, .k = 4 * h, .a_row = 4 * h, .a_column = 1,
                                   .b_row = h, .b_column = 1, .out_row = h, .block = BLOCK};
    struct poet_matmul of_in = {.m = 4 * h, .n = s->inputs, .k = s->batch, .a_row = 1,
                                .a_column = 4 * h, .b_row = s->in_sample,
                                .b_column = s->in_element, .out_row = s->inputs, .block = BLOCK};
    struct poet_matmul of_state = {.m = 4 * h, .n = h, .k = s->batch, .a_row = 1, .a_column = 4 * h,
                                   .b_row = h, .b_column = 1, .out_row = h, .block = BLOCK};
    poet_fill(to_in_weight, 0.0f, 4 * h * s->inputs);
    poet_fill(to_weight, 0.0f, 4 * h * h);
    if (to_bias)
        poet_fill(to_bias, 0.0f, 4 * h);
    take_over(to_first, last, states);
    take_over(to_first_cell, last_cell, states);
    for (int32_t n = s->moments - 1; n >= 0; n--) {
        int32_t t = moment_of(s, n), before = moment_of(s, n - 1);
        const float *state = n ? out + before * states : first;
        const float *cell = n ? kept.cells + before * states : first_cell;
        for (int32_t b = 0; gradient && b < s->batch; b++)
            for (int32_t i = 0; i < h; i++)
                to_first[b * h + i] += gradient[t * s->gradient_moment + b * s->gradient_sample +
                                                i * s->gradient_element];
        gate_gradient(made, to_first_cell, to_first, kept.gates + t * 4 * states,
                      kept.cells + t * states, cell, s);
        if (to_in)
            poet_matmul(to_in + t * s->batch * s->inputs, made, in_weight, NULL, &to_inputs);
        poet_matmul(to_first, made, weight, NULL, &to_state);
        poet_matmul_part(to_in_weight, made, in + t * s->in_moment, NULL, &of_in, 1);
        poet_matmul_part(to_weight, made, state, NULL, &of_state, 1);
        for (int32_t b = 0; to_bias && b < s->batch; b++)
            poet_add(to_bias, to_bias, made + b * 4 * h, 1.0f, 4 * h);
    }
    if (to_in_bias && to_bias)
        poet_copy_bytes(to_in_bias, to_bias, 16 * h);
}
