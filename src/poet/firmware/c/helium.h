/* Products on processors with vectors of four floats (Arm's Helium, MVE), by multiplying and adding
 * apart and in the order of the plain loops. */
#ifndef POET_HELIUM_H
#define POET_HELIUM_H

#include "kernels.h"

#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#define POET_HELIUM 1
#else
#define POET_HELIUM 0
#endif

struct poet_walk; /* conv.h */
struct poet_axis;
struct poet_tap;

/* One block of products for all of `out`, as poet_matmul does it. */
void poet_helium_block(float *out, const float *a, const float *b, const float *row,
                       const struct poet_matmul *shape, int32_t is_first, int32_t count);
/* The sums of poet_conv_sums: returns 0, and does nothing, where taps are not next to each other in
 * what is read, or more than three by three. */
int32_t poet_helium_sums(float *out, const float *from, const float *weight,
                         const struct poet_walk *walk);
/* Two channels at some vectors of neighbouring pixels of a line. */
typedef void poet_helium_line(float *out, const float *from, const float *weight,
                              const struct poet_walk *walk, int32_t vectors);
/* Finds one for rows of three taps that lie side by side; returns 0 for others. */
int32_t poet_helium_three(poet_helium_line **found, const struct poet_walk *walk);
/* The same sums one by one. */
void poet_conv_plain(float *out, const float *from, const float *weight,
                     const struct poet_walk *walk);
/* Weight gradients of four output channels by four input channels: returns 0, and does nothing, for
 * strides larger than 2. */
int32_t poet_helium_weights(float *weight_gradient, const float *gradient, const float *in,
                            const struct poet_conv *shape, int32_t is_more);
/* Channels that read one plane each, or all the same one, by fours: returns how many are done. */
int32_t poet_helium_plane(float *out, const float *from, const float *weight,
                          const struct poet_walk *walk);
/* One weight, by plain loops. */
void poet_weight_plain(float *to, const float *gradient, const float *in,
                       const struct poet_conv *shape, const struct poet_tap *tap, int32_t is_more);
/* Weight gradients of a depthwise convolution, four channels at a time: returns how many are done. */
int32_t poet_helium_depthwise(float *weight_gradient, const float *gradient, const float *in,
                              const struct poet_conv *shape, int32_t is_more);
/* The same as poet_conv_planes, for stride 1. */
int32_t poet_helium_lines(float *out, const float *from, const float *weight,
                          const struct poet_walk *walk, const struct poet_axis *down,
                          const struct poet_axis *across);

#endif
