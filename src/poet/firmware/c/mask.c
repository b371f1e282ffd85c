/* Masks: comparisons, choices and small sums of whole numbers (int64_t) and truths (uint8_t, 0 or
 * 1). Each tensor comes with a view, sizes are those of the first. */
#include "kernels.h"

#define FOR_EACH(v) POET_FOR_ROWS(v) for (int32_t i3 = 0; i3 < (v)->size[3]; i3++)

/* The element of a tensor that a walk has come to, by the view of the same name. */
#define AT(tensor) tensor[POET_ROW(tensor##_view) + i3 * tensor##_view->stride[3]]

/* ---- comparisons ---- */

#define COMPARE(type)                                                                              \
    FOR_EACH(out_view)                                                                             \
    {                                                                                              \
        type x = AT(a), y = AT(b);                                                                 \
        int32_t found = x < y    ? POET_LESS                                                       \
                        : x > y  ? POET_GREATER                                                    \
                        : x == y ? POET_EQUAL                                                      \
                                 : POET_UNORDERED;                                                 \
        AT(out) = (wanted & found) != 0;                                                           \
    }

void poet_compare_floats(uint8_t *out, const float *a, const float *b, int32_t wanted,
                         const struct poet_view *out_view, const struct poet_view *a_view,
                         const struct poet_view *b_view)
{
    COMPARE(float)
}

void poet_compare_wholes(uint8_t *out, const int64_t *a, const int64_t *b, int32_t wanted,
                         const struct poet_view *out_view, const struct poet_view *a_view,
                         const struct poet_view *b_view)
{
    COMPARE(int64_t)
}

void poet_compare_truths(uint8_t *out, const uint8_t *a, const uint8_t *b, int32_t wanted,
                         const struct poet_view *out_view, const struct poet_view *a_view,
                         const struct poet_view *b_view)
{
    COMPARE(uint8_t)
}

void poet_join_truths(uint8_t *out, const uint8_t *a, const uint8_t *b, int32_t table,
                      const struct poet_view *out_view, const struct poet_view *a_view,
                      const struct poet_view *b_view)
{
    FOR_EACH(out_view)
        AT(out) = table >> (2 * AT(a) + AT(b)) & 1;
}

/* ---- choices ---- */

#define CHOOSE                                                                                     \
    FOR_EACH(out_view)                                                                             \
        AT(out) = AT(condition) ? AT(a) : AT(b);

void poet_choose_floats(float *out, const uint8_t *condition, const float *a, const float *b,
                        const struct poet_view *out_view, const struct poet_view *condition_view,
                        const struct poet_view *a_view, const struct poet_view *b_view)
{
    CHOOSE
}

void poet_choose_wholes(int64_t *out, const uint8_t *condition, const int64_t *a, const int64_t *b,
                        const struct poet_view *out_view, const struct poet_view *condition_view,
                        const struct poet_view *a_view, const struct poet_view *b_view)
{
    CHOOSE
}

void poet_choose_truths(uint8_t *out, const uint8_t *condition, const uint8_t *a, const uint8_t *b,
                        const struct poet_view *out_view, const struct poet_view *condition_view,
                        const struct poet_view *a_view, const struct poet_view *b_view)
{
    CHOOSE
}

/* ---- copies, from one type to another or the same ---- */

#define COPY                                                                                       \
    FOR_EACH(out_view)                                                                             \
        AT(out) = AT(in);

void poet_copy_wholes(int64_t *out, const int64_t *in, const struct poet_view *out_view,
                      const struct poet_view *in_view)
{
    COPY
}

void poet_copy_truths(uint8_t *out, const uint8_t *in, const struct poet_view *out_view,
                      const struct poet_view *in_view)
{
    COPY
}

void poet_floats_of_truths(float *out, const uint8_t *in, const struct poet_view *out_view,
                           const struct poet_view *in_view)
{
    COPY
}

void poet_wholes_of_truths(int64_t *out, const uint8_t *in, const struct poet_view *out_view,
                           const struct poet_view *in_view)
{
    COPY
}

void poet_floats_of_wholes(float *out, const int64_t *in, const struct poet_view *out_view,
                           const struct poet_view *in_view)
{
    FOR_EACH(out_view)
        AT(out) = (float)AT(in);
}

void poet_wholes_of_floats(int64_t *out, const float *in, const struct poet_view *out_view,
                           const struct poet_view *in_view)
{
    const float limit = 9223372036854775808.0f; /* beyond it processors disagree */
    FOR_EACH(out_view)
    {
        float x = AT(in);
        AT(out) = x >= -limit && x < limit ? (int64_t)x : INT64_MIN;
    }
}

/* ---- whole numbers; they wrap around, which C says of unsigned ones alone ---- */

void poet_add_wholes(int64_t *out, const int64_t *a, const int64_t *b, int64_t b_factor,
                     const struct poet_view *out_view, const struct poet_view *a_view,
                     const struct poet_view *b_view)
{
    FOR_EACH(out_view)
        AT(out) = (int64_t)((uint64_t)AT(a) + (uint64_t)AT(b) * (uint64_t)b_factor);
}

void poet_multiply_wholes(int64_t *out, const int64_t *a, const int64_t *b,
                          const struct poet_view *out_view, const struct poet_view *a_view,
                          const struct poet_view *b_view)
{
    FOR_EACH(out_view)
        AT(out) = (int64_t)((uint64_t)AT(a) * (uint64_t)AT(b));
}

void poet_clamp_wholes(int64_t *out, const int64_t *in, int64_t low, int64_t high,
                       const struct poet_view *out_view, const struct poet_view *in_view)
{
    FOR_EACH(out_view)
        AT(out) = AT(in) < low ? low : AT(in) > high ? high : AT(in);
}

void poet_count_up(int64_t *out, int64_t first, int64_t step, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = first + i * step;
}

void poet_sum_along(int64_t *out, int32_t outer, int32_t count, int32_t inner)
{
    for (int32_t i = 0; i < outer; i++, out += count * inner)
        for (int32_t j = inner; j < count * inner; j++)
            out[j] += out[j - inner];
}

/* ---- sums over dimensions ---- */

static int32_t elements(const struct poet_view *v)
{
    return v->size[0] * v->size[1] * v->size[2] * v->size[3];
}

/* Where the element with this number in row-major order is. */
static int32_t place(const struct poet_view *v, int32_t number)
{
    int32_t at = 0;
    for (int32_t d = POET_DIMS - 1; d >= 0; d--) {
        at += number % v->size[d] * v->stride[d];
        number /= v->size[d];
    }
    return at;
}

void poet_sum_wholes(int64_t *out, const int64_t *in, const struct poet_view *outer,
                     const struct poet_view *inner)
{
    for (int32_t i = 0; i < elements(outer); i++) {
        int64_t total = 0;
        for (int32_t j = 0; j < elements(inner); j++)
            total += in[place(outer, i) + place(inner, j)];
        out[i] = total;
    }
}

void poet_sum_truths(int64_t *out, const uint8_t *in, const struct poet_view *outer,
                     const struct poet_view *inner)
{
    for (int32_t i = 0; i < elements(outer); i++) {
        int64_t total = 0;
        for (int32_t j = 0; j < elements(inner); j++)
            total += in[place(outer, i) + place(inner, j)];
        out[i] = total;
    }
}

void poet_find_truths(uint8_t *out, const uint8_t *in, uint8_t wanted,
                      const struct poet_view *outer, const struct poet_view *inner)
{
    for (int32_t i = 0; i < elements(outer); i++) {
        out[i] = !wanted;
        for (int32_t j = 0; j < elements(inner); j++)
            if (in[place(outer, i) + place(inner, j)] == wanted)
                out[i] = wanted;
    }
}

/* ---- triangles, and rows that indices name ---- */

void poet_triangle(void *out, const void *in, int32_t matrices, int32_t rows, int32_t columns,
                   int32_t item_bytes, int32_t edge, int32_t is_lower)
{
    uint8_t *to = out;
    const uint8_t *from = in;
    for (int32_t i = 0; i < matrices * rows; i++) {
        int32_t at = i % rows + edge;
        int32_t left = (at < 0 ? 0 : at > columns ? columns : at) * item_bytes;
        int32_t right = columns * item_bytes - left;
        poet_copy_bytes(to, from, columns * item_bytes);
        poet_fill_bytes(is_lower ? to + left : to, 0, is_lower ? right : left);
        to += columns * item_bytes;
        from += columns * item_bytes;
    }
}

/* Which row a pair of indices names; those below 0 count from the end. */
static int32_t named(int64_t a, int64_t b, const struct poet_rows *shape)
{
    int32_t row = poet_index_of(a < 0 ? a + shape->a_extent : a, shape->a_extent);
    return row * shape->b_extent + poet_index_of(b < 0 ? b + shape->b_extent : b, shape->b_extent);
}

void poet_pick_rows(void *out, const void *in, const int64_t *a, const int64_t *b,
                    const struct poet_rows *shape, const struct poet_view *a_view,
                    const struct poet_view *b_view)
{
    uint8_t *to = out;
    const uint8_t *from = in;
    FOR_EACH(a_view)
    {
        poet_copy_bytes(to, from + named(AT(a), AT(b), shape) * shape->row_bytes, shape->row_bytes);
        to += shape->row_bytes;
    }
}

void poet_add_rows(float *out, const float *in, const int64_t *a, const int64_t *b,
                   const struct poet_rows *shape, const struct poet_view *a_view,
                   const struct poet_view *b_view)
{
    int32_t columns = shape->row_bytes / 4;
    FOR_EACH(a_view)
    {
        float *to = out + named(AT(a), AT(b), shape) * columns;
        poet_add(to, to, in, 1.0f, columns);
        in += columns;
    }
}
