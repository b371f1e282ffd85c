/* The gradients of a convolution's weights and bias. */
#include "kernels.h"

/* One tap of the weight gradient for some output and input channels: a sum over all pixels, in
 * parts of some rows each. */
enum { PART = 64 };

INLINE void tap_gradient(const int outs, const int ins, float *weight_gradient,
                         const float *gradient, const float *in, const struct conv *s,
                         const int32_t stride_x, int32_t ky, int32_t kx)
{
    int32_t channels = s->channels / s->groups, taps = s->kernel_height * s->kernel_width;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    /* Output columns and rows for which this tap lies inside the image. */
    int32_t across = kx * s->dilation_x - s->pad_x, down = ky * s->dilation_y - s->pad_y;
    int32_t begin = across < 0 ? at_least(-across, s->stride_x) : 0;
    int32_t end = s->width > across ? at_least(s->width - across, s->stride_x) : 0;
    int32_t first = down < 0 ? at_least(-down, s->stride_y) : 0;
    int32_t beyond = s->height > down ? at_least(s->height - down, s->stride_y) : 0;
    if (end > s->out_width)
        end = s->out_width;
    if (beyond > s->out_height)
        beyond = s->out_height;
    int32_t columns = end > begin ? end - begin : 0;
    int32_t rows_a_part = columns > 0 ? (PART + columns - 1) / columns : 1;
    int32_t next_y = s->out_width - columns;
    int32_t next_x = s->stride_y * s->width - columns * stride_x;
    float total[16];
#pragma GCC unroll 16
    for (int i = 0; i < outs * ins; i++)
        total[i] = 0.0f;
    for (int32_t sample = 0; sample < s->batch; sample++) {
        const float *y[4], *x[4];
#pragma GCC unroll 4
        for (int i = 0; i < outs; i++)
            y[i] = gradient + (sample * s->out_planes + i) * out_area + first * s->out_width +
                   begin;
#pragma GCC unroll 4
        for (int j = 0; j < ins; j++)
            x[j] = in + (sample * s->channels + j) * area +
                   (first * s->stride_y + down) * s->width + begin * stride_x + across;
        int32_t row = first;
        while (row < beyond && columns > 0) {
            int32_t stop = row + rows_a_part < beyond ? row + rows_a_part : beyond;
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
    int32_t tap = ky * s->kernel_width + kx;
#pragma GCC unroll 4
    for (int i = 0; i < outs; i++)
#pragma GCC unroll 4
        for (int j = 0; j < ins; j++)
            weight_gradient[(i * channels + j) * taps + tap] = total[i * ins + j];
}

INLINE void taps_gradient(const int outs, const int ins, float *weight_gradient,
                          const float *gradient, const float *in, const struct conv *s)
{
    for (int32_t ky = 0; ky < s->kernel_height; ky++)
        for (int32_t kx = 0; kx < s->kernel_width; kx++) {
            if (s->stride_x == 1)
                tap_gradient(outs, ins, weight_gradient, gradient, in, s, 1, ky, kx);
            else
                tap_gradient(outs, ins, weight_gradient, gradient, in, s, s->stride_x, ky, kx);
        }
}

static void gradient_4x4(float *to, const float *gradient, const float *in, const struct conv *s)
{
    taps_gradient(4, 4, to, gradient, in, s);
}

static void gradient_4x1(float *to, const float *gradient, const float *in, const struct conv *s)
{
    taps_gradient(4, 1, to, gradient, in, s);
}

static void gradient_1x4(float *to, const float *gradient, const float *in, const struct conv *s)
{
    taps_gradient(1, 4, to, gradient, in, s);
}

static void gradient_1x1(float *to, const float *gradient, const float *in, const struct conv *s)
{
    taps_gradient(1, 1, to, gradient, in, s);
}

void conv_weight_gradient(float *weight_gradient, const float *gradient, const float *in,
                          const struct conv *shape)
{
    const struct conv *s = shape;
    int32_t channels = s->channels / s->groups, out_channels = s->out_channels / s->groups;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    int32_t taps = s->kernel_height * s->kernel_width;
    for (int32_t group = 0; group < s->groups; group++) {
        const float *x = in + group * channels * area;
        int32_t o = group * out_channels, beyond = o + out_channels;
        for (; o + 4 <= beyond; o += 4) {
            const float *y = gradient + o * out_area;
            float *to = weight_gradient + o * channels * taps;
            int32_t i = 0;
            for (; i + 4 <= channels; i += 4)
                gradient_4x4(to + i * taps, y, x + i * area, s);
            for (; i < channels; i++)
                gradient_4x1(to + i * taps, y, x + i * area, s);
        }
        for (; o < beyond; o++) {
            const float *y = gradient + o * out_area;
            float *to = weight_gradient + o * channels * taps;
            int32_t i = 0;
            for (; i + 4 <= channels; i += 4)
                gradient_1x4(to + i * taps, y, x + i * area, s);
            for (; i < channels; i++)
                gradient_1x1(to + i * taps, y, x + i * area, s);
        }
    }
}

void conv_bias_gradient(float *bias_gradient, const float *gradient, const struct conv *shape)
{
    const struct conv *s = shape;
    for (int32_t channel = 0; channel < s->out_channels; channel++) {
        float total = 0.0f;
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
