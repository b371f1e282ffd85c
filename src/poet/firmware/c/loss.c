/* Log-softmax and the negative log-likelihood, which together are cross-entropy. */
#include "kernels.h"

void poet_log_softmax(float *out, const float *in, int32_t rows, int32_t classes, int32_t area)
{
    int32_t end = classes * area; /* of a row: the classes of a pixel are `area` apart */
    for (int32_t i = 0; i < rows; i++, in += end, out += end)
        for (int32_t p = 0; p < area; p++) {
            float most = in[p], total = 0.0f;
            for (int32_t j = p + area; j < end; j += area)
                if (in[j] > most)
                    most = in[j];
            for (int32_t j = p; j < end; j += area)
                total += poet_exp(in[j] - most);
            float shift = poet_log(total);
            for (int32_t j = p; j < end; j += area)
                out[j] = (in[j] - most) - shift;
        }
}

void poet_log_softmax_gradient(float *out, const float *gradient, const float *result, int32_t rows,
                               int32_t classes, int32_t area)
{
    int32_t end = classes * area;
    for (int32_t i = 0; i < rows; i++, gradient += end, result += end, out += end)
        for (int32_t p = 0; p < area; p++) {
            float total = 0.0f;
            for (int32_t j = p; j < end; j += area)
                total += gradient[j];
            for (int32_t j = p; j < end; j += area)
                out[j] = gradient[j] - poet_exp(result[j]) * total;
        }
}

void poet_nll_loss_part(float *loss, float *counted, const float *in, const int64_t *target,
                        int32_t rows, int32_t classes, int32_t area, int64_t ignored,
                        int32_t is_mean, int32_t is_more, int32_t is_last)
{
    static float total, part;
    static int32_t count;
    if (!is_more) {
        total = part = 0.0f;
        count = 0;
    }
    for (int32_t i = 0; i < rows; i++, in += classes * area)
        for (int32_t p = 0; p < area; p++, target++)
            if (*target != ignored) {
                part -= in[poet_index_of(*target, classes) * area + p];
                if (++count % 32 == 0) { /* in parts, to lose less */
                    total += part;
                    part = 0.0f;
                }
            }
    if (!is_last)
        return;
    total += part;
    *loss = is_mean ? total / (float)count : total;
    *counted = (float)count;
}

void poet_nll_loss(float *loss, float *counted, const float *in, const int64_t *target,
                   int32_t rows, int32_t classes, int32_t area, int64_t ignored, int32_t is_mean)
{
    poet_nll_loss_part(loss, counted, in, target, rows, classes, area, ignored, is_mean, 0, 1);
}

void poet_nll_loss_gradient(float *out, const float *gradient, const int64_t *target,
                            const float *counted, int32_t rows, int32_t classes, int32_t area,
                            int64_t ignored, int32_t is_mean)
{
    float share = is_mean ? -*gradient / *counted : -*gradient;
    poet_fill(out, 0.0f, rows * classes * area);
    for (int32_t i = 0; i < rows; i++, out += classes * area)
        for (int32_t p = 0; p < area; p++, target++)
            if (*target != ignored)
                out[poet_index_of(*target, classes) * area + p] = share;
}
