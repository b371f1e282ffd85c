/* A single row of a matrix product, which reads every number of the matrix for one product. */
#include "runs.h"

/* Adds a sum over a block of k to `out`, or begins with `row` or 0. */
POET_INLINE void put(float *out, const float *row, int32_t at, int32_t is_first, float sum)
{
    if (!is_first)
        out[at] += sum;
    else
        out[at] = row ? row[at] + sum : sum;
}

/* The columns of `b` are runs along k: four at once, four numbers of each. */
static int32_t columns_along_k(float *out, const float *a, const float *b, const float *row,
                               const struct poet_matmul *s, int32_t is_first, int32_t count)
{
    int32_t j = 0;
    for (; j + 4 <= s->n; j += 4) {
        const float *x = a, *y[4];
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            y[i] = b + (j + i) * s->b_column;
        for (int32_t k = count / 4; k > 0; k--) {
            float left[4] = {x[0], x[1], x[2], x[3]};
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                sum[i] = poet_four_of_a_run(sum[i], left, &y[i]);
            x += 4;
        }
        for (int32_t k = count % 4; k > 0; k--) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                sum[i] += *x * *y[i]++;
            x++;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            put(out, row, j + i, is_first, sum[i]);
    }
    return j;
}

/* The rows of `b` are runs: eight columns at once. */
static int32_t columns_in_a_row(float *out, const float *a, const float *b, const float *row,
                                const struct poet_matmul *s, int32_t is_first, int32_t count)
{
    int32_t j = 0;
    for (; j + 8 <= s->n; j += 8) {
        const float *x = a, *y = b + j;
        float sum[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        for (int32_t k = count; k > 0; k--) {
            poet_eight_in_a_row(sum, *x, y);
            x += s->a_column;
            y += s->b_row;
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            put(out, row, j + i, is_first, sum[i]);
    }
    return j;
}

void poet_matmul_row(float *out, const float *a, const float *b, const float *row,
                     const struct poet_matmul *shape, int32_t is_first, int32_t count)
{
    const struct poet_matmul *s = shape;
    int32_t j = 0;
    if (s->a_column == 1 && s->b_row == 1)
        j = columns_along_k(out, a, b, row, s, is_first, count);
    else if (s->b_column == 1)
        j = columns_in_a_row(out, a, b, row, s, is_first, count);
    for (; j < s->n; j++) {
        const float *x = a, *y = b + j * s->b_column;
        float sum = 0.0f;
        for (int32_t k = count; k > 0; k--) {
            sum += *x * *y;
            x += s->a_column;
            y += s->b_row;
        }
        put(out, row, j, is_first, sum);
    }
}
