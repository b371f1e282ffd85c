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

#define POET_INLINE static inline __attribute__((always_inline))

/* Whether the processor has registers for floats. */
#if defined(__ARM_ARCH) && !defined(__ARM_FP)
#define POET_HAS_FLOATS 0
#else
#define POET_HAS_FLOATS 1
#endif

/* Compilers would have one counter for several pointers, and add it to each of them at every turn. */
#define POET_KEEP(pointer) __asm__("" : "+r"(pointer))

/* value / divisor, rounded up; value > 0 */
POET_INLINE int32_t poet_at_least(int32_t value, int32_t divisor)
{
    return divisor == 1 ? value : (value + divisor - 1) / divisor;
}

/* Numbers that data brings, such as labels: where one is not from 0 to extent - 1, PyTorch raises an
 * error; here it is told of, and the kernel goes on with the first there is. */
void poet_no_such_index(int64_t index, int32_t extent); /* failures.c */
POET_INLINE int32_t poet_index_of(int64_t index, int32_t extent)
{
    if (index >= 0 && index < extent)
        return (int32_t)index;
    poet_no_such_index(index, extent);
    return 0;
}

/* A check in the model or its loss: where it fails, PyTorch raises an error; here it is told of. */
void poet_check_failed(uint32_t op); /* failures.c */
POET_INLINE void poet_required(int is_so, int is_wanted, uint32_t op)
{
    if (is_so != is_wanted)
        poet_check_failed(op);
}

/* Up to four dimensions of a tensor, the last the fastest; strides in elements. */
enum { POET_DIMS = 4 };
struct poet_view {
    int32_t size[POET_DIMS];
    int32_t stride[POET_DIMS];
};

/* Walks the first three dimensions; the body has the offsets of each row and its length. */
#define POET_FOR_ROWS(v)                                                                           \
    for (int32_t i0 = 0; i0 < (v)->size[0]; i0++)                                                  \
        for (int32_t i1 = 0; i1 < (v)->size[1]; i1++)                                              \
            for (int32_t i2 = 0; i2 < (v)->size[2]; i2++)

#define POET_ROW(v) (i0 * (v)->stride[0] + i1 * (v)->stride[1] + i2 * (v)->stride[2])

/* Constants with an address, for what takes tensors. */
struct poet_real {
    float value;
};
struct poet_whole {
    int64_t value;
};
struct poet_truth {
    uint8_t value;
};

/* ---- arithmetic.c ---- */
float poet_exp(float x);
float poet_expm1(float x);
float poet_log(float x);
float poet_log1p(float x);
float poet_sqrt(float x);
float poet_tanh(float x);
float poet_sigmoid(float x);

/* ---- matmul.c ---- */

/* out[m][n] = row[n] (or 0) + sum over k of a[m][k] * b[k][n]; strides in elements. `block`
 * products are summed before they are added to the result. */
struct poet_matmul {
    int32_t m, n, k;
    int32_t a_row, a_column, b_row, b_column, out_row;
    int32_t block;
};
void poet_matmul(float *out, const float *a, const float *b, const float *row,
                 const struct poet_matmul *shape);
/* A part of a sum over k: the first, or, where `is_more`, one that is added to what is in `out`. A
 * sum in parts of whole blocks has the same bits as one over all of k. */
void poet_matmul_part(float *out, const float *a, const float *b, const float *row,
                      const struct poet_matmul *shape, int32_t is_more);
/* One row, for a block of k: the first, or one that is added to what is in `out`. */
void poet_matmul_row(float *out, const float *a, const float *b, const float *row,
                     const struct poet_matmul *shape, int32_t is_first, int32_t count);

/* ---- conv.c ---- */
struct poet_conv {
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
void poet_conv(float *out, const float *in, const float *weight, const float *bias,
               const struct poet_conv *shape);
void poet_conv_input_gradient(float *in_gradient, const float *gradient, const float *weight,
                              const struct poet_conv *shape);
/* A part of the sums over input channels; the bias belongs to the last one. */
void poet_conv_part(float *out, const float *in, const float *weight, const float *bias,
                    const struct poet_conv *shape, int32_t is_more, int32_t is_last);
/* A part of the sums over output channels: tile after tile they have the same bits as all at once. */
void poet_conv_input_gradient_part(float *in_gradient, const float *gradient, const float *weight,
                                   const struct poet_conv *shape, int32_t is_more);
void poet_conv_weight_gradient(float *weight_gradient, const float *gradient, const float *in,
                               const struct poet_conv *shape);
void poet_conv_bias_gradient(float *bias_gradient, const float *gradient,
                             const struct poet_conv *shape);
/* A part of the sums over pixels: blocks of rows and samples in order, the same bits again. */
void poet_conv_weight_gradient_part(float *weight_gradient, const float *gradient, const float *in,
                                    const struct poet_conv *shape, int32_t is_more);
void poet_conv_bias_gradient_part(float *bias_gradient, const float *gradient,
                                  const struct poet_conv *shape, int32_t is_more);

/* ---- norm.c ---- */
struct poet_norm {
    int32_t batch, channels, area; /* area: pixels of one channel of one sample */
    int32_t gradient_gap;          /* elements between two samples of the gradient */
    float momentum, epsilon;
};
void poet_batch_norm(float *out, float *mean, float *inverse, float *new_mean, float *new_variance,
                     const float *in, const float *weight, const float *bias, const float *old_mean,
                     const float *old_variance, const struct poet_norm *shape);
void poet_batch_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                              const float *gradient, const float *in, const float *weight,
                              const float *mean, const float *inverse,
                              const struct poet_norm *shape);
void poet_batch_norm_fixed(float *out, const float *in, const float *weight, const float *bias,
                           const float *mean, const float *variance, const struct poet_norm *shape);
void poet_batch_norm_fixed_gradient(float *in_gradient, float *weight_gradient,
                                    float *bias_gradient, const float *gradient, const float *in,
                                    const float *weight, const float *mean, const float *variance,
                                    const struct poet_norm *shape);
/* The same in passes over some pixels at a time, samples in order, with the bits of one pass: the
 * statistics, or the sums of gradients, and what is made with them. A sum is two numbers, the
 * second of which rounding would lose; a channel has two. */
struct poet_sum {
    float total, lost;
};
enum { POET_FIRST_PASS, POET_SECOND_PASS, POET_BOTH_PASSES };
struct poet_norm_part {
    struct poet_sum *sums;
    float count; /* of all pixels of a channel */
    int32_t pass, is_first, is_last;
    int32_t is_fixed; /* variances are given, not what they become: gradients alone */
};
void poet_norm_statistics(float *mean, float *inverse, float *new_mean, float *new_variance,
                          const float *in, const float *old_mean, const float *old_variance,
                          const struct poet_norm *shape, const struct poet_norm_part *part);
void poet_norm_apply(float *out, const float *in, const float *weight, const float *bias,
                     const float *mean, const float *inverse, const struct poet_norm *shape);
void poet_norm_sums(float *weight_gradient, float *bias_gradient, const float *gradient,
                    const float *in, const float *mean, const float *inverse,
                    const struct poet_norm *shape, const struct poet_norm_part *part);
void poet_norm_gradient(float *in_gradient, const float *gradient, const float *in,
                        const float *weight, const float *mean, const float *inverse,
                        const float *weight_gradient, const float *bias_gradient,
                        const struct poet_norm *shape, const struct poet_norm_part *part);

/* ---- pointwise.c ---- */
void poet_relu(float *out, const float *in, int32_t count);
void poet_relu_gradient(float *out, const float *gradient, const float *result, float threshold,
                        int32_t count);
void poet_clamp(float *out, const float *in, float low, float high, int32_t count);
void poet_clamp_gradient(float *out, const float *gradient, const float *in, float low, float high,
                         int32_t count);
void poet_tanh_all(float *out, const float *in, int32_t count);
void poet_tanh_gradient(float *out, const float *gradient, const float *result, int32_t count);
void poet_sigmoid_all(float *out, const float *in, int32_t count);
void poet_sigmoid_gradient(float *out, const float *gradient, const float *result, int32_t count);
void poet_scale(float *out, const float *in, float factor, int32_t count);
void poet_shift(float *out, const float *in, float term, int32_t count);
void poet_divide_by(float *out, const float *in, float divisor, int32_t count);
void poet_add(float *out, const float *a, const float *b, float b_factor, int32_t count);
void poet_multiply(float *out, const float *a, const float *b, int32_t count);
void poet_divide(float *out, const float *a, const float *b, int32_t count);
void poet_fill(float *out, float value, int32_t count);
void poet_fill_bytes(void *out, uint8_t value, int32_t count);
void poet_copy_bytes(void *out, const void *in, int32_t count);
void poet_add_whole(int64_t *out, const int64_t *in, int64_t term, int32_t count);
/* The same for tensors that are not row-major: one view each, sizes from the first. */
void poet_copy_view(float *out, const float *in, const struct poet_view *out_view,
                    const struct poet_view *in_view);
void poet_add_view(float *out, const float *a, const float *b, float b_factor,
                   const struct poet_view *out_view, const struct poet_view *a_view,
                   const struct poet_view *b_view);
void poet_multiply_view(float *out, const float *a, const float *b,
                        const struct poet_view *out_view, const struct poet_view *a_view,
                        const struct poet_view *b_view);
void poet_divide_view(float *out, const float *a, const float *b, const struct poet_view *out_view,
                      const struct poet_view *a_view, const struct poet_view *b_view);

#include "mask.h"

/* ---- attention.c ---- */

/* Views are [batch][head][query or key][width], the mask's [batch][head][query][key]; rows of
 * results have no gaps. `sums` are the logarithms of the sums of the scores' exponentials. What is
 * masked everywhere gives zeros. */
struct poet_attention {
    float scale;
    int32_t is_causal;
    struct poet_view query, key, value, mask, out, sums;
    struct poet_view gradient, query_gradient, key_gradient, value_gradient;
};
void poet_attention(float *out, float *sums, const float *query, const float *key,
                    const float *value, const float *mask, const struct poet_attention *shape);
void poet_attention_gradient(float *query_gradient, float *key_gradient, float *value_gradient,
                             const float *gradient, const float *query, const float *key,
                             const float *value, const float *out, const float *sums,
                             const float *mask, const struct poet_attention *shape);
/* Blocks of queries and keys, each in order, give the same bits. `state` has two numbers a query
 * between blocks of keys. */
struct poet_attention_part {
    int32_t first_query, first_key;
    int32_t more_queries, more_keys; /* whether others came before */
    int32_t is_last;                 /* whether no keys follow */
    float *state;
};
void poet_attention_of_part(float *out, float *sums, const float *query, const float *key,
                            const float *value, const float *mask,
                            const struct poet_attention *shape,
                            const struct poet_attention_part *part);
void poet_attention_gradient_of_part(float *query_gradient, float *key_gradient,
                                     float *value_gradient, const float *gradient,
                                     const float *query, const float *key, const float *value,
                                     const float *out, const float *sums, const float *mask,
                                     const struct poet_attention *shape,
                                     const struct poet_attention_part *part);

/* ---- reduce.c ---- */

/* out = scale * sum of `in` over the dimensions of `inner`, for each index of `outer`. */
void poet_sum_view(float *out, const float *in, const struct poet_view *outer,
                   const struct poet_view *inner, float divisor);

/* The sum of a row, in parts. */
float poet_sum_row(const float *in, int32_t count);

/* ---- pooling.c ---- */
struct poet_pool {
    int32_t planes; /* batch times channels */
    int32_t height, width, out_height, out_width;
    int32_t kernel_height, kernel_width;
    int32_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
    int32_t count_padding, divisor; /* of averages: whether padding counts; a fixed divisor, or 0 */
};
void poet_max_pool(float *out, int64_t *at, const float *in, const struct poet_pool *shape);
void poet_max_pool_gradient(float *in_gradient, const float *gradient, const int64_t *at,
                            const struct poet_pool *shape);
/* Some rows of images and results: the first ones, and how many. */
struct poet_pool_rows {
    int32_t first, rows, out_first, out_rows;
};
void poet_max_pool_rows(float *out, int64_t *at, const float *in, const struct poet_pool *shape,
                        const struct poet_pool_rows *part);
void poet_max_pool_gradient_rows(float *in_gradient, const float *gradient, const int64_t *at,
                                 const struct poet_pool *shape, const struct poet_pool_rows *part);
void poet_average_pool_rows(float *out, const float *in, const struct poet_pool *shape,
                            const struct poet_pool_rows *part);
void poet_average_pool_gradient_rows(float *in_gradient, const float *gradient,
                                     const struct poet_pool *shape,
                                     const struct poet_pool_rows *part);
void poet_average_pool(float *out, const float *in, const struct poet_pool *shape);
void poet_average_pool_gradient(float *in_gradient, const float *gradient,
                                const struct poet_pool *shape);
void poet_adaptive_pool(float *out, const float *in, const struct poet_pool *shape);
void poet_adaptive_pool_gradient(float *in_gradient, const float *gradient,
                                 const struct poet_pool *shape);

/* ---- loss.c: scores are [row][class][pixel], targets [row][pixel]; area: pixels, or 1 ---- */
void poet_log_softmax(float *out, const float *in, int32_t rows, int32_t classes, int32_t area);
void poet_log_softmax_gradient(float *out, const float *gradient, const float *result, int32_t rows,
                               int32_t classes, int32_t area);
/* Mean (or sum) of the negative log-likelihoods where the target is not `ignored`. */
void poet_nll_loss(float *loss, float *counted, const float *in, const int64_t *target,
                   int32_t rows, int32_t classes, int32_t area, int64_t ignored, int32_t is_mean);
/* The same for some rows more; the result is ready with the last. */
void poet_nll_loss_part(float *loss, float *counted, const float *in, const int64_t *target,
                        int32_t rows, int32_t classes, int32_t area, int64_t ignored,
                        int32_t is_mean, int32_t is_more, int32_t is_last);
void poet_nll_loss_gradient(float *out, const float *gradient, const int64_t *target,
                            const float *counted, int32_t rows, int32_t classes, int32_t area,
                            int64_t ignored, int32_t is_mean);

/* ---- transformer.c ---- */
void poet_layer_norm(float *out, float *mean, float *inverse, const float *in, const float *weight,
                     const float *bias, int32_t rows, int32_t columns, float epsilon);
void poet_layer_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                              const float *gradient, const float *in, const float *mean,
                              const float *inverse, const float *weight, int32_t rows,
                              int32_t columns);
/* Some rows more, if not the first: gradients of weight and bias are added to. */
void poet_layer_norm_gradient_part(float *in_gradient, float *weight_gradient, float *bias_gradient,
                                   const float *gradient, const float *in, const float *mean,
                                   const float *inverse, const float *weight, int32_t rows,
                                   int32_t columns, int32_t is_more);
void poet_softmax(float *out, const float *in, int32_t rows, int32_t columns);
void poet_softmax_gradient(float *out, const float *gradient, const float *result, int32_t rows,
                           int32_t columns);
void poet_gelu(float *out, const float *in, int32_t count);
void poet_gelu_gradient(float *out, const float *gradient, const float *in, int32_t count);
void poet_gelu_tanh(float *out, const float *in, int32_t count);
void poet_gelu_tanh_gradient(float *out, const float *gradient, const float *in, int32_t count);
void poet_silu(float *out, const float *in, int32_t count);
void poet_silu_gradient(float *out, const float *gradient, const float *in, int32_t count);
void poet_embedding(float *out, const float *table, const int64_t *rows, int32_t count,
                    int32_t columns, int32_t table_rows);
void poet_embedding_gradient(float *out, const float *gradient, const int64_t *rows, int32_t count,
                             int32_t columns, int32_t table_rows, int64_t ignored);
/* The gradient of some rows of the table from `first` on. */
void poet_embedding_rows_gradient(float *out, const float *gradient, const int64_t *rows,
                                  int32_t count, int32_t columns, int32_t first, int32_t table_rows,
                                  int64_t ignored);
/* The gradient of the row that index `at` names. Returns 0, and does nothing, if an earlier index
 * names the same row, or if it is `ignored`. */
int32_t poet_embedding_row_gradient(float *out, const float *gradient, const int64_t *rows,
                                    int32_t at, int32_t count, int32_t columns, int64_t ignored);
void poet_gather_whole(int64_t *out, const int64_t *in, const int64_t *at, int32_t rows,
                       int32_t in_columns, int32_t columns);

/* ---- dropout.c ---- */

/* Keeps each element with a chance of `kept`, by a generator that counts: the same seed, step and
 * op give the same mask on every run. Kept ones become 1 / kept, the others 0. `first` is the place
 * of the first element in the mask. */
void poet_dropout_mask(float *out, float kept, uint32_t seed, uint32_t step, uint32_t op,
                       int32_t first, int32_t count);

/* ---- update.c ---- */
struct poet_sgd {
    float momentum, dampening, weight_decay;
    int32_t nesterov;
};
void poet_sgd(float *parameter, const float *gradient, double learning_rate,
              const struct poet_sgd *rule, int32_t count);
void poet_sgd_momentum(float *parameter, float *buffer, const float *gradient, double learning_rate,
                       int64_t step, const struct poet_sgd *rule, int32_t count);
/* Weight decay is added to the gradient, or, decoupled (AdamW), taken off the parameter. */
struct poet_adam {
    double beta1, beta2, epsilon, weight_decay;
    int32_t is_decoupled;
};
void poet_adam(float *parameter, float *mean, float *square, const float *gradient,
               double learning_rate, int64_t step, const struct poet_adam *rule, int32_t count);

#endif
