/* Softmax along a dimension that is not the last: the classes of a pixel are `area` apart. */
#include "layers.h"

void poet_softmax_across(float *out, const float *in, int32_t rows, int32_t classes, int32_t area)
{
    int32_t end = classes * area;
    for (int32_t i = 0; i < rows; i++, in += end, out += end)
        for (int32_t p = 0; p < area; p++) {
            float most = in[p], total = 0.0f;
            for (int32_t j = p + area; j < end; j += area)
                if (in[j] > most)
                    most = in[j];
            float beside = most == -1.0f / 0.0f ? 0.0f : most;
            for (int32_t j = p; j < end; j += area) {
                out[j] = poet_exp(in[j] - beside);
                total += out[j];
            }
            for (int32_t j = p; j < end; j += area)
                out[j] = total == 0.0f ? 0.0f : out[j] / total;
        }
}

void poet_softmax_across_gradient(float *out, const float *gradient, const float *result,
                                  int32_t rows, int32_t classes, int32_t area)
{
    int32_t end = classes * area;
    for (int32_t i = 0; i < rows; i++, gradient += end, result += end, out += end)
        for (int32_t p = 0; p < area; p++) {
            float along = 0.0f;
            for (int32_t j = p; j < end; j += area)
                along += gradient[j] * result[j];
            for (int32_t j = p; j < end; j += area)
                out[j] = result[j] * (gradient[j] - along);
        }
}
