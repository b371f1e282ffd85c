/* Attention in tiles, without a matrix of all scores (Dao and others 2022, FlashAttention). */
#include "kernels.h"

/* Queries, and keys, of a tile: small, for two of them lie on the stack. */
enum { TILE = 4 };

#define LOWEST (-1.0f / 0.0f)

/* A row of a tensor of this batch and head, by the view of the same name. */
#define AT(tensor, row)                                                                            \
    (tensor + b * shape->tensor.stride[0] + h * shape->tensor.stride[1] +                          \
     (row) * shape->tensor.stride[2])

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static float dot(const float *a, int32_t a_step, const float *b, int32_t b_step, int32_t count)
{
    float total = 0.0f;
    for (int32_t i = 0; i < count;) { /* in parts, to lose less */
        float part = 0.0f;
        for (int32_t j = 0; j < 32 && i < count; i++, j++)
            part += a[i * a_step] * b[i * b_step];
        total += part;
    }
    return total;
}

/* A tile of products of m rows of one tensor with n of another. The kernels of matmul.c would be
 * faster, but need more stack than is left beside two tiles on the smallest board. */
static void multiply_rows(float *tile, const float *a, const struct poet_view *a_view,
                          const float *b, const struct poet_view *b_view, int32_t m, int32_t n)
{
    for (int32_t i = 0; i < m; i++)
        for (int32_t j = 0; j < n; j++)
            tile[i * TILE + j] = dot(a + i * a_view->stride[2], a_view->stride[3],
                                     b + j * b_view->stride[2], b_view->stride[3],
                                     a_view->size[3]);
}

/* Adds to m rows the sums of k rows of another tensor, weighted by a tile's rows or columns: its
 * weights for one sum are `step` apart, those for the next `TILE / step`. */
static void add_weighted(float *out, const struct poet_view *out_view, const float *tile,
                         int32_t step, const float *rows, const struct poet_view *rows_view,
                         int32_t m, int32_t k)
{
    for (int32_t i = 0; i < m; i++)
        for (int32_t j = 0; j < out_view->size[3]; j++) {
            const float *from = rows + j * rows_view->stride[3];
            float part = 0.0f;
            for (int32_t n = 0; n < k; n++)
                part += tile[i * (TILE / step) + n * step] * from[n * rows_view->stride[2]];
            out[i * out_view->stride[2] + j] += part;
        }
}

/* Products of queries and keys become scores. The mask begins at the first of these queries; key j
 * is the first of these keys, and `ahead` says how many more keys than queries come before them. */
static void score(float *tile, const float *mask, const struct poet_attention *shape, int32_t rows,
                  int32_t columns, int32_t j, int32_t ahead)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < columns; c++) {
            float found = tile[r * TILE + c] * shape->scale;
            if (mask)
                found += mask[r * shape->mask.stride[2] + (j + c) * shape->mask.stride[3]];
            tile[r * TILE + c] = shape->is_causal && ahead + c > r ? LOWEST : found;
        }
}

/* Turns a row's scores into weights beside the largest score so far, and returns the factor for
 * what was weighted beside an earlier one. While all is masked, 0 stands for the largest. */
static float weigh(float *row, int32_t columns, float *most, float *total)
{
    float before = *most, part = 0.0f;
    for (int32_t c = 0; c < columns; c++)
        if (row[c] > *most)
            *most = row[c];
    float beside = *most == LOWEST ? 0.0f : *most;
    for (int32_t c = 0; c < columns; c++) {
        row[c] = poet_exp(row[c] - beside);
        part += row[c];
    }
    float factor = poet_exp(before - beside);
    *total = *total * factor + part;
    return factor;
}

/* How many of the block's keys some queries, from i on, look at. */
static int32_t keys_for(const struct poet_attention *shape, const struct poet_attention_part *part,
                        int32_t i, int32_t rows)
{
    int32_t keys = shape->key.size[2];
    return shape->is_causal ? least(keys, part->first_query + i + rows - part->first_key) : keys;
}

/* Some rows of one head. */
static void attend(float *out, float *sums, const float *query, const float *key,
                   const float *value, const float *mask, const struct poet_attention *shape,
                   const struct poet_attention_part *part, int32_t b, int32_t h, int32_t i)
{
    float tile[TILE * TILE], most[TILE], total[TILE];
    int32_t width = shape->query.size[3], rows = least(TILE, shape->query.size[2] - i);
    int32_t keys = keys_for(shape, part, i, rows);
    float *state = part->state;
    if (state)
        state += 2 * ((b * shape->query.size[1] + h) * shape->query.size[2] + i);
    for (int32_t r = 0; r < rows; r++) {
        most[r] = part->more_keys ? state[2 * r] : LOWEST;
        total[r] = part->more_keys ? state[2 * r + 1] : 0.0f;
        if (!part->more_keys)
            poet_fill(AT(out, i + r), 0.0f, width);
    }
    for (int32_t j = 0; j < keys; j += TILE) {
        int32_t columns = least(TILE, keys - j), ahead = part->first_key + j - part->first_query - i;
        multiply_rows(tile, AT(query, i), &shape->query, AT(key, j), &shape->key, rows, columns);
        score(tile, mask ? AT(mask, i) : NULL, shape, rows, columns, j, ahead);
        for (int32_t r = 0; r < rows; r++) {
            float factor = weigh(tile + r * TILE, columns, &most[r], &total[r]);
            poet_scale(AT(out, i + r), AT(out, i + r), factor, width);
        }
        add_weighted(AT(out, i), &shape->out, tile, 1, AT(value, j), &shape->value, rows, columns);
    }
    for (int32_t r = 0; r < rows; r++) {
        if (!part->is_last) {
            state[2 * r] = most[r];
            state[2 * r + 1] = total[r];
            continue;
        }
        float divisor = total[r] == 0.0f ? 1.0f : total[r]; /* all masked: zeros */
        poet_divide_by(AT(out, i + r), AT(out, i + r), divisor, width);
        *AT(sums, i + r) = most[r] == LOWEST ? 0.0f : most[r] + poet_log(divisor);
    }
}

static const struct poet_attention_part all_of_it = {.is_last = 1};

void poet_attention(float *out, float *sums, const float *query, const float *key,
                    const float *value, const float *mask, const struct poet_attention *shape)
{
    poet_attention_of_part(out, sums, query, key, value, mask, shape, &all_of_it);
}

void poet_attention_of_part(float *out, float *sums, const float *query, const float *key,
                            const float *value, const float *mask,
                            const struct poet_attention *shape,
                            const struct poet_attention_part *part)
{
    for (int32_t b = 0; b < shape->query.size[0]; b++)
        for (int32_t h = 0; h < shape->query.size[1]; h++)
            for (int32_t i = 0; i < shape->query.size[2]; i += TILE)
                attend(out, sums, query, key, value, mask, shape, part, b, h, i);
}

void poet_attention_gradient(float *query_gradient, float *key_gradient, float *value_gradient,
                             const float *gradient, const float *query, const float *key,
                             const float *value, const float *out, const float *sums,
                             const float *mask, const struct poet_attention *shape)
{
    poet_attention_gradient_of_part(query_gradient, key_gradient, value_gradient, gradient, query,
                                    key, value, out, sums, mask, shape, &all_of_it);
}

void poet_attention_gradient_of_part(float *query_gradient, float *key_gradient,
                                     float *value_gradient, const float *gradient,
                                     const float *query, const float *key, const float *value,
                                     const float *out, const float *sums, const float *mask,
                                     const struct poet_attention *shape,
                                     const struct poet_attention_part *part)
{
    const int32_t *size = shape->query.size;
    for (int32_t b = 0; b < size[0]; b++)
        for (int32_t h = 0; h < size[1]; h++) {
            for (int32_t i = 0; query_gradient && !part->more_keys && i < size[2]; i++)
                poet_fill(AT(query_gradient, i), 0.0f, size[3]);
            for (int32_t j = 0; key_gradient && !part->more_queries && j < shape->key.size[2]; j++)
                poet_fill(AT(key_gradient, j), 0.0f, size[3]);
            for (int32_t j = 0; value_gradient && !part->more_queries && j < shape->key.size[2];
                 j++)
                poet_fill(AT(value_gradient, j), 0.0f, size[3]);
            for (int32_t i = 0; i < size[2]; i += TILE) {
                float weights[TILE * TILE], slopes[TILE * TILE], along[TILE];
                int32_t rows = least(TILE, size[2] - i), keys = keys_for(shape, part, i, rows);
                for (int32_t r = 0; r < rows; r++)
                    along[r] = dot(AT(out, i + r), 1, AT(gradient, i + r),
                                   shape->gradient.stride[3], size[3]);
                for (int32_t j = 0; j < keys; j += TILE) {
                    int32_t columns = least(TILE, keys - j);
                    multiply_rows(weights, AT(query, i), &shape->query, AT(key, j), &shape->key,
                                  rows, columns);
                    score(weights, mask ? AT(mask, i) : NULL, shape, rows, columns, j,
                          part->first_key + j - part->first_query - i);
                    multiply_rows(slopes, AT(gradient, i), &shape->gradient, AT(value, j),
                                  &shape->value, rows, columns);
                    for (int32_t r = 0; r < rows; r++)
                        for (int32_t c = 0; c < columns; c++) {
                            float *w = &weights[r * TILE + c], *s = &slopes[r * TILE + c];
                            *w = poet_exp(*w - *AT(sums, i + r));
                            *s = *w * (*s - along[r]) * shape->scale;
                        }
                    if (value_gradient)
                        add_weighted(AT(value_gradient, j), &shape->value_gradient, weights, TILE,
                                     AT(gradient, i), &shape->gradient, columns, rows);
                    if (key_gradient)
                        add_weighted(AT(key_gradient, j), &shape->key_gradient, slopes, TILE,
                                     AT(query, i), &shape->query, columns, rows);
                    if (query_gradient)
                        add_weighted(AT(query_gradient, i), &shape->query_gradient, slopes, 1,
                                     AT(key, j), &shape->key, rows, columns);
                }
            }
        }
}
