/* Kernels of a training step: plain float32 C, no libm, no malloc.
 *
 * Every kernel adds in an order that depends on shapes alone, and no product is fused with a sum by
 * the compiler (build with -ffp-contract=off), so that all processors give the same bits. Long sums
 * are made of short ones, to lose less to rounding.
 *
 * Tensors are row-major unless a view says otherwise; images are [batch][channel][row][column].
 */
#ifndef POET_KERNELS_H
#define POET_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

/* value / divisor, rounded up; value > 0 */
INLINE int32_t at_least(int32_t value, int32_t divisor)
{
    return divisor == 1 ? value : (value + divisor - 1) / divisor;
}

/* Numbers that data brings, such as labels: one that is not from 0 to extent - 1 ends the program,
 * where PyTorch raises an error. */
__attribute__((noreturn)) void no_such_index(int64_t index, int32_t extent); /* train.c */
INLINE int32_t index_of(int64_t index, int32_t extent)
{
    if (index < 0 || index >= extent)
        no_such_index(index, extent);
    return (int32_t)index;
}

/* Up to four dimensions of a tensor, the last the fastest; strides in elements. */
enum { DIMS = 4 };
struct view {
    int32_t size[DIMS];
    int32_t stride[DIMS];
};

/* Walks the first three dimensions; the body has the offsets of each row and its length. */
#define FOR_ROWS(v)                                                                                \
    for (int32_t i0 = 0; i0 < (v)->size[0]; i0++)                                                  \
        for (int32_t i1 = 0; i1 < (v)->size[1]; i1++)                                              \
            for (int32_t i2 = 0; i2 < (v)->size[2]; i2++)

#define ROW(v) (i0 * (v)->stride[0] + i1 * (v)->stride[1] + i2 * (v)->stride[2])

/* Constants with an address, for what takes tensors. */
struct real { float value; };
struct whole { int64_t value; };
struct truth { uint8_t value; };

/* ---- arithmetic.c ---- */
float poet_exp(float x);
float poet_log(float x);
float poet_sqrt(float x);
float poet_tanh(float x);
float poet_sigmoid(float x);

/* ---- matmul.c ---- */

/* out[m][n] = row[n] (or 0) + sum over k of a[m][k] * b[k][n]; strides in elements. `block`
 * products are summed before they are added to the result. */
struct matmul {
    int32_t m, n, k;
    int32_t a_row, a_column, b_row, b_column, out_row;
    int32_t block;
};
void matmul(float *out, const float *a, const float *b, const float *row, const struct matmul *shape);
/* A part of a sum over k: the first, or, where `is_more`, one that is added to what is in `out`. A
 * sum in parts of whole blocks has the same bits as one over all of k. */
void matmul_part(float *out, const float *a, const float *b, const float *row,
                 const struct matmul *shape, int32_t is_more);

/* ---- conv.c ---- */
struct conv {
    int32_t batch, groups;
    int32_t channels, height, width;             /* of the input */
    int32_t out_channels, out_height, out_width; /* of the output */
    int32_t kernel_height, kernel_width;
    int32_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
    /* A tile: `out_channels` of the output's `out_planes`, with the weights of those alone. */
    int32_t out_planes;
    int32_t block; /* of a product, if it is one: see above */
    int32_t is_product; /* one tap that meets every pixel: a product of matrices */
};
void conv(float *out, const float *in, const float *weight, const float *bias,
          const struct conv *shape);
void conv_input_gradient(float *in_gradient, const float *gradient, const float *weight,
                         const struct conv *shape);
/* A part of the sums over input channels; the bias belongs to the last one. */
void conv_part(float *out, const float *in, const float *weight, const float *bias,
               const struct conv *shape, int32_t is_more, int32_t is_last);
/* A part of the sums over output channels: tile after tile they have the same bits as all at once. */
void conv_input_gradient_part(float *in_gradient, const float *gradient, const float *weight,
                              const struct conv *shape, int32_t is_more);
void conv_weight_gradient(float *weight_gradient, const float *gradient, const float *in,
                          const struct conv *shape);
void conv_bias_gradient(float *bias_gradient, const float *gradient, const struct conv *shape);
/* A part of the sums over pixels: blocks of rows and samples in order, the same bits again. */
void conv_weight_gradient_part(float *weight_gradient, const float *gradient, const float *in,
                               const struct conv *shape, int32_t is_more);
void conv_bias_gradient_part(float *bias_gradient, const float *gradient, const struct conv *shape,
                             int32_t is_more);

/* ---- norm.c ---- */
struct norm {
    int32_t batch, channels, area; /* area: pixels of one channel of one sample */
    float momentum, epsilon;
};
void batch_norm(float *out, float *mean, float *inverse, float *new_mean, float *new_variance,
                const float *in, const float *weight, const float *bias, const float *old_mean,
                const float *old_variance, const struct norm *shape);
void batch_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                         const float *gradient, const float *in, const float *weight,
                         const float *mean, const float *inverse, const struct norm *shape);
void batch_norm_fixed(float *out, const float *in, const float *weight, const float *bias,
                      const float *mean, const float *variance, const struct norm *shape);
void batch_norm_fixed_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                               const float *gradient, const float *in, const float *weight,
                               const float *mean, const float *variance, const struct norm *shape);
/* The same in passes over some pixels at a time, samples in order, with the bits of one pass: the
 * statistics, or the sums of gradients, and what is made with them. A sum is two numbers, the
 * second of which rounding would lose; a channel has two. */
struct sum {
    float total, lost;
};
enum { FIRST_PASS, SECOND_PASS, BOTH_PASSES };
struct norm_part {
    struct sum *sums;
    float count; /* of all pixels of a channel */
    int32_t pass, is_first, is_last;
    int32_t is_fixed; /* variances are given, not what they become: gradients alone */
};
void norm_statistics(float *mean, float *inverse, float *new_mean, float *new_variance,
                     const float *in, const float *old_mean, const float *old_variance,
                     const struct norm *shape, const struct norm_part *part);
void norm_apply(float *out, const float *in, const float *weight, const float *bias,
                const float *mean, const float *inverse, const struct norm *shape);
void norm_sums(float *weight_gradient, float *bias_gradient, const float *gradient,
               const float *in, const float *mean, const float *inverse,
               const struct norm *shape, const struct norm_part *part);
void norm_gradient(float *in_gradient, const float *gradient, const float *in,
                   const float *weight, const float *mean, const float *inverse,
                   const float *weight_gradient, const float *bias_gradient,
                   const struct norm *shape, const struct norm_part *part);

/* ---- pointwise.c ---- */
void relu(float *out, const float *in, int32_t count);
void relu_gradient(float *out, const float *gradient, const float *result, float threshold,
                   int32_t count);
void clamp(float *out, const float *in, float low, float high, int32_t count);
void clamp_gradient(float *out, const float *gradient, const float *in, float low, float high,
                    int32_t count);
void tanh_all(float *out, const float *in, int32_t count);
void tanh_gradient(float *out, const float *gradient, const float *result, int32_t count);
void sigmoid_all(float *out, const float *in, int32_t count);
void sigmoid_gradient(float *out, const float *gradient, const float *result, int32_t count);
void scale(float *out, const float *in, float factor, int32_t count);
void shift(float *out, const float *in, float term, int32_t count);
void divide_by(float *out, const float *in, float divisor, int32_t count);
void add(float *out, const float *a, const float *b, float b_factor, int32_t count);
void multiply(float *out, const float *a, const float *b, int32_t count);
void divide(float *out, const float *a, const float *b, int32_t count);
void fill(float *out, float value, int32_t count);
void fill_bytes(void *out, uint8_t value, int32_t count);
void copy_bytes(void *out, const void *in, int32_t count);
void add_whole(int64_t *out, const int64_t *in, int64_t term, int32_t count);
/* The same for tensors that are not row-major: one view each, sizes from the first. */
void copy_view(float *out, const float *in, const struct view *out_view, const struct view *in_view);
void add_view(float *out, const float *a, const float *b, float b_factor,
              const struct view *out_view, const struct view *a_view, const struct view *b_view);
void multiply_view(float *out, const float *a, const float *b, const struct view *out_view,
                   const struct view *a_view, const struct view *b_view);
void divide_view(float *out, const float *a, const float *b, const struct view *out_view,
                 const struct view *a_view, const struct view *b_view);

/* ---- mask.c: whole numbers are int64_t, truths uint8_t, 0 or 1 ---- */

/* Whether a to b is one of the `wanted`: say, LESS | EQUAL. */
enum { LESS = 1, EQUAL = 2, GREATER = 4, UNORDERED = 8 };
void compare_floats(uint8_t *out, const float *a, const float *b, int32_t wanted,
                    const struct view *out_view, const struct view *a_view,
                    const struct view *b_view);
void compare_wholes(uint8_t *out, const int64_t *a, const int64_t *b, int32_t wanted,
                    const struct view *out_view, const struct view *a_view,
                    const struct view *b_view);
void compare_truths(uint8_t *out, const uint8_t *a, const uint8_t *b, int32_t wanted,
                    const struct view *out_view, const struct view *a_view,
                    const struct view *b_view);
/* The truth of two by a table: its bit 2a + b. NOT is that of the first. */
enum { NOT = 3, XOR = 6, AND = 8, OR = 14 };
void join_truths(uint8_t *out, const uint8_t *a, const uint8_t *b, int32_t table,
                 const struct view *out_view, const struct view *a_view, const struct view *b_view);
void choose_floats(float *out, const uint8_t *condition, const float *a, const float *b,
                   const struct view *out_view, const struct view *condition_view,
                   const struct view *a_view, const struct view *b_view);
void choose_wholes(int64_t *out, const uint8_t *condition, const int64_t *a, const int64_t *b,
                   const struct view *out_view, const struct view *condition_view,
                   const struct view *a_view, const struct view *b_view);
void choose_truths(uint8_t *out, const uint8_t *condition, const uint8_t *a, const uint8_t *b,
                   const struct view *out_view, const struct view *condition_view,
                   const struct view *a_view, const struct view *b_view);
void copy_wholes(int64_t *out, const int64_t *in, const struct view *out_view,
                 const struct view *in_view);
void copy_truths(uint8_t *out, const uint8_t *in, const struct view *out_view,
                 const struct view *in_view);
void floats_of_truths(float *out, const uint8_t *in, const struct view *out_view,
                      const struct view *in_view);
void floats_of_wholes(float *out, const int64_t *in, const struct view *out_view,
                      const struct view *in_view);
void wholes_of_truths(int64_t *out, const uint8_t *in, const struct view *out_view,
                      const struct view *in_view);
void wholes_of_floats(int64_t *out, const float *in, const struct view *out_view,
                      const struct view *in_view);
void add_wholes(int64_t *out, const int64_t *a, const int64_t *b, int64_t b_factor,
                const struct view *out_view, const struct view *a_view, const struct view *b_view);
void multiply_wholes(int64_t *out, const int64_t *a, const int64_t *b, const struct view *out_view,
                     const struct view *a_view, const struct view *b_view);
void clamp_wholes(int64_t *out, const int64_t *in, int64_t low, int64_t high,
                  const struct view *out_view, const struct view *in_view);
void count_up(int64_t *out, int64_t first, int64_t step, int32_t count);
/* Running sums, in place, along the middle one of three dimensions. */
void sum_along(int64_t *out, int32_t outer, int32_t count, int32_t inner);
void sum_wholes(int64_t *out, const int64_t *in, const struct view *outer,
                const struct view *inner);
void sum_truths(int64_t *out, const uint8_t *in, const struct view *outer,
                const struct view *inner);
/* Whether any is true (wanted: 1), or all are (wanted: 0, for one that is not decides). */
void find_truths(uint8_t *out, const uint8_t *in, uint8_t wanted, const struct view *outer,
                 const struct view *inner);
/* Keeps what is left of the edge, which is at column `edge` in the first row and one further in
 * each of the next; or, if not `is_lower`, what is right of it. */
void triangle(void *out, const void *in, int32_t matrices, int32_t rows, int32_t columns,
              int32_t item_bytes, int32_t edge, int32_t is_lower);
/* Rows of in[a_extent][b_extent] that pairs of indices name, one after another; or such rows, each
 * added to its place. */
struct rows {
    int32_t a_extent, b_extent, row_bytes;
};
void pick_rows(void *out, const void *in, const int64_t *a, const int64_t *b,
               const struct rows *shape, const struct view *a_view, const struct view *b_view);
void add_rows(float *out, const float *in, const int64_t *a, const int64_t *b,
              const struct rows *shape, const struct view *a_view, const struct view *b_view);

/* ---- attention.c ---- */

/* Views are [batch][head][query or key][width], the mask's [batch][head][query][key]; rows of
 * results have no gaps. `sums` are the logarithms of the sums of the scores' exponentials. What is
 * masked everywhere gives zeros. */
struct attention {
    float scale;
    int32_t is_causal;
    struct view query, key, value, mask, out, sums;
    struct view gradient, query_gradient, key_gradient, value_gradient;
};
void attention(float *out, float *sums, const float *query, const float *key, const float *value,
               const float *mask, const struct attention *shape);
void attention_gradient(float *query_gradient, float *key_gradient, float *value_gradient,
                        const float *gradient, const float *query, const float *key,
                        const float *value, const float *out, const float *sums, const float *mask,
                        const struct attention *shape);
/* Blocks of queries and keys, each in order, give the same bits. `state` has two numbers a query
 * between blocks of keys. */
struct attention_part {
    int32_t first_query, first_key;
    int32_t more_queries, more_keys; /* whether others came before */
    int32_t is_last;                 /* whether no keys follow */
    float *state;
};
void attention_of_part(float *out, float *sums, const float *query, const float *key,
                       const float *value, const float *mask, const struct attention *shape,
                       const struct attention_part *part);
void attention_gradient_of_part(float *query_gradient, float *key_gradient, float *value_gradient,
                                const float *gradient, const float *query, const float *key,
                                const float *value, const float *out, const float *sums,
                                const float *mask, const struct attention *shape,
                                const struct attention_part *part);

/* ---- reduce.c ---- */

/* out = scale * sum of `in` over the dimensions of `inner`, for each index of `outer`. */
void sum_view(float *out, const float *in, const struct view *outer, const struct view *inner,
              float divisor);

/* The sum of a row, in parts. */
float sum_row(const float *in, int32_t count);

/* ---- pooling.c ---- */
struct pool {
    int32_t planes; /* batch times channels */
    int32_t height, width, out_height, out_width;
    int32_t kernel_height, kernel_width;
    int32_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
    int32_t count_padding, divisor; /* of averages: whether padding counts; a fixed divisor, or 0 */
};
void max_pool(float *out, int64_t *at, const float *in, const struct pool *shape);
void max_pool_gradient(float *in_gradient, const float *gradient, const int64_t *at,
                       const struct pool *shape);
/* Some rows of images and results: the first ones, and how many. */
struct pool_rows {
    int32_t first, rows, out_first, out_rows;
};
void max_pool_rows(float *out, int64_t *at, const float *in, const struct pool *shape,
                   const struct pool_rows *part);
void max_pool_gradient_rows(float *in_gradient, const float *gradient, const int64_t *at,
                            const struct pool *shape, const struct pool_rows *part);
void average_pool_rows(float *out, const float *in, const struct pool *shape,
                       const struct pool_rows *part);
void average_pool_gradient_rows(float *in_gradient, const float *gradient,
                                const struct pool *shape, const struct pool_rows *part);
void average_pool(float *out, const float *in, const struct pool *shape);
void average_pool_gradient(float *in_gradient, const float *gradient, const struct pool *shape);
void adaptive_pool(float *out, const float *in, const struct pool *shape);
void adaptive_pool_gradient(float *in_gradient, const float *gradient, const struct pool *shape);

/* ---- loss.c: scores are [row][class][pixel], targets [row][pixel]; area: pixels, or 1 ---- */
void log_softmax(float *out, const float *in, int32_t rows, int32_t classes, int32_t area);
void log_softmax_gradient(float *out, const float *gradient, const float *result, int32_t rows,
                          int32_t classes, int32_t area);
/* Mean (or sum) of the negative log-likelihoods where the target is not `ignored`. */
void nll_loss(float *loss, float *counted, const float *in, const int64_t *target, int32_t rows,
              int32_t classes, int32_t area, int64_t ignored, int32_t is_mean);
/* The same for some rows more; the result is ready with the last. */
void nll_loss_part(float *loss, float *counted, const float *in, const int64_t *target, int32_t rows,
                   int32_t classes, int32_t area, int64_t ignored, int32_t is_mean,
                   int32_t is_more, int32_t is_last);
void nll_loss_gradient(float *out, const float *gradient, const int64_t *target,
                       const float *counted, int32_t rows, int32_t classes, int32_t area,
                       int64_t ignored, int32_t is_mean);

/* ---- transformer.c ---- */
void layer_norm(float *out, float *mean, float *inverse, const float *in, const float *weight,
                const float *bias, int32_t rows, int32_t columns, float epsilon);
void layer_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                         const float *gradient, const float *in, const float *mean,
                         const float *inverse, const float *weight, int32_t rows, int32_t columns);
/* Some rows more, if not the first: gradients of weight and bias are added to. */
void layer_norm_gradient_part(float *in_gradient, float *weight_gradient, float *bias_gradient,
                              const float *gradient, const float *in, const float *mean,
                              const float *inverse, const float *weight, int32_t rows,
                              int32_t columns, int32_t is_more);
void softmax(float *out, const float *in, int32_t rows, int32_t columns);
void softmax_gradient(float *out, const float *gradient, const float *result, int32_t rows,
                      int32_t columns);
void gelu(float *out, const float *in, int32_t count);
void gelu_gradient(float *out, const float *gradient, const float *in, int32_t count);
void gelu_tanh(float *out, const float *in, int32_t count);
void gelu_tanh_gradient(float *out, const float *gradient, const float *in, int32_t count);
void silu(float *out, const float *in, int32_t count);
void silu_gradient(float *out, const float *gradient, const float *in, int32_t count);
void embedding(float *out, const float *table, const int64_t *rows, int32_t count, int32_t columns,
               int32_t table_rows);
void embedding_gradient(float *out, const float *gradient, const int64_t *rows, int32_t count,
                        int32_t columns, int32_t table_rows, int64_t ignored);
/* The gradient of some rows of the table from `first` on. */
void embedding_rows_gradient(float *out, const float *gradient, const int64_t *rows, int32_t count,
                             int32_t columns, int32_t first, int32_t table_rows, int64_t ignored);
/* The gradient of the row that index `at` names. Returns 0, and does nothing, if an earlier index
 * names the same row, or if it is `ignored`. */
int32_t embedding_row_gradient(float *out, const float *gradient, const int64_t *rows, int32_t at,
                               int32_t count, int32_t columns, int64_t ignored);
void gather_whole(int64_t *out, const int64_t *in, const int64_t *at, int32_t rows,
                  int32_t in_columns, int32_t columns);

/* ---- dropout.c ---- */

/* Keeps each element with a chance of `kept`, by a generator that counts: the same seed, step and
 * op give the same mask on every run. Kept ones become 1 / kept, the others 0. `first` is the place
 * of the first element in the mask. */
void dropout_mask(float *out, float kept, uint32_t seed, uint32_t step, uint32_t op, int32_t first,
                  int32_t count);

/* ---- update.c ---- */
struct sgd {
    float momentum, dampening, weight_decay;
    int32_t nesterov;
};
void sgd(float *parameter, const float *gradient, double learning_rate, const struct sgd *rule,
         int32_t count);
void sgd_momentum(float *parameter, float *buffer, const float *gradient, double learning_rate,
                  int64_t step, const struct sgd *rule, int32_t count);
/* Weight decay is added to the gradient, or, decoupled (AdamW), taken off the parameter. */
struct adam {
    double beta1, beta2, epsilon, weight_decay;
    int32_t is_decoupled;
};
void adam(float *parameter, float *mean, float *square, const float *gradient,
          double learning_rate, int64_t step, const struct adam *rule, int32_t count);

#endif
