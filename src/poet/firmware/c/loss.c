/* Log-softmax and the negative log-likelihood, which together are cross-entropy. */
#include "kernels.h"

void log_softmax(float *out, const float *in, int32_t rows, int32_t columns)
{
    for (int32_t i = 0; i < rows; i++, in += columns, out += columns) {
        float most = in[0], total = 0.0f;
        for (int32_t j = 1; j < columns; j++)
            if (in[j] > most)
                most = in[j];
        for (int32_t j = 0; j < columns; j++)
            total += poet_exp(in[j] - most);
        float shift = poet_log(total);
        for (int32_t j = 0; j < columns; j++)
            out[j] = (in[j] - most) - shift;
    }
}

void log_softmax_gradient(float *out, const float *gradient, const float *result, int32_t rows,
                          int32_t columns)
{
    for (int32_t i = 0; i < rows; i++, gradient += columns, result += columns, out += columns) {
        float total = 0.0f;
        for (int32_t j = 0; j < columns; j++)
            total += gradient[j];
        for (int32_t j = 0; j < columns; j++)
            out[j] = gradient[j] - poet_exp(result[j]) * total;
    }
}

void nll_loss(float *loss, float *counted, const float *in, const int64_t *target, int32_t rows,
              int32_t columns, int64_t ignored, int32_t is_mean)
{
    float total = 0.0f;
    int32_t count = 0;
    for (int32_t i = 0; i < rows; i++)
        if (target[i] != ignored) {
            total -= in[i * columns + (int32_t)target[i]];
            count++;
        }
    *loss = is_mean ? total / (float)count : total;
    *counted = (float)count;
}

void nll_loss_gradient(float *out, const float *gradient, const int64_t *target,
                       const float *counted, int32_t rows, int32_t columns, int64_t ignored,
                       int32_t is_mean)
{
    float share = is_mean ? -*gradient / *counted : -*gradient;
    fill(out, 0.0f, rows * columns);
    for (int32_t i = 0; i < rows; i++)
        if (target[i] != ignored)
            out[i * columns + (int32_t)target[i]] = share;
}
