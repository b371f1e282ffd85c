/* BatchNorm with the batch's own statistics, and with fixed ones. */
#include "kernels.h"

/* Adds to a sum and keeps what rounding would lose (Neumaier 1974). */
static void include(struct poet_sum *s, float term)
{
    float next = s->total + term;
    float size = s->total < 0.0f ? -s->total : s->total, term_size = term < 0.0f ? -term : term;
    if (size >= term_size)
        s->lost += (s->total - next) + term;
    else
        s->lost += (term - next) + s->total;
    s->total = next;
}

static const float *plane_of(const float *in, const struct poet_norm *s, int32_t sample,
                             int32_t channel)
{
    return in + (sample * s->channels + channel) * s->area;
}

/* What comes of some pixels of a channel, or of all. */
static void include_plane(struct poet_sum *sum, const float *in, const struct poet_norm *s,
                          int32_t c)
{
    for (int32_t n = 0; n < s->batch; n++) {
        const float *x = plane_of(in, s, n, c);
        for (int32_t i = 0; i < s->area; i++)
            include(sum, x[i]);
    }
}

static void include_squares(struct poet_sum *sum, const float *in, float middle,
                            const struct poet_norm *s, int32_t c)
{
    for (int32_t n = 0; n < s->batch; n++) {
        const float *x = plane_of(in, s, n, c);
        for (int32_t i = 0; i < s->area; i++) {
            float off = x[i] - middle;
            include(sum, off * off);
        }
    }
}

/* The two sums that all gradients of a channel are made of. */
static void include_products(struct poet_sum *plain, struct poet_sum *product,
                             const float *gradient, const float *in, float middle,
                             const struct poet_norm *s, int32_t c)
{
    for (int32_t n = 0; n < s->batch; n++) {
        const float *x = plane_of(in, s, n, c);
        const float *g = plane_of(gradient, s, n, c) + n * s->gradient_gap;
        for (int32_t i = 0; i < s->area; i++) {
            include(plain, g[i]);
            include(product, g[i] * (x[i] - middle));
        }
    }
}

/* The statistics of a channel, in one go or in passes over blocks of it. */
static void statistics(int32_t c, struct poet_sum *sums, float *mean, float *inverse,
                       float *new_mean, float *new_variance, const float *in, const float *old_mean,
                       const float *old_variance, const struct poet_norm *s,
                       const struct poet_norm_part *part)
{
    static const struct poet_sum none;
    if (part->pass != POET_SECOND_PASS) {
        if (part->is_first)
            sums[0] = none;
        include_plane(&sums[0], in, s, c);
        if (part->is_last)
            mean[c] = (sums[0].total + sums[0].lost) / part->count;
    }
    if (part->pass == POET_FIRST_PASS)
        return;
    if (part->is_first)
        sums[1] = none;
    include_squares(&sums[1], in, mean[c], s, c);
    if (!part->is_last)
        return;
    float total = sums[1].total + sums[1].lost, variance = total / part->count;
    inverse[c] = 1.0f / poet_sqrt(variance + s->epsilon);
    if (new_mean) {
        float unbiased = total / (part->count - 1.0f);
        new_mean[c] = s->momentum * mean[c] + (1.0f - s->momentum) * old_mean[c];
        new_variance[c] = s->momentum * unbiased + (1.0f - s->momentum) * old_variance[c];
    }
}

void poet_norm_statistics(float *mean, float *inverse, float *new_mean, float *new_variance,
                          const float *in, const float *old_mean, const float *old_variance,
                          const struct poet_norm *shape, const struct poet_norm_part *part)
{
    for (int32_t c = 0; c < shape->channels; c++)
        statistics(c, part->sums + 2 * c, mean, inverse, new_mean, new_variance, in, old_mean,
                   old_variance, shape, part);
}

void poet_norm_apply(float *out, const float *in, const float *weight, const float *bias,
                     const float *mean, const float *inverse, const struct poet_norm *shape)
{
    const struct poet_norm *s = shape;
    for (int32_t c = 0; c < s->channels; c++) {
        float w = (weight ? weight[c] : 1.0f) * inverse[c], b = bias ? bias[c] : 0.0f;
        for (int32_t n = 0; n < s->batch; n++) {
            const float *x = plane_of(in, s, n, c);
            float *y = out + (x - in);
            for (int32_t i = 0; i < s->area; i++)
                y[i] = (x[i] - mean[c]) * w + b;
        }
    }
}

void poet_batch_norm(float *out, float *mean, float *inverse, float *new_mean, float *new_variance,
                     const float *in, const float *weight, const float *bias, const float *old_mean,
                     const float *old_variance, const struct poet_norm *shape)
{
    struct poet_sum sums[2];
    struct poet_norm_part all = {.count = (float)(shape->batch * shape->area),
                                 .pass = POET_BOTH_PASSES,
                                 .is_first = 1,
                                 .is_last = 1};
    for (int32_t c = 0; c < shape->channels; c++)
        statistics(c, sums, mean, inverse, new_mean, new_variance, in, old_mean, old_variance,
                   shape, &all);
    poet_norm_apply(out, in, weight, bias, mean, inverse, shape);
}

static void channel_sums(int32_t c, struct poet_sum *sums, float *weight_gradient,
                         float *bias_gradient, const float *gradient, const float *in, float mean,
                         float inverse, const struct poet_norm *s,
                         const struct poet_norm_part *part)
{
    static const struct poet_sum none;
    if (part->is_first)
        sums[0] = sums[1] = none;
    include_products(&sums[0], &sums[1], gradient, in, mean, s, c);
    if (!part->is_last)
        return;
    *bias_gradient = sums[0].total + sums[0].lost;
    *weight_gradient = (sums[1].total + sums[1].lost) * inverse;
}

/* What a fixed norm divides by, or what one of the batch's statistics did. */
static float inverse_of(const float *inverse, const struct poet_norm_part *part,
                        const struct poet_norm *s, int32_t c)
{
    return part->is_fixed ? 1.0f / poet_sqrt(inverse[c] + s->epsilon) : inverse[c];
}

void poet_norm_sums(float *weight_gradient, float *bias_gradient, const float *gradient,
                    const float *in, const float *mean, const float *inverse,
                    const struct poet_norm *shape, const struct poet_norm_part *part)
{
    for (int32_t c = 0; c < shape->channels; c++)
        channel_sums(c, part->sums + 2 * c, weight_gradient + c, bias_gradient + c, gradient, in,
                     mean[c], inverse_of(inverse, part, shape, c), shape, part);
}

/* The gradient of some pixels of a channel, by the gradients of its weight and bias. */
static void channel_gradient(int32_t c, float *in_gradient, const float *gradient, const float *in,
                             const float *weight, float mean, float inverse, float weight_gradient,
                             float bias_gradient, const struct poet_norm *s,
                             const struct poet_norm_part *part)
{
    float w = (weight ? weight[c] : 1.0f) * inverse;
    float along = weight_gradient * inverse / part->count, share = bias_gradient / part->count;
    for (int32_t n = 0; n < s->batch; n++) {
        const float *x = plane_of(in, s, n, c);
        const float *g = plane_of(gradient, s, n, c) + n * s->gradient_gap;
        float *y = in_gradient + (x - in);
        if (part->is_fixed)
            poet_scale(y, g, w, s->area);
        for (int32_t i = part->is_fixed ? s->area : 0; i < s->area; i++)
            y[i] = (g[i] - share - (x[i] - mean) * along) * w;
    }
}

void poet_norm_gradient(float *in_gradient, const float *gradient, const float *in,
                        const float *weight, const float *mean, const float *inverse,
                        const float *weight_gradient, const float *bias_gradient,
                        const struct poet_norm *shape, const struct poet_norm_part *part)
{
    for (int32_t c = 0; c < shape->channels; c++)
        channel_gradient(c, in_gradient, gradient, in, weight, mean[c],
                         inverse_of(inverse, part, shape, c), weight_gradient[c], bias_gradient[c],
                         shape, part);
}

static void gradients(float *in_gradient, float *weight_gradient, float *bias_gradient,
                      const float *gradient, const float *in, const float *weight,
                      const float *mean, const float *inverse, const struct poet_norm *shape,
                      int32_t is_fixed)
{
    struct poet_norm_part all = {.count = (float)(shape->batch * shape->area),
                                 .is_first = 1,
                                 .is_last = 1,
                                 .is_fixed = is_fixed};
    for (int32_t c = 0; c < shape->channels; c++) {
        struct poet_sum sums[2];
        float to_weight, to_bias, factor = inverse_of(inverse, &all, shape, c);
        channel_sums(c, sums, &to_weight, &to_bias, gradient, in, mean[c], factor, shape, &all);
        if (weight_gradient)
            weight_gradient[c] = to_weight;
        if (bias_gradient)
            bias_gradient[c] = to_bias;
        if (in_gradient)
            channel_gradient(c, in_gradient, gradient, in, weight, mean[c], factor, to_weight,
                             to_bias, shape, &all);
    }
}

void poet_batch_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                              const float *gradient, const float *in, const float *weight,
                              const float *mean, const float *inverse,
                              const struct poet_norm *shape)
{
    gradients(in_gradient, weight_gradient, bias_gradient, gradient, in, weight, mean, inverse,
              shape, 0);
}

void poet_batch_norm_fixed_gradient(float *in_gradient, float *weight_gradient,
                                    float *bias_gradient, const float *gradient, const float *in,
                                    const float *weight, const float *mean, const float *variance,
                                    const struct poet_norm *shape)
{
    gradients(in_gradient, weight_gradient, bias_gradient, gradient, in, weight, mean, variance,
              shape, 1);
}

void poet_batch_norm_fixed(float *out, const float *in, const float *weight, const float *bias,
                           const float *mean, const float *variance, const struct poet_norm *shape)
{
    const struct poet_norm *s = shape;
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
