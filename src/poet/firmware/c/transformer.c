/* What transformers need beside products: norms of rows, softmax, GELU, SiLU, tables of rows. */
#include "kernels.h"

/* ---- LayerNorm ---- */

void poet_layer_norm(float *out, float *mean, float *inverse, const float *in, const float *weight,
                     const float *bias, int32_t rows, int32_t columns, float epsilon)
{
    for (int32_t i = 0; i < rows; i++, in += columns, out += columns) {
        float total = poet_sum_row(in, columns), squares = 0.0f;
        float middle = total / (float)columns;
        for (int32_t j = 0; j < columns;) { /* in parts, to lose less */
            float part = 0.0f;
            for (int32_t k = 0; k < 32 && j < columns; k++, j++) {
                float off = in[j] - middle;
                part += off * off;
            }
            squares += part;
        }
        float factor = 1.0f / poet_sqrt(squares / (float)columns + epsilon);
        mean[i] = middle;
        inverse[i] = factor;
        for (int32_t j = 0; j < columns; j++) {
            float scaled = (in[j] - middle) * factor;
            out[j] = scaled * (weight ? weight[j] : 1.0f) + (bias ? bias[j] : 0.0f);
        }
    }
}

void poet_layer_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                              const float *gradient, const float *in, const float *mean,
                              const float *inverse, const float *weight, int32_t rows,
                              int32_t columns)
{
    poet_layer_norm_gradient_part(in_gradient, weight_gradient, bias_gradient, gradient, in, mean,
                                  inverse, weight, rows, columns, 0);
}

void poet_layer_norm_gradient_part(float *in_gradient, float *weight_gradient, float *bias_gradient,
                                   const float *gradient, const float *in, const float *mean,
                                   const float *inverse, const float *weight, int32_t rows,
                                   int32_t columns, int32_t is_more)
{
    if (weight_gradient && !is_more)
        poet_fill(weight_gradient, 0.0f, columns);
    if (bias_gradient && !is_more)
        poet_fill(bias_gradient, 0.0f, columns);
    for (int32_t i = 0; i < rows; i++, in += columns, gradient += columns) {
        float along = 0.0f, total = 0.0f;
        for (int32_t j = 0; j < columns;) {
            float part = 0.0f, part_along = 0.0f;
            for (int32_t k = 0; k < 32 && j < columns; k++, j++) {
                float scaled = (in[j] - mean[i]) * inverse[i];
                float g = gradient[j] * (weight ? weight[j] : 1.0f);
                part += g;
                part_along += g * scaled;
                if (weight_gradient)
                    weight_gradient[j] += gradient[j] * scaled;
                if (bias_gradient)
                    bias_gradient[j] += gradient[j];
            }
            total += part;
            along += part_along;
        }
        if (!in_gradient)
            continue;
        total = total / (float)columns;
        along = along / (float)columns;
        for (int32_t j = 0; j < columns; j++) {
            float scaled = (in[j] - mean[i]) * inverse[i];
            float g = gradient[j] * (weight ? weight[j] : 1.0f);
            in_gradient[i * columns + j] = (g - total - scaled * along) * inverse[i];
        }
    }
}

/* ---- softmax; a row of minus infinities gives zeros ---- */

void poet_softmax(float *out, const float *in, int32_t rows, int32_t columns)
{
    for (int32_t i = 0; i < rows; i++, in += columns, out += columns) {
        float most = in[0];
        for (int32_t j = 1; j < columns; j++)
            if (in[j] > most)
                most = in[j];
        float beside = most == -1.0f / 0.0f ? 0.0f : most;
        for (int32_t j = 0; j < columns; j++)
            out[j] = poet_exp(in[j] - beside);
        float total = poet_sum_row(out, columns);
        for (int32_t j = 0; j < columns; j++)
            out[j] = total == 0.0f ? 0.0f : out[j] / total;
    }
}

void poet_softmax_gradient(float *out, const float *gradient, const float *result, int32_t rows,
                           int32_t columns)
{
    for (int32_t i = 0; i < rows; i++, gradient += columns, result += columns, out += columns) {
        float along = 0.0f;
        for (int32_t j = 0; j < columns;) {
            float part = 0.0f;
            for (int32_t k = 0; k < 32 && j < columns; k++, j++)
                part += gradient[j] * result[j];
            along += part;
        }
        for (int32_t j = 0; j < columns; j++)
            out[j] = result[j] * (gradient[j] - along);
    }
}

/* ---- GELU and SiLU ---- */

/* 1 - erf(x) for x >= 0 (Press et al. 1992, Numerical Recipes in C, chapter 6.2). */
static float erfc_of(float x)
{
    float t = 1.0f / (1.0f + 0.5f * x);
    float p = 0.17087277f;
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    return t * poet_exp(p * t - 1.26551223f - x * x);
}

/* The share of a normal distribution below x. */
static float normal_below(float x)
{
    float y = x * 0.707106781f, size = y < 0.0f ? -y : y;
    if (size < 0.5f) { /* the series of erf, where the difference from 1 would cancel */
        float square = y * y, p = -1.0f / 1320.0f;
        p = p * square + 1.0f / 216.0f;
        p = p * square - 1.0f / 42.0f;
        p = p * square + 0.1f;
        p = p * square - 1.0f / 3.0f;
        return 0.5f + 0.564189584f * (y + y * (p * square));
    }
    float rest = 0.5f * erfc_of(size);
    return y < 0.0f ? rest : 1.0f - rest;
}

void poet_gelu(float *out, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] * normal_below(in[i]);
}

void poet_gelu_gradient(float *out, const float *gradient, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        float x = in[i], density = 0.398942280f * poet_exp(-0.5f * (x * x));
        out[i] = gradient[i] * (normal_below(x) + x * density);
    }
}

void poet_gelu_tanh(float *out, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        float x = in[i], inner = 0.797884561f * (x + 0.044715f * (x * x * x));
        out[i] = 0.5f * x * (1.0f + poet_tanh(inner));
    }
}

void poet_gelu_tanh_gradient(float *out, const float *gradient, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        float x = in[i], inner = 0.797884561f * (x + 0.044715f * (x * x * x));
        float t = poet_tanh(inner), slope = 0.797884561f * (1.0f + 0.134145f * (x * x));
        out[i] = gradient[i] * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
    }
}

void poet_silu(float *out, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] * poet_sigmoid(in[i]);
}

void poet_silu_gradient(float *out, const float *gradient, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        float s = poet_sigmoid(in[i]);
        out[i] = gradient[i] * (s * (1.0f + in[i] * (1.0f - s)));
    }
}

/* ---- rows of a table ---- */

void poet_embedding(float *out, const float *table, const int64_t *rows, int32_t count,
                    int32_t columns, int32_t table_rows)
{
    for (int32_t i = 0; i < count; i++)
        poet_copy_bytes(out + i * columns, table + poet_index_of(rows[i], table_rows) * columns,
                        4 * columns);
}

void poet_embedding_rows_gradient(float *out, const float *gradient, const int64_t *rows,
                                  int32_t count, int32_t columns, int32_t first, int32_t table_rows,
                                  int64_t ignored)
{
    poet_fill(out, 0.0f, table_rows * columns);
    for (int32_t i = 0; i < count; i++, gradient += columns)
        if (rows[i] != ignored && rows[i] >= first && rows[i] < first + table_rows) {
            float *to = out + ((int32_t)rows[i] - first) * columns;
            poet_add(to, to, gradient, 1.0f, columns);
        }
}

void poet_embedding_gradient(float *out, const float *gradient, const int64_t *rows, int32_t count,
                             int32_t columns, int32_t table_rows, int64_t ignored)
{
    poet_embedding_rows_gradient(out, gradient, rows, count, columns, 0, table_rows, ignored);
}

int32_t poet_embedding_row_gradient(float *out, const float *gradient, const int64_t *rows,
                                    int32_t at, int32_t count, int32_t columns, int64_t ignored)
{
    if (rows[at] == ignored)
        return 0;
    for (int32_t i = 0; i < at; i++)
        if (rows[i] == rows[at])
            return 0;
    poet_fill(out, 0.0f, columns);
    for (int32_t i = at; i < count; i++)
        if (rows[i] == rows[at])
            poet_add(out, out, gradient + i * columns, 1.0f, columns);
    return 1;
}

void poet_gather_whole(int64_t *out, const int64_t *in, const int64_t *at, int32_t rows,
                       int32_t in_columns, int32_t columns)
{
    for (int32_t i = 0; i < rows; i++, in += in_columns)
        for (int32_t j = 0; j < columns; j++)
            *out++ = in[poet_index_of(*at++, in_columns)];
}
