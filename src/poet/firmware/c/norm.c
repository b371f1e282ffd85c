/* BatchNorm with the batch's own statistics, and with fixed ones. */
#include "kernels.h"

/* A sum that keeps what rounding would lose (Neumaier 1974). */
struct sum {
    float total, lost;
};

static void include(struct sum *s, float term)
{
    float next = s->total + term;
    float size = s->total < 0.0f ? -s->total : s->total, term_size = term < 0.0f ? -term : term;
    if (size >= term_size)
        s->lost += (s->total - next) + term;
    else
        s->lost += (term - next) + s->total;
    s->total = next;
}

static const float *plane_of(const float *in, const struct norm *s, int32_t sample, int32_t channel)
{
    return in + (sample * s->channels + channel) * s->area;
}

void batch_norm(float *out, float *mean, float *inverse, float *new_mean, float *new_variance,
                const float *in, const float *weight, const float *bias, const float *old_mean,
                const float *old_variance, const struct norm *shape)
{
    const struct norm *s = shape;
    float count = (float)(s->batch * s->area);
    for (int32_t c = 0; c < s->channels; c++) {
        struct sum all = {0.0f, 0.0f};
        for (int32_t n = 0; n < s->batch; n++) {
            const float *x = plane_of(in, s, n, c);
            for (int32_t i = 0; i < s->area; i++)
                include(&all, x[i]);
        }
        float middle = (all.total + all.lost) / count;
        struct sum squares = {0.0f, 0.0f};
        for (int32_t n = 0; n < s->batch; n++) {
            const float *x = plane_of(in, s, n, c);
            for (int32_t i = 0; i < s->area; i++) {
                float off = x[i] - middle;
                include(&squares, off * off);
            }
        }
        float variance = (squares.total + squares.lost) / count;
        float factor = 1.0f / poet_sqrt(variance + s->epsilon);
        mean[c] = middle;
        inverse[c] = factor;
        if (new_mean) {
            float unbiased = (squares.total + squares.lost) / (count - 1.0f);
            new_mean[c] = s->momentum * middle + (1.0f - s->momentum) * old_mean[c];
            new_variance[c] = s->momentum * unbiased + (1.0f - s->momentum) * old_variance[c];
        }
        float w = (weight ? weight[c] : 1.0f) * factor, b = bias ? bias[c] : 0.0f;
        for (int32_t n = 0; n < s->batch; n++) {
            const float *x = plane_of(in, s, n, c);
            float *y = out + (x - in);
            for (int32_t i = 0; i < s->area; i++)
                y[i] = (x[i] - middle) * w + b;
        }
    }
}

/* The two sums that all gradients of a channel are made of. */
static void gradient_sums(float *sum, float *dot, const float *gradient, const float *in,
                          float middle, const struct norm *s, int32_t c)
{
    struct sum plain = {0.0f, 0.0f}, product = {0.0f, 0.0f};
    for (int32_t n = 0; n < s->batch; n++) {
        const float *x = plane_of(in, s, n, c), *g = plane_of(gradient, s, n, c);
        for (int32_t i = 0; i < s->area; i++) {
            include(&plain, g[i]);
            include(&product, g[i] * (x[i] - middle));
        }
    }
    *sum = plain.total + plain.lost;
    *dot = product.total + product.lost;
}

void batch_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                         const float *gradient, const float *in, const float *weight,
                         const float *mean, const float *inverse, const struct norm *shape)
{
    const struct norm *s = shape;
    float count = (float)(s->batch * s->area);
    for (int32_t c = 0; c < s->channels; c++) {
        float sum, dot;
        gradient_sums(&sum, &dot, gradient, in, mean[c], s, c);
        if (weight_gradient)
            weight_gradient[c] = dot * inverse[c];
        if (bias_gradient)
            bias_gradient[c] = sum;
        if (!in_gradient)
            continue;
        float w = (weight ? weight[c] : 1.0f) * inverse[c];
        float along = dot * inverse[c] * inverse[c] / count, share = sum / count;
        for (int32_t n = 0; n < s->batch; n++) {
            const float *x = plane_of(in, s, n, c), *g = plane_of(gradient, s, n, c);
            float *y = in_gradient + (x - in);
            for (int32_t i = 0; i < s->area; i++)
                y[i] = (g[i] - share - (x[i] - mean[c]) * along) * w;
        }
    }
}

void batch_norm_fixed(float *out, const float *in, const float *weight, const float *bias,
                      const float *mean, const float *variance, const struct norm *shape)
{
    const struct norm *s = shape;
    for (int32_t c = 0; c < s->channels; c++) {
        float w = (weight ? weight[c] : 1.0f) / poet_sqrt(variance[c] + s->epsilon);
        float b = (bias ? bias[c] : 0.0f) - mean[c] * w;
        for (int32_t n = 0; n < s->batch; n++) {
            const float *x = plane_of(in, s, n, c);
            float *y = out + (x - in);
            for (int32_t i = 0; i < s->area; i++)
                y[i] = x[i] * w + b;
        }
    }
}

void batch_norm_fixed_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                               const float *gradient, const float *in, const float *weight,
                               const float *mean, const float *variance, const struct norm *shape)
{
    const struct norm *s = shape;
    for (int32_t c = 0; c < s->channels; c++) {
        float sum, dot, inverse = 1.0f / poet_sqrt(variance[c] + s->epsilon);
        gradient_sums(&sum, &dot, gradient, in, mean[c], s, c);
        if (weight_gradient)
            weight_gradient[c] = dot * inverse;
        if (bias_gradient)
            bias_gradient[c] = sum;
        if (!in_gradient)
            continue;
        float w = (weight ? weight[c] : 1.0f) * inverse;
        for (int32_t n = 0; n < s->batch; n++) {
            const float *g = plane_of(gradient, s, n, c);
            float *y = in_gradient + (g - gradient);
            for (int32_t i = 0; i < s->area; i++)
                y[i] = g[i] * w;
        }
    }
}
