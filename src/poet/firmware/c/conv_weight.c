/* The gradients of a convolution's weights and bias. */
#include "conv.h"
#include "helium.h"

/* Output channels whose gradients are summed at once. Where floats have no registers a tile of 4 by
 * 4 would lie on the stack, for next to nothing. Each sum is its own, so the bits are the same. */
#if POET_HAS_FLOATS
enum { OUTS = 4 };
#else
enum { OUTS = 1 };
#endif

/* One tap of the weight gradient for some output and input channels: a sum over all pixels. */
POET_INLINE void tap_gradient(const int outs, const int ins, float *weight_gradient,
                              const float *gradient, const float *in, const struct poet_conv *s,
                              const int32_t stride_x, int32_t ky, int32_t kx, int32_t is_more)
{
    int32_t channels = s->channels / s->groups, taps = s->kernel_height * s->kernel_width;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    const struct poet_tap tap = poet_tap_of(s, ky, kx);
    int32_t columns = tap.columns;
    int32_t next_y = s->out_width - columns;
    int32_t next_x = s->stride_y * s->width - columns * stride_x;
    float *to = weight_gradient + ky * s->kernel_width + kx, total[16];
#pragma GCC unroll 4
    for (int i = 0; i < outs; i++)
#pragma GCC unroll 4
        for (int j = 0; j < ins; j++)
            total[i * ins + j] = is_more ? to[(i * channels + j) * taps] : 0.0f;
    for (int32_t sample = 0; sample < s->batch; sample++) {
        const float *y[4], *x[4];
#pragma GCC unroll 4
        for (int i = 0; i < outs; i++)
            y[i] = gradient + (sample * s->out_planes + i) * out_area + tap.first * s->out_width +
                   tap.begin;
#pragma GCC unroll 4
        for (int j = 0; j < ins; j++)
            x[j] = in + (sample * s->channels + j) * area +
                   (tap.first * s->stride_y + tap.down) * s->width + tap.begin * stride_x +
                   tap.across;
        int32_t row = tap.first;
        while (row < tap.beyond && columns > 0) {
            int32_t stop = poet_part_end(&tap, row);
            float part[16];
#pragma GCC unroll 16
            for (int i = 0; i < outs * ins; i++)
                part[i] = 0.0f;
            for (; row < stop; row++) {
                for (int32_t column = columns; column > 0; column--) {
                    float left[4], right[4];
#pragma GCC unroll 4
                    for (int i = 0; i < outs; i++)
                        left[i] = *y[i]++;
#pragma GCC unroll 4
                    for (int j = 0; j < ins; j++) {
                        right[j] = *x[j];
                        x[j] += stride_x;
                    }
#pragma GCC unroll 4
                    for (int i = 0; i < outs; i++)
#pragma GCC unroll 4
                        for (int j = 0; j < ins; j++)
                            part[i * ins + j] += left[i] * right[j];
                }
#pragma GCC unroll 4
                for (int i = 0; i < outs; i++)
                    y[i] += next_y;
#pragma GCC unroll 4
                for (int j = 0; j < ins; j++)
                    x[j] += next_x;
            }
#pragma GCC unroll 16
            for (int i = 0; i < outs * ins; i++)
                total[i] += part[i];
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < outs; i++)
#pragma GCC unroll 4
        for (int j = 0; j < ins; j++)
            to[(i * channels + j) * taps] = total[i * ins + j];
}

POET_INLINE void taps_gradient(const int outs, const int ins, float *weight_gradient,
                               const float *gradient, const float *in, const struct poet_conv *s,
                               int32_t is_more)
{
    for (int32_t ky = 0; ky < s->kernel_height; ky++)
        for (int32_t kx = 0; kx < s->kernel_width; kx++) {
            if (s->stride_x == 1)
                tap_gradient(outs, ins, weight_gradient, gradient, in, s, 1, ky, kx, is_more);
            else
                tap_gradient(outs, ins, weight_gradient, gradient, in, s, s->stride_x, ky, kx,
                             is_more);
        }
}

static void gradient_4x4(float *to, const float *gradient, const float *in,
                         const struct poet_conv *s, int32_t is_more)
{
    taps_gradient(4, 4, to, gradient, in, s, is_more);
}

static void gradient_4x1(float *to, const float *gradient, const float *in,
                         const struct poet_conv *s, int32_t is_more)
{
    taps_gradient(4, 1, to, gradient, in, s, is_more);
}

static void gradient_1x4(float *to, const float *gradient, const float *in,
                         const struct poet_conv *s, int32_t is_more)
{
    taps_gradient(1, 4, to, gradient, in, s, is_more);
}

static void gradient_1x1(float *to, const float *gradient, const float *in,
                         const struct poet_conv *s, int32_t is_more)
{
    taps_gradient(1, 1, to, gradient, in, s, is_more);
}

void poet_conv_weight_gradient(float *weight_gradient, const float *gradient, const float *in,
                               const struct poet_conv *shape)
{
    poet_conv_weight_gradient_part(weight_gradient, gradient, in, shape, 0);
}

void poet_conv_weight_gradient_part(float *weight_gradient, const float *gradient, const float *in,
                                    const struct poet_conv *shape, int32_t is_more)
{
    const struct poet_conv *s = shape;
    int32_t channels = s->channels / s->groups, out_channels = s->out_channels / s->groups;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    int32_t taps = s->kernel_height * s->kernel_width;
    int32_t first = 0; /* group that vectors leave */
    if (POET_HELIUM && channels == 1 && out_channels == 1 && s->groups >= 4)
        first = poet_helium_depthwise(weight_gradient, gradient, in, s, is_more);
    for (int32_t group = first; group < s->groups; group++) {
        const float *x = in + group * channels * area;
        int32_t o = group * out_channels, beyond = o + out_channels;
        for (; OUTS == 4 && o + 4 <= beyond; o += 4) {
            const float *y = gradient + o * out_area;
            float *to = weight_gradient + o * channels * taps;
            int32_t i = 0;
            for (; i + 4 <= channels; i += 4)
                if (!POET_HELIUM || !poet_helium_weights(to + i * taps, y, x + i * area, s, is_more))
                    gradient_4x4(to + i * taps, y, x + i * area, s, is_more);
            for (; i < channels; i++)
                gradient_4x1(to + i * taps, y, x + i * area, s, is_more);
        }
        for (; o < beyond; o++) {
            const float *y = gradient + o * out_area;
            float *to = weight_gradient + o * channels * taps;
            int32_t i = 0;
            for (; i + 4 <= channels; i += 4)
                gradient_1x4(to + i * taps, y, x + i * area, s, is_more);
            for (; i < channels; i++)
                gradient_1x1(to + i * taps, y, x + i * area, s, is_more);
        }
    }
}

void poet_conv_bias_gradient(float *bias_gradient, const float *gradient,
                             const struct poet_conv *shape)
{
    poet_conv_bias_gradient_part(bias_gradient, gradient, shape, 0);
}

void poet_conv_bias_gradient_part(float *bias_gradient, const float *gradient,
                                  const struct poet_conv *shape, int32_t is_more)
{
    const struct poet_conv *s = shape;
    for (int32_t channel = 0; channel < s->out_channels; channel++) {
        float total = is_more ? bias_gradient[channel] : 0.0f;
        for (int32_t sample = 0; sample < s->batch; sample++) {
            const float *y = gradient + (sample * s->out_planes + channel) * s->out_height *
                                            s->out_width;
            for (int32_t row = 0; row < s->out_height; row++) {
                float part = 0.0f;
                for (int32_t column = 0; column < s->out_width; column++)
                    part += *y++;
                total += part;
            }
        }
        bias_gradient[channel] = total;
    }
}
