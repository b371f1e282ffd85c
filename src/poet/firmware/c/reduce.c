/* Sums over dimensions. */
#include "kernels.h"

static float row_sum(const float *in, int32_t count, int32_t stride)
{
    float total = 0.0f;
    while (count > 0) { /* in parts of 32, to lose less */
        float part = 0.0f;
        for (int32_t i = 0; i < 32 && count > 0; i++, count--) {
            part += *in;
            in += stride;
        }
        total += part;
    }
    return total;
}

float poet_sum_row(const float *in, int32_t count)
{
    return row_sum(in, count, 1);
}

void poet_sum_view(float *out, const float *in, const struct poet_view *outer,
                   const struct poet_view *inner, float divisor)
{
    const int32_t *o = outer->size, *so = outer->stride;
    const int32_t *n = inner->size, *sn = inner->stride;
    for (int32_t a = 0; a < o[0]; a++)
        for (int32_t b = 0; b < o[1]; b++)
            for (int32_t c = 0; c < o[2]; c++)
                for (int32_t d = 0; d < o[3]; d++) {
                    const float *from = in + a * so[0] + b * so[1] + c * so[2] + d * so[3];
                    float total = 0.0f;
                    for (int32_t i = 0; i < n[0]; i++)
                        for (int32_t j = 0; j < n[1]; j++)
                            for (int32_t k = 0; k < n[2]; k++)
                                total += row_sum(from + i * sn[0] + j * sn[1] + k * sn[2], n[3],
                                                 sn[3]);
                    *out++ = total / divisor;
                }
}
