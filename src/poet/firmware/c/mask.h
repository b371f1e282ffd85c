/* Kernels of mask.c: whole numbers are int64_t, truths uint8_t, 0 or 1. */
#ifndef POET_MASK_H
#define POET_MASK_H

#include "kernels.h"

/* Whether a to b is one of the `wanted`: say, LESS | EQUAL. */
enum { POET_LESS = 1, POET_EQUAL = 2, POET_GREATER = 4, POET_UNORDERED = 8 };
void poet_compare_floats(uint8_t *out, const float *a, const float *b, int32_t wanted,
                         const struct poet_view *out_view, const struct poet_view *a_view,
                         const struct poet_view *b_view);
void poet_compare_wholes(uint8_t *out, const int64_t *a, const int64_t *b, int32_t wanted,
                         const struct poet_view *out_view, const struct poet_view *a_view,
                         const struct poet_view *b_view);
void poet_compare_truths(uint8_t *out, const uint8_t *a, const uint8_t *b, int32_t wanted,
                         const struct poet_view *out_view, const struct poet_view *a_view,
                         const struct poet_view *b_view);
/* The truth of two by a table: its bit 2a + b. NOT is that of the first. */
enum { POET_NOT = 3, POET_XOR = 6, POET_AND = 8, POET_OR = 14 };
void poet_join_truths(uint8_t *out, const uint8_t *a, const uint8_t *b, int32_t table,
                      const struct poet_view *out_view, const struct poet_view *a_view,
                      const struct poet_view *b_view);
void poet_choose_floats(float *out, const uint8_t *condition, const float *a, const float *b,
                        const struct poet_view *out_view, const struct poet_view *condition_view,
                        const struct poet_view *a_view, const struct poet_view *b_view);
void poet_choose_wholes(int64_t *out, const uint8_t *condition, const int64_t *a, const int64_t *b,
                        const struct poet_view *out_view, const struct poet_view *condition_view,
                        const struct poet_view *a_view, const struct poet_view *b_view);
void poet_choose_truths(uint8_t *out, const uint8_t *condition, const uint8_t *a, const uint8_t *b,
                        const struct poet_view *out_view, const struct poet_view *condition_view,
                        const struct poet_view *a_view, const struct poet_view *b_view);
void poet_copy_wholes(int64_t *out, const int64_t *in, const struct poet_view *out_view,
                      const struct poet_view *in_view);
void poet_copy_truths(uint8_t *out, const uint8_t *in, const struct poet_view *out_view,
                      const struct poet_view *in_view);
void poet_floats_of_truths(float *out, const uint8_t *in, const struct poet_view *out_view,
                           const struct poet_view *in_view);
void poet_floats_of_wholes(float *out, const int64_t *in, const struct poet_view *out_view,
                           const struct poet_view *in_view);
void poet_wholes_of_truths(int64_t *out, const uint8_t *in, const struct poet_view *out_view,
                           const struct poet_view *in_view);
void poet_wholes_of_floats(int64_t *out, const float *in, const struct poet_view *out_view,
                           const struct poet_view *in_view);
void poet_add_wholes(int64_t *out, const int64_t *a, const int64_t *b, int64_t b_factor,
                     const struct poet_view *out_view, const struct poet_view *a_view,
                     const struct poet_view *b_view);
void poet_multiply_wholes(int64_t *out, const int64_t *a, const int64_t *b,
                          const struct poet_view *out_view, const struct poet_view *a_view,
                          const struct poet_view *b_view);
void poet_clamp_wholes(int64_t *out, const int64_t *in, int64_t low, int64_t high,
                       const struct poet_view *out_view, const struct poet_view *in_view);
void poet_count_up(int64_t *out, int64_t first, int64_t step, int32_t count);
/* Running sums, in place, along the middle one of three dimensions. */
void poet_sum_along(int64_t *out, int32_t outer, int32_t count, int32_t inner);
void poet_sum_wholes(int64_t *out, const int64_t *in, const struct poet_view *outer,
                     const struct poet_view *inner);
void poet_sum_truths(int64_t *out, const uint8_t *in, const struct poet_view *outer,
                     const struct poet_view *inner);
/* Whether any is true (wanted: 1), or all are (wanted: 0, for one that is not decides). */
void poet_find_truths(uint8_t *out, const uint8_t *in, uint8_t wanted,
                      const struct poet_view *outer, const struct poet_view *inner);
/* Keeps what is left of the edge, which is at column `edge` in the first row and one further in
 * each of the next; or, if not `is_lower`, what is right of it. */
void poet_triangle(void *out, const void *in, int32_t matrices, int32_t rows, int32_t columns,
                   int32_t item_bytes, int32_t edge, int32_t is_lower);
/* Rows of in[a_extent][b_extent] that pairs of indices name, one after another; or such rows, each
 * added to its place. */
struct poet_rows {
    int32_t a_extent, b_extent, row_bytes;
};
void poet_pick_rows(void *out, const void *in, const int64_t *a, const int64_t *b,
                    const struct poet_rows *shape, const struct poet_view *a_view,
                    const struct poet_view *b_view);
void poet_add_rows(float *out, const float *in, const int64_t *a, const int64_t *b,
                   const struct poet_rows *shape, const struct poet_view *a_view,
                   const struct poet_view *b_view);

#endif
