/* Matrix products, four rows by four columns at a time. */
#include "helium.h"

/* How the four rows of `a`, or columns of `b`, of a tile lie: side by side, each a run of its own
 * along k, or neither. Constants, so that each case gets loads without address arithmetic. */
enum layout { SIDE_BY_SIDE, ALONG_K, ANY };

/* Four (or `count`) numbers of one k, and on to the next. */
POET_INLINE void fetch(const int count, float *to, const float **from, int32_t step, int32_t apart,
                       const enum layout layout)
{
    (void)apart;
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
        if (layout == SIDE_BY_SIDE) {
            to[i] = from[0][i];
        } else {
            to[i] = *from[i];
            from[i] += layout == ALONG_K ? 1 : step;
        }
    }
    if (layout == SIDE_BY_SIDE)
        from[0] += step;
}

/* A tile's sums over `count` products. The first block of k starts with `row` or 0, later ones
 * with what is in `out`, whose rows are `out_row` apart. */
POET_INLINE void tile(const int rows, const int columns, float *out, int32_t out_row,
                      const float *a, const float *b, const float *row, int32_t is_first,
                      int32_t count, int32_t a_row, int32_t a_column, int32_t b_row,
                      int32_t b_column, const enum layout a_layout, const enum layout b_layout)
{
    float sum[4][4];
    const float *pa[4], *pb[4];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
        pa[i] = a + i * a_row;
#pragma GCC unroll 4
    for (int j = 0; j < columns; j++)
        pb[j] = b + j * b_column;
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++)
            sum[i][j] = 0.0f;
    for (; count > 0; count--) {
        float left[4], right[4];
        fetch(rows, left, pa, a_column, a_row, a_layout);
        fetch(columns, right, pb, b_row, b_column, b_layout);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int j = 0; j < columns; j++)
                sum[i][j] += left[i] * right[j];
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) {
            float *to = out + i * out_row + j;
            if (!is_first)
                *to += sum[i][j];
            else
                *to = row ? row[j] + sum[i][j] : sum[i][j];
        }
}

/* One block of products for all of `out`. */
POET_INLINE void block(float *out, const float *a, const float *b, const float *row,
                       const struct poet_matmul *s, int32_t is_first, int32_t count,
                       const enum layout a_layout, const enum layout b_layout)
{
#define TILE(rows, columns)                                                                        \
    tile(rows, columns, out + i * s->out_row + j, s->out_row, a + i * s->a_row, b + j * s->b_column,           \
         row ? row + j : NULL, is_first, count, s->a_row, s->a_column, s->b_row, s->b_column,      \
         a_layout, b_layout)
    int32_t i = 0;
    for (; i + 4 <= s->m; i += 4) {
        int32_t j = 0;
        for (; POET_HAS_FLOATS && j + 4 <= s->n; j += 4) /* else it would lie on the stack */
            TILE(4, 4);
        for (; j < s->n; j++)
            TILE(4, 1);
    }
    for (; i < s->m; i++)
        poet_matmul_row(out + i * s->out_row, a + i * s->a_row, b, row, s, is_first, count);
#undef TILE
}

static void product(float *out, const float *a, const float *b, const float *row,
                    const struct poet_matmul *s, int32_t is_more)
{
    for (int32_t k = 0; k < s->k; k += s->block) {
        int32_t count = s->k - k < s->block ? s->k - k : s->block;
        int32_t is_first = k == 0 && !is_more;
        const float *left = a + k * s->a_column, *right = b + k * s->b_row;
        if (POET_HELIUM)
            poet_helium_block(out, left, right, row, s, is_first, count);
        else if (s->a_column == 1 && s->b_row == 1) /* both run along k, as x and a layer's weight do */
            block(out, left, right, row, s, is_first, count, ALONG_K, ALONG_K);
        else if (s->a_column == 1 && s->b_column == 1) /* a gradient and a layer's weight */
            block(out, left, right, row, s, is_first, count, ALONG_K, SIDE_BY_SIDE);
        else if (s->a_row == 1 && s->b_column == 1) /* a gradient, turned, and x */
            block(out, left, right, row, s, is_first, count, SIDE_BY_SIDE, SIDE_BY_SIDE);
        else
            block(out, left, right, row, s, is_first, count, ANY, ANY);
    }
}

void poet_matmul(float *out, const float *a, const float *b, const float *row,
                 const struct poet_matmul *shape)
{
    product(out, a, b, row, shape, 0);
}

void poet_matmul_part(float *out, const float *a, const float *b, const float *row,
                      const struct poet_matmul *shape, int32_t is_more)
{
    product(out, a, b, row, shape, is_more);
}
