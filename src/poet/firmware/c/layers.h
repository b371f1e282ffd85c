/* More kernels: functions of single elements, losses made of them, norms of groups, images made
 * larger, borders, recurrence. The same rules as in kernels.h.
 */
#ifndef POET_LAYERS_H
#define POET_LAYERS_H

#include "kernels.h"

/* ---- each.c: out = function(x, y, z), element by element; of those that are not needed, NULL ---- */

struct poet_numbers {
    float value[3];
};
typedef float poet_function(float x, float y, float z, const float *numbers);
void poet_each(float *out, poet_function *function, const float *x, const float *y, const float *z,
               const struct poet_numbers *numbers, const struct poet_view *out_view,
               const struct poet_view *x_view, const struct poet_view *y_view, const struct poet_view *z_view);

/* A loss of a term an element, by its weight, summed: `divisor` makes it a mean. The third element
 * is a weight of what is positive. Its gradient is the slope of each term, by the weight. */
struct poet_loss {
    float divisor;
    struct poet_numbers numbers;
    struct poet_view in, target, weight, positive;
};
void poet_loss(float *out, poet_function *term, const float *in, const float *target,
               const float *weight, const float *positive, const struct poet_loss *shape);
void poet_loss_gradient(float *out, poet_function *slope, const float *gradient, const float *in,
                        const float *target, const float *weight, const struct poet_loss *shape,
                        const struct poet_view *out_view, const struct poet_view *gradient_view);

/* ---- functions.c ---- */
poet_function poet_absolute, poet_sign, poet_exp_of, poet_expm1_of, poet_log_of, poet_log1p_of,
    poet_sqrt_of, poet_rsqrt_of, poet_reciprocal, poet_relu_of, poet_clamp_of, poet_tanh_of,
    poet_sigmoid_of, poet_silu_of, poet_threshold, poet_leaky_relu, poet_elu, poet_softplus,
    poet_mish, poet_hardswish, poet_hardsigmoid, poet_hardshrink, poet_softshrink,
    poet_log_sigmoid, poet_exp_of_minus_size, poet_most, poet_least, poet_xlogy, poet_product,
    poet_gated, poet_prelu, poet_sine, poet_cosine;
/* Slopes: x is the gradient of the result, y what the function was given, or what it gave. */
poet_function poet_relu_slope, poet_clamp_slope, poet_tanh_slope, poet_sigmoid_slope,
    poet_silu_slope, poet_leaky_relu_slope, poet_elu_slope, poet_elu_slope_of_result,
    poet_softplus_slope, poet_mish_slope, poet_hardswish_slope, poet_hardsigmoid_slope,
    poet_shrink_slope, poet_log_sigmoid_slope, poet_gate_slope, poet_prelu_slope,
    poet_prelu_weight_slope;
/* Terms of losses and their slopes: x is what the network says, y what is true. */
poet_function poet_mse_term, poet_mse_slope, poet_smooth_term, poet_smooth_slope, poet_huber_term,
    poet_huber_slope, poet_bce_term, poet_bce_slope, poet_logits_term, poet_margin_term,
    poet_margin_slope;

/* ---- conv_view.c: convolutions of tensors that are not row-major ---- */
struct poet_conv_view {
    int32_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, groups;
    struct poet_view in, weight, out;
};
void poet_conv_view(float *out, const float *in, const float *weight, const float *bias,
                    const struct poet_conv_view *shape);
/* With a bias it is a transposed convolution. */
void poet_conv_view_input_gradient(float *in_gradient, const float *gradient, const float *weight,
                                   const float *bias, const struct poet_conv_view *shape);
void poet_conv_view_weight_gradient(float *weight_gradient, const float *gradient, const float *in,
                                    const struct poet_conv_view *shape);

/* ---- group_norm.c: area: pixels of one channel of one sample ---- */
struct poet_group_norm {
    int32_t batch, channels, groups, area;
    float epsilon;
};
void poet_group_norm(float *out, float *mean, float *inverse, const float *in, const float *weight,
                     const float *bias, const struct poet_group_norm *shape);
void poet_group_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                              const float *gradient, const float *in, const float *mean,
                              const float *inverse, const float *weight,
                              const struct poet_group_norm *shape);

/* ---- layer_norm_view.c: a row is the last dimension of each view ---- */
void poet_layer_norm_view_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                                   const float *gradient, const float *in, const float *mean,
                                   const float *inverse, const float *weight,
                                   const struct poet_view *gradient_view,
                                   const struct poet_view *in_view);

/* ---- resize.c: a scale is from a place in the result to one in what it is made of ---- */
struct poet_resize {
    int32_t planes, height, width, out_height, out_width, is_at_corners;
    float scale_y, scale_x, offset;
};
void poet_nearest(float *out, const float *in, const struct poet_resize *shape);
void poet_nearest_gradient(float *in_gradient, const float *gradient,
                           const struct poet_resize *shape);
void poet_bilinear(float *out, const float *in, const struct poet_resize *shape);
void poet_bilinear_gradient(float *in_gradient, const float *gradient,
                            const struct poet_resize *shape);

/* ---- places.c ---- */

/* Along one dimension an index says where: from 0 to extent - 1, so far apart. In the view of the
 * tensor that it points into this dimension has a stride of 0. */
struct poet_places {
    int32_t extent, stride;
    int32_t is_sum; /* of scatter: what comes is added */
};
void poet_gather(float *out, const float *in, const int64_t *at, const struct poet_places *shape,
                 const struct poet_view *out_view, const struct poet_view *in_view,
                 const struct poet_view *at_view);
void poet_scatter(float *out, const float *in, const int64_t *at, const struct poet_places *shape,
                  const struct poet_view *out_view, const struct poet_view *in_view,
                  const struct poet_view *at_view);
/* The largest or the least of the elements of `inner`, for each index of `outer`, and its place
 * there; either may be NULL. */
void poet_extreme(float *out, int64_t *at, const float *in, int32_t is_least,
                  const struct poet_view *outer, const struct poet_view *inner);
void poet_length(float *out, const float *in, int32_t is_of_squares, const struct poet_view *outer,
                 const struct poet_view *inner);
/* Adds rows to those of a table that are named for each. */
void poet_add_rows_view(float *out, const float *in, const int64_t *rows, int32_t table_rows,
                        int64_t ignored, const struct poet_view *in_view,
                        const struct poet_view *rows_view);

/* ---- softmax.c ---- */
void poet_softmax_across(float *out, const float *in, int32_t rows, int32_t classes, int32_t area);
void poet_softmax_across_gradient(float *out, const float *gradient, const float *result,
                                  int32_t rows, int32_t classes, int32_t area);

/* ---- weighted_loss.c: scores are [row][class][pixel], targets [row][pixel] ---- */
struct poet_classes {
    int32_t rows, classes, area;
    int32_t is_mean, is_each; /* or a sum */
    int64_t ignored;
};
void poet_weighted_nll(float *loss, float *counted, const float *in, const int64_t *target,
                       const float *weight, const struct poet_classes *shape);
void poet_weighted_nll_gradient(float *out, const float *gradient, const int64_t *target,
                                const float *weight, const float *counted,
                                const struct poet_classes *shape,
                                const struct poet_view *gradient_view);
/* Margins between the score of what is true and those of all other classes. */
struct poet_margins {
    int32_t rows, classes, is_squared;
    int32_t is_mean, is_each; /* or a sum */
    int32_t gradient_step;    /* from a row's gradient to the next one's */
    float margin;
};
void poet_margins(float *loss, const float *in, const int64_t *target, const float *weight,
                  const struct poet_margins *shape);
void poet_margins_gradient(float *out, const float *gradient, const float *in,
                           const int64_t *target, const float *weight,
                           const struct poet_margins *shape);

/* ---- adaptive_max.c ---- */
void poet_adaptive_max(float *out, int64_t *at, const float *in, const struct poet_pool *shape);

/* ---- recurrent.c: states are [moment][sample][unit] ---- */
struct poet_lstm {
    int32_t moments, batch, inputs, hidden, is_reversed;
    int32_t in_moment, in_sample, in_element; /* strides of the input ... */
    int32_t gradient_moment, gradient_sample, gradient_element;
};
/* `memory` keeps what the gradient needs: five numbers for each unit at each moment, and room for
 * four more for each unit of a moment. */
void poet_lstm(float *out, float *last, float *last_cell, void *memory, const float *in,
               const float *in_weight, const float *weight, const float *in_bias,
               const float *bias, const float *first, const float *first_cell,
               const struct poet_lstm *shape);
/* Gradients of results that nobody reads are NULL, as are those that nobody wants. */
void poet_lstm_gradient(float *to_in, float *to_in_weight, float *to_weight, float *to_in_bias,
                        float *to_bias, float *to_first, float *to_first_cell,
                        const float *gradient, const float *last, const float *last_cell,
                        const float *in, const float *in_weight, const float *weight,
                        const float *out, const float *first, const float *first_cell, void *memory,
                        const struct poet_lstm *shape);

#endif
