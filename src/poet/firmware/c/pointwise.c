/* Kernels that treat each element by itself. `out` may be one of the inputs. */
#include "kernels.h"

void poet_relu(float *out, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] > 0.0f ? in[i] : 0.0f;
}

void poet_relu_gradient(float *out, const float *gradient, const float *result, float threshold,
                        int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = result[i] > threshold ? gradient[i] : 0.0f;
}

void poet_clamp(float *out, const float *in, float low, float high, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] < low ? low : in[i] > high ? high : in[i];
}

void poet_clamp_gradient(float *out, const float *gradient, const float *in, float low, float high,
                         int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] > low && in[i] < high ? gradient[i] : 0.0f;
}

void poet_tanh_all(float *out, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = poet_tanh(in[i]);
}

void poet_tanh_gradient(float *out, const float *gradient, const float *result, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = gradient[i] * (1.0f - result[i] * result[i]);
}

void poet_sigmoid_all(float *out, const float *in, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = poet_sigmoid(in[i]);
}

void poet_sigmoid_gradient(float *out, const float *gradient, const float *result, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = gradient[i] * (1.0f - result[i]) * result[i];
}

void poet_scale(float *out, const float *in, float factor, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] * factor;
}

void poet_shift(float *out, const float *in, float term, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] + term;
}

void poet_divide_by(float *out, const float *in, float divisor, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] / divisor;
}

void poet_add(float *out, const float *a, const float *b, float b_factor, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = a[i] + b[i] * b_factor;
}

void poet_multiply(float *out, const float *a, const float *b, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = a[i] * b[i];
}

void poet_divide(float *out, const float *a, const float *b, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = a[i] / b[i];
}

void poet_fill(float *out, float value, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = value;
}

void poet_fill_bytes(void *out, uint8_t value, int32_t count)
{
    uint8_t *to = out;
    for (int32_t i = 0; i < count; i++)
        to[i] = value;
}

void poet_copy_bytes(void *out, const void *in, int32_t count)
{
    uint8_t *to = out;
    const uint8_t *from = in;
    for (int32_t i = 0; i < count; i++)
        to[i] = from[i];
}

void poet_add_whole(int64_t *out, const int64_t *in, int64_t term, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        out[i] = in[i] + term;
}

void poet_copy_view(float *out, const float *in, const struct poet_view *out_view,
                    const struct poet_view *in_view)
{
    POET_FOR_ROWS(out_view)
    {
        float *to = out + POET_ROW(out_view);
        const float *from = in + POET_ROW(in_view);
        for (int32_t i = 0; i < out_view->size[3]; i++)
            to[i * out_view->stride[3]] = from[i * in_view->stride[3]];
    }
}

void poet_add_view(float *out, const float *a, const float *b, float b_factor,
                   const struct poet_view *out_view, const struct poet_view *a_view,
                   const struct poet_view *b_view)
{
    POET_FOR_ROWS(out_view)
    {
        float *to = out + POET_ROW(out_view);
        const float *x = a + POET_ROW(a_view), *y = b + POET_ROW(b_view);
        for (int32_t i = 0; i < out_view->size[3]; i++)
            to[i * out_view->stride[3]] =
                x[i * a_view->stride[3]] + y[i * b_view->stride[3]] * b_factor;
    }
}

void poet_multiply_view(float *out, const float *a, const float *b,
                        const struct poet_view *out_view, const struct poet_view *a_view,
                        const struct poet_view *b_view)
{
    POET_FOR_ROWS(out_view)
    {
        float *to = out + POET_ROW(out_view);
        const float *x = a + POET_ROW(a_view), *y = b + POET_ROW(b_view);
        for (int32_t i = 0; i < out_view->size[3]; i++)
            to[i * out_view->stride[3]] = x[i * a_view->stride[3]] * y[i * b_view->stride[3]];
    }
}

void poet_divide_view(float *out, const float *a, const float *b, const struct poet_view *out_view,
                      const struct poet_view *a_view, const struct poet_view *b_view)
{
    POET_FOR_ROWS(out_view)
    {
        float *to = out + POET_ROW(out_view);
        const float *x = a + POET_ROW(a_view), *y = b + POET_ROW(b_view);
        for (int32_t i = 0; i < out_view->size[3]; i++)
            to[i * out_view->stride[3]] = x[i * a_view->stride[3]] / y[i * b_view->stride[3]];
    }
}
