/* Losses by weights of classes, summed or one for each row: negative log-likelihoods, margins. */
#include "layers.h"

POET_INLINE float weight_of(const float *weight, int32_t class_)
{
    return weight ? weight[class_] : 1.0f;
}

void poet_weighted_nll(float *loss, float *counted, const float *in, const int64_t *target,
                       const float *weight, const struct poet_classes *shape)
{
    const struct poet_classes *s = shape;
    float total = 0.0f, part = 0.0f, weights = 0.0f, part_weights = 0.0f;
    int32_t count = 0;
    for (int32_t i = 0; i < s->rows; i++, in += s->classes * s->area)
        for (int32_t p = 0; p < s->area; p++, target++) {
            if (*target == s->ignored) {
                if (s->is_each)
                    *loss++ = 0.0f;
                continue;
            }
            int32_t class_ = poet_index_of(*target, s->classes);
            float w = weight_of(weight, class_), term = -in[class_ * s->area + p] * w;
            if (s->is_each) {
                *loss++ = term;
                continue;
            }
            part += term;
            part_weights += w;
            if (++count % 32 == 0) { /* in parts, to lose less */
                total += part;
                weights += part_weights;
                part = part_weights = 0.0f;
            }
        }
    total += part;
    weights += part_weights;
    if (!s->is_each)
        *loss = s->is_mean ? total / weights : total;
    if (counted)
        *counted = weights;
}

void poet_weighted_nll_gradient(float *out, const float *gradient, const int64_t *target,
                                const float *weight, const float *counted,
                                const struct poet_classes *shape,
                                const struct poet_view *gradient_view)
{
    const struct poet_classes *s = shape;
    poet_fill(out, 0.0f, s->rows * s->classes * s->area);
    float divisor = s->is_mean ? *counted : 1.0f;
    int32_t at = 0;
    POET_FOR_ROWS(gradient_view)
    {
        const float *from = gradient + POET_ROW(gradient_view);
        for (int32_t j = 0; j < gradient_view->size[3]; j++, at++, target++) {
            if (*target == s->ignored)
                continue;
            int32_t class_ = poet_index_of(*target, s->classes);
            float *to = out + (at / s->area * s->classes + class_) * s->area + at % s->area;
            *to = -from[j * gradient_view->stride[3]] / divisor * weight_of(weight, class_);
        }
    }
}

void poet_margins(float *loss, const float *in, const int64_t *target, const float *weight,
                  const struct poet_margins *shape)
{
    const struct poet_margins *s = shape;
    float total = 0.0f;
    for (int32_t i = 0; i < s->rows; i++, in += s->classes) {
        int32_t class_ = poet_index_of(target[i], s->classes);
        float sum = 0.0f;
        for (int32_t j = 0; j < s->classes; j++) {
            float over = s->margin - in[class_] + in[j];
            if (j != class_ && over > 0.0f)
                sum += (s->is_squared ? over * over : over) * weight_of(weight, class_);
        }
        sum /= (float)s->classes;
        if (s->is_each)
            loss[i] = sum;
        total += sum;
    }
    if (!s->is_each)
        *loss = s->is_mean ? total / (float)s->rows : total;
}

void poet_margins_gradient(float *out, const float *gradient, const float *in,
                           const int64_t *target, const float *weight,
                           const struct poet_margins *shape)
{
    const struct poet_margins *s = shape;
    float divisor = (float)s->classes * (s->is_mean ? (float)s->rows : 1.0f);
    for (int32_t i = 0; i < s->rows; i++, in += s->classes, out += s->classes) {
        int32_t class_ = poet_index_of(target[i], s->classes);
        float share = gradient[i * s->gradient_step] / divisor * weight_of(weight, class_);
        float of_true = 0.0f;
        for (int32_t j = 0; j < s->classes; j++) {
            float over = s->margin - in[class_] + in[j];
            out[j] = 0.0f;
            if (j != class_ && over > 0.0f)
                out[j] = s->is_squared ? 2.0f * over * share : share;
            of_true -= out[j];
        }
        out[class_] = of_true;
    }
}
