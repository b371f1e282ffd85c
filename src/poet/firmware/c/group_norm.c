/* Norms of groups of channels of each sample. */
#include "layers.h"

enum { PART = 32 }; /* numbers that are summed before they are added to the sum, to lose less */

static float squares_about(const float *in, float middle, int32_t count)
{
    float total = 0.0f;
    for (int32_t i = 0; i < count;) {
        float part = 0.0f;
        for (int32_t k = 0; k < PART && i < count; k++, i++) {
            float off = in[i] - middle;
            part += off * off;
        }
        total += part;
    }
    return total;
}

void poet_group_norm(float *out, float *mean, float *inverse, const float *in, const float *weight,
                     const float *bias, const struct poet_group_norm *shape)
{
    const struct poet_group_norm *s = shape;
    int32_t channels = s->channels / s->groups, count = channels * s->area;
    for (int32_t at = 0; at < s->batch * s->groups; at++) {
        float middle = poet_sum_row(in, count) / (float)count;
        float variance = squares_about(in, middle, count) / (float)count;
        float factor = 1.0f / poet_sqrt(variance + s->epsilon);
        if (mean)
            mean[at] = middle;
        if (inverse)
            inverse[at] = factor;
        for (int32_t c = at % s->groups * channels; c < (at % s->groups + 1) * channels; c++)
            for (int32_t i = 0; i < s->area; i++) {
                float scaled = (*in++ - middle) * factor;
                *out++ = scaled * (weight ? weight[c] : 1.0f) + (bias ? bias[c] : 0.0f);
            }
    }
}

/* Sums over a plane: of the gradient, and of the gradient by what was normed. */
static void plane_sums(float *plain, float *along, const float *gradient, const float *in,
                       float middle, float factor, int32_t area)
{
    *plain = *along = 0.0f;
    for (int32_t i = 0; i < area;) {
        float part = 0.0f, part_along = 0.0f;
        for (int32_t k = 0; k < PART && i < area; k++, i++) {
            part += gradient[i];
            part_along += gradient[i] * ((in[i] - middle) * factor);
        }
        *plain += part;
        *along += part_along;
    }
}

void poet_group_norm_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                              const float *gradient, const float *in, const float *mean,
                              const float *inverse, const float *weight,
                              const struct poet_group_norm *shape)
{
    const struct poet_group_norm *s = shape;
    int32_t channels = s->channels / s->groups, area = s->area;
    float count = (float)(channels * area);
    if (weight_gradient)
        poet_fill(weight_gradient, 0.0f, s->channels);
    if (bias_gradient)
        poet_fill(bias_gradient, 0.0f, s->channels);
    for (int32_t at = 0; at < s->batch * s->groups; at++) {
        float middle = mean[at], factor = inverse[at], share = 0.0f, along = 0.0f;
        int32_t first = at % s->groups * channels;
        for (int32_t c = 0; c < channels; c++) {
            float plain, by;
            plane_sums(&plain, &by, gradient + c * area, in + c * area, middle, factor, area);
            share += plain * (weight ? weight[first + c] : 1.0f);
            along += by * (weight ? weight[first + c] : 1.0f);
            if (weight_gradient)
                weight_gradient[first + c] += by;
            if (bias_gradient)
                bias_gradient[first + c] += plain;
        }
        share /= count;
        along /= count;
        for (int32_t c = 0; c < channels; c++) {
            float w = weight ? weight[first + c] : 1.0f;
            for (int32_t i = 0; i < area; i++, in++, gradient++) {
                float scaled = (*in - middle) * factor;
                if (in_gradient)
                    *in_gradient++ = (*gradient * w - share - scaled * along) * factor;
            }
        }
    }
}
