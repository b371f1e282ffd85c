/* Matrix products by vectors: lanes are four columns of the result. */
#include "helium.h"
#include "lanes.h"

#if POET_HELIUM

static void plain_tile(int32_t rows, int32_t columns, float *out, const float *a, const float *b,
                       const float *row, const struct poet_matmul *s, int32_t is_first,
                       int32_t count)
{
    for (int32_t i = 0; i < rows; i++)
        for (int32_t j = 0; j < columns; j++) {
            const float *x = a + i * s->a_row, *y = b + j * s->b_column;
            float sum = 0.0f, *to = out + i * s->out_row + j;
            for (int32_t k = 0; k < count; k++)
                sum += x[k * s->a_column] * y[k * s->b_row];
            if (!is_first)
                *to += sum;
            else
                *to = row ? row[j] + sum : sum;
        }
}

POET_INLINE float32x4_t columns_of(const float *b, uint32x4_t apart, mve_pred16_t there,
                                   const int is_run, const int is_full)
{
    if (is_run)
        return is_full ? vld1q_f32(b) : vld1q_z_f32(b, there);
    return is_full ? vldrwq_gather_shifted_offset_f32(b, apart)
                   : vldrwq_gather_shifted_offset_z_f32(b, apart, there);
}

/* How the rows of `a` lie: each a run along k, side by side, or neither. */
enum layout { ALONG_K, SIDE_BY_SIDE, ANY };

/* Some rows of four columns. The columns of `b` lie side by side (`is_run`), or apart. */
POET_INLINE void tile(const int rows, float *out, const float *a, const float *b, const float *row,
                      const struct poet_matmul *s, int32_t is_first, int32_t count,
                      int32_t columns, const int is_run, const int is_full,
                      const enum layout layout)
{
    mve_pred16_t there = vctp32q((uint32_t)columns);
    uint32x4_t apart = vmulq_n_u32(vidupq_n_u32(0, 1), (uint32_t)s->b_column);
    int32_t a_column = s->a_column, b_row = s->b_row, k = count;
    const float *x[4], *y = b;
    float32x4_t sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        x[i] = a + (i < rows ? i : 0) * s->a_row;
        sum[i] = vdupq_n_f32(0.0f);
    }
    for (int32_t pairs = layout == ALONG_K ? k / 2 : 0; pairs > 0; pairs--, k -= 2) {
        float32x4_t first = columns_of(y, apart, there, is_run, is_full), second;
        y += b_row;
        POET_KEEP(y);
        second = columns_of(y, apart, there, is_run, is_full);
        y += b_row;
        POET_KEEP(y);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            float left[2];
            poet_take_two(left, &x[i]);
            sum[i] = poet_plus(poet_plus(sum[i], first, left[0]), second, left[1]);
        }
    }
    for (; k > 0; k--) {
        float32x4_t right = columns_of(y, apart, there, is_run, is_full);
        y += b_row;
        POET_KEEP(y);
        if (layout == SIDE_BY_SIDE && rows == 4) {
            float left[4];
            poet_take_two(left, &x[0]);
            poet_take_two(left + 2, &x[0]);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                sum[i] = poet_plus(sum[i], right, left[i]);
            x[0] += a_column - 4;
            POET_KEEP(x[0]);
        } else {
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                sum[i] = poet_plus(sum[i], right, *x[i]);
                x[i] += a_column;
                POET_KEEP(x[i]);
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        const float *with = is_first ? row : out + i * s->out_row;
        if (with)
            sum[i] = vaddq_f32(is_full ? vld1q_f32(with) : vld1q_z_f32(with, there), sum[i]);
    }
    if (poet_was_flushed(sum)) {
        plain_tile(rows, columns, out, a, b, row, s, is_first, count);
        return;
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        if (is_full)
            vst1q_f32(out + i * s->out_row, sum[i]);
        else
            vst1q_p_f32(out + i * s->out_row, sum[i], there);
    }
}

/* A single row of eight or sixteen columns: those lie side by side, or are runs themselves. */
POET_INLINE void wide_tile(const int vectors, float *out, const float *a, const float *b,
                           const float *row, const struct poet_matmul *s, int32_t is_first,
                           int32_t count, const int is_run)
{
    int32_t a_column = s->a_column, b_row = s->b_row, k = count;
    const float *x = a, *y = b;
    float32x4_t sum[4];
    uint32x4_t at[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        uint32_t first = (uint32_t)(uintptr_t)(b + i * LANES * s->b_column);
        at[i] = vmlaq_n_u32(vdupq_n_u32(first), vidupq_n_u32(0, 4), (uint32_t)s->b_column);
        sum[i] = vdupq_n_f32(0.0f);
    }
    for (int32_t fours = !is_run && a_column == 1 && b_row == 1 ? k / 4 : 0; fours > 0; fours--) {
        float left[4];
        poet_take_two(left, &x);
        poet_take_two(left + 2, &x);
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) {
            sum[i] = poet_plus(sum[i], vldrwq_gather_base_f32(at[i], 0), left[0]);
            sum[i] = poet_plus(sum[i], vldrwq_gather_base_f32(at[i], 4), left[1]);
            sum[i] = poet_plus(sum[i], vldrwq_gather_base_f32(at[i], 8), left[2]);
            sum[i] = poet_plus(sum[i], vldrwq_gather_base_f32(at[i], 12), left[3]);
            at[i] = vaddq_n_u32(at[i], 16);
        }
        k -= 4;
    }
    for (int32_t pairs = is_run && a_column == 1 ? k / 2 : 0; pairs > 0; pairs--) {
        float left[2];
        poet_take_two(left, &x);
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++)
                sum[i] = poet_plus(sum[i], vld1q_f32(y + i * LANES), left[n]);
            y += b_row;
            __asm__ volatile("" : "+r"(y) : : "memory"); /* what is loaded early has no register */
        }
        k -= 2;
    }
    for (; k > 0; k--) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) {
            float32x4_t right =
                is_run ? vld1q_f32(y + i * LANES) : vldrwq_gather_base_f32(at[i], 0);
            sum[i] = poet_plus(sum[i], right, *x);
            at[i] = vaddq_n_u32(at[i], 4 * (uint32_t)b_row);
        }
        x += a_column;
        y += b_row;
        POET_KEEP(x);
        POET_KEEP(y);
    }
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++) {
        const float *with = is_first ? row : out;
        if (with)
            sum[i] = vaddq_f32(vld1q_f32(with + i * LANES), sum[i]);
    }
    if (poet_was_flushed(sum)) {
        plain_tile(1, vectors * LANES, out, a, b, row, s, is_first, count);
        return;
    }
#pragma GCC unroll 4
    for (int i = 0; i < vectors; i++)
        vst1q_f32(out + i * LANES, sum[i]);
}

POET_INLINE void rows_of(const int rows, float *out, const float *a, const float *b,
                         const float *row, const struct poet_matmul *s, int32_t is_first,
                         int32_t count, const int is_run, const enum layout layout)
{
    int32_t j = 0;
    const int wide = is_run ? 4 : 2;
    if (rows == 1)
        for (; j + wide * LANES <= s->n; j += wide * LANES)
            wide_tile(wide, out + j, a, b + j * s->b_column, row ? row + j : NULL, s, is_first,
                      count, is_run);
    if (rows == 1 && j + 2 * LANES <= s->n) {
        wide_tile(2, out + j, a, b + j * s->b_column, row ? row + j : NULL, s, is_first, count,
                  is_run);
        j += 2 * LANES;
    }
    for (; j + LANES <= s->n; j += LANES)
        tile(rows, out + j, a, b + j * s->b_column, row ? row + j : NULL, s, is_first, count,
             LANES, is_run, 1, layout);
    if (j < s->n)
        tile(rows, out + j, a, b + j * s->b_column, row ? row + j : NULL, s, is_first, count,
             s->n - j, is_run, 0, layout);
}

POET_INLINE void all_rows(float *out, const float *a, const float *b, const float *row,
                          const struct poet_matmul *s, int32_t is_first, int32_t count,
                          const int is_run, const enum layout layout)
{
    int32_t i = 0;
    for (; i + 4 <= s->m; i += 4)
        rows_of(4, out + i * s->out_row, a + i * s->a_row, b, row, s, is_first, count, is_run,
                layout);
    for (; i < s->m; i++)
        rows_of(1, out + i * s->out_row, a + i * s->a_row, b, row, s, is_first, count, is_run,
                ANY);
}

void poet_helium_block(float *out, const float *a, const float *b, const float *row,
                       const struct poet_matmul *shape, int32_t is_first, int32_t count)
{
    poet_forget();
    if (shape->a_column == 1 && shape->b_column == 1)
        all_rows(out, a, b, row, shape, is_first, count, 1, ALONG_K);
    else if (shape->a_column == 1)
        all_rows(out, a, b, row, shape, is_first, count, 0, ALONG_K);
    else if (shape->a_row == 1 && shape->b_column == 1)
        all_rows(out, a, b, row, shape, is_first, count, 1, SIDE_BY_SIDE);
    else
        all_rows(out, a, b, row, shape, is_first, count, 0, ANY);
}

#endif
