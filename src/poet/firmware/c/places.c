/* Elements by the places that data names, the largest of some elements and its place, lengths. */
#include "layers.h"

POET_INLINE int32_t place_in(const struct poet_view *v, int32_t a, int32_t b, int32_t c, int32_t d)
{
    return a * v->stride[0] + b * v->stride[1] + c * v->stride[2] + d * v->stride[3];
}

/* Every element of a view, with its four indices. */
#define FOR_EACH(v)                                                                                \
    for (int32_t a = 0; a < (v)->size[0]; a++)                                                     \
        for (int32_t b = 0; b < (v)->size[1]; b++)                                                 \
            for (int32_t c = 0; c < (v)->size[2]; c++)                                             \
                for (int32_t d = 0; d < (v)->size[3]; d++)

void poet_gather(float *out, const float *in, const int64_t *at, const struct poet_places *shape,
                 const struct poet_view *out_view, const struct poet_view *in_view,
                 const struct poet_view *at_view)
{
    FOR_EACH(out_view)
    {
        int32_t found = poet_index_of(at[place_in(at_view, a, b, c, d)], shape->extent);
        out[place_in(out_view, a, b, c, d)] =
            in[place_in(in_view, a, b, c, d) + found * shape->stride];
    }
}

void poet_scatter(float *out, const float *in, const int64_t *at, const struct poet_places *shape,
                  const struct poet_view *out_view, const struct poet_view *in_view,
                  const struct poet_view *at_view)
{
    FOR_EACH(in_view)
    {
        int32_t found = poet_index_of(at[place_in(at_view, a, b, c, d)], shape->extent);
        float *to = out + place_in(out_view, a, b, c, d) + found * shape->stride;
        float given = in[place_in(in_view, a, b, c, d)];
        *to = shape->is_sum ? *to + given : given;
    }
}

void poet_extreme(float *out, int64_t *at, const float *in, int32_t is_least,
                  const struct poet_view *outer, const struct poet_view *inner)
{
    FOR_EACH(outer)
    {
        const float *from = in + place_in(outer, a, b, c, d);
        float best = *from;
        int64_t where = 0, here = 0;
        for (int32_t i = 0; i < inner->size[0]; i++)
            for (int32_t j = 0; j < inner->size[1]; j++)
                for (int32_t k = 0; k < inner->size[2]; k++)
                    for (int32_t l = 0; l < inner->size[3]; l++, here++) {
                        float x = from[place_in(inner, i, j, k, l)];
                        /* what is no number is beyond all others */
                        if (best == best && (x != x || (is_least ? x < best : x > best))) {
                            best = x;
                            where = here;
                        }
                    }
        if (out)
            *out++ = best;
        if (at)
            *at++ = where;
    }
}

/* The length of what `inner` walks: of squares, or of sizes. */
void poet_length(float *out, const float *in, int32_t is_of_squares, const struct poet_view *outer,
                 const struct poet_view *inner)
{
    FOR_EACH(outer)
    {
        const float *from = in + place_in(outer, a, b, c, d);
        float total = 0.0f, part = 0.0f;
        int32_t count = 0;
        for (int32_t i = 0; i < inner->size[0]; i++)
            for (int32_t j = 0; j < inner->size[1]; j++)
                for (int32_t k = 0; k < inner->size[2]; k++)
                    for (int32_t l = 0; l < inner->size[3]; l++) {
                        float x = from[place_in(inner, i, j, k, l)];
                        part += is_of_squares ? x * x : x < 0.0f ? -x : x;
                        if (++count % 32 == 0) { /* in parts, to lose less */
                            total += part;
                            part = 0.0f;
                        }
                    }
        total += part;
        *out++ = is_of_squares ? poet_sqrt(total) : total;
    }
}

void poet_add_rows_view(float *out, const float *in, const int64_t *rows, int32_t table_rows,
                        int64_t ignored, const struct poet_view *in_view,
                        const struct poet_view *rows_view)
{
    POET_FOR_ROWS(in_view)
    {
        int64_t row = rows[POET_ROW(rows_view)];
        if (row == ignored)
            continue;
        float *to = out + poet_index_of(row, table_rows) * in_view->size[3];
        const float *from = in + POET_ROW(in_view);
        for (int32_t i = 0; i < in_view->size[3]; i++)
            to[i] += from[i * in_view->stride[3]];
    }
}
