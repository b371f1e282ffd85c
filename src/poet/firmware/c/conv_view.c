/* Convolution and its gradients by plain loops, for tensors in any layout. */
#include "layers.h"

POET_INLINE int32_t at(const struct poet_view *view, int32_t a, int32_t b, int32_t c, int32_t d)
{
    const int32_t *step = view->stride;
    return a * step[0] + b * step[1] + c * step[2] + d * step[3];
}

/* Where a tap reads, or -1 outside of an image of this size. */
POET_INLINE int32_t reads(int32_t out, int32_t tap, int32_t stride, int32_t pad, int32_t dilation,
                     int32_t size)
{
    int32_t found = out * stride - pad + tap * dilation;
    return found < size ? found : -1;
}

/* What a tap of this pixel was read for, or -1. */
POET_INLINE int32_t read_for(int32_t in, int32_t tap, int32_t stride, int32_t pad, int32_t dilation,
                        int32_t size)
{
    int32_t found = in + pad - tap * dilation;
    if (found < 0 || found % stride != 0 || found / stride >= size)
        return -1;
    return found / stride;
}

/* One channel at one pixel: the taps of a plane, which are summed before they are added. */
static float taps(const float *in, const float *weight, int32_t y, int32_t x,
                  const struct poet_conv_view *s)
{
    float part = 0.0f;
    for (int32_t v = 0; v < s->weight.size[2]; v++) {
        int32_t row = reads(y, v, s->stride_y, s->pad_y, s->dilation_y, s->in.size[2]);
        for (int32_t u = 0; row >= 0 && u < s->weight.size[3]; u++) {
            int32_t column = reads(x, u, s->stride_x, s->pad_x, s->dilation_x, s->in.size[3]);
            if (column >= 0)
                part += in[at(&s->in, 0, 0, row, column)] * weight[at(&s->weight, 0, 0, v, u)];
        }
    }
    return part;
}

void poet_conv_view(float *out, const float *in, const float *weight, const float *bias,
                    const struct poet_conv_view *shape)
{
    const struct poet_conv_view *s = shape;
    const int32_t *size = s->out.size;
    int32_t channels = s->weight.size[1], apart = size[1] / s->groups;
    for (int32_t n = 0; n < size[0]; n++)
        for (int32_t o = 0; o < size[1]; o++)
            for (int32_t y = 0; y < size[2]; y++)
                for (int32_t x = 0; x < size[3]; x++) {
                    float total = bias == NULL ? 0.0f : bias[o];
                    for (int32_t i = 0; i < channels; i++)
                        total += taps(in + at(&s->in, n, o / apart * channels + i, 0, 0),
                                      weight + at(&s->weight, o, i, 0, 0), y, x, s);
                    out[at(&s->out, n, o, y, x)] = total;
                }
}

/* One channel of the gradient at one pixel: the taps that it was read for. */
static float taps_back(const float *gradient, const float *weight, int32_t y, int32_t x,
                       const struct poet_conv_view *s)
{
    float part = 0.0f;
    for (int32_t v = 0; v < s->weight.size[2]; v++) {
        int32_t row = read_for(y, v, s->stride_y, s->pad_y, s->dilation_y, s->out.size[2]);
        for (int32_t u = 0; row >= 0 && u < s->weight.size[3]; u++) {
            int32_t column = read_for(x, u, s->stride_x, s->pad_x, s->dilation_x, s->out.size[3]);
            if (column >= 0)
                part += gradient[at(&s->out, 0, 0, row, column)] *
                        weight[at(&s->weight, 0, 0, v, u)];
        }
    }
    return part;
}

void poet_conv_view_input_gradient(float *in_gradient, const float *gradient, const float *weight,
                                   const float *bias, const struct poet_conv_view *shape)
{
    const struct poet_conv_view *s = shape;
    const int32_t *size = s->in.size;
    int32_t outs = s->out.size[1] / s->groups, apart = size[1] / s->groups;
    for (int32_t n = 0; n < size[0]; n++)
        for (int32_t i = 0; i < size[1]; i++)
            for (int32_t y = 0; y < size[2]; y++)
                for (int32_t x = 0; x < size[3]; x++) {
                    float total = bias == NULL ? 0.0f : bias[i];
                    for (int32_t j = 0; j < outs; j++) {
                        int32_t o = i / apart * outs + j;
                        total += taps_back(gradient + at(&s->out, n, o, 0, 0),
                                           weight + at(&s->weight, o, i % apart, 0, 0), y, x, s);
                    }
                    in_gradient[at(&s->in, n, i, y, x)] = total;
                }
}

/* One row of pixels by what a tap reads there. */
static float row_by_tap(const float *gradient, const float *in, int32_t u,
                        const struct poet_conv_view *s)
{
    float part = 0.0f;
    for (int32_t x = 0; x < s->out.size[3]; x++) {
        int32_t column = reads(x, u, s->stride_x, s->pad_x, s->dilation_x, s->in.size[3]);
        if (column >= 0)
            part += gradient[x * s->out.stride[3]] * in[column * s->in.stride[3]];
    }
    return part;
}

void poet_conv_view_weight_gradient(float *weight_gradient, const float *gradient, const float *in,
                                    const struct poet_conv_view *shape)
{
    const struct poet_conv_view *s = shape;
    const int32_t *size = s->weight.size;
    int32_t apart = size[0] / s->groups;
    for (int32_t o = 0; o < size[0]; o++)
        for (int32_t i = 0; i < size[1]; i++)
            for (int32_t v = 0; v < size[2]; v++)
                for (int32_t u = 0; u < size[3]; u++) {
                    int32_t channel = o / apart * size[1] + i;
                    float total = 0.0f;
                    for (int32_t n = 0; n < s->out.size[0]; n++)
                        for (int32_t y = 0; y < s->out.size[2]; y++) {
                            int32_t row =
                                reads(y, v, s->stride_y, s->pad_y, s->dilation_y, s->in.size[2]);
                            if (row >= 0)
                                total += row_by_tap(gradient + at(&s->out, n, o, y, 0),
                                                    in + at(&s->in, n, channel, row, 0), u, s);
                        }
                    weight_gradient[at(&s->weight, o, i, v, u)] = total;
                }
}
