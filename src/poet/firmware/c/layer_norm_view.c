/* The gradient of LayerNorm, where tensors are not row-major; the results are. */
#include "layers.h"

void poet_layer_norm_view_gradient(float *in_gradient, float *weight_gradient, float *bias_gradient,
                                   const float *gradient, const float *in, const float *mean,
                                   const float *inverse, const float *weight,
                                   const struct poet_view *gradient_view,
                                   const struct poet_view *in_view)
{
    int32_t columns = in_view->size[3], of_g = gradient_view->stride[3], of_x = in_view->stride[3];
    if (weight_gradient)
        poet_fill(weight_gradient, 0.0f, columns);
    if (bias_gradient)
        poet_fill(bias_gradient, 0.0f, columns);
    POET_FOR_ROWS(in_view)
    {
        const float *g = gradient + POET_ROW(gradient_view), *x = in + POET_ROW(in_view);
        float middle = *mean++, factor = *inverse++, along = 0.0f, total = 0.0f;
        for (int32_t j = 0; j < columns;) {
            float part = 0.0f, part_along = 0.0f;
            for (int32_t k = 0; k < 32 && j < columns; k++, j++) { /* in parts, to lose less */
                float scaled = (x[j * of_x] - middle) * factor;
                float by = g[j * of_g] * (weight ? weight[j] : 1.0f);
                part += by;
                part_along += by * scaled;
                if (weight_gradient)
                    weight_gradient[j] += g[j * of_g] * scaled;
                if (bias_gradient)
                    bias_gradient[j] += g[j * of_g];
            }
            total += part;
            along += part_along;
        }
        total /= (float)columns;
        along /= (float)columns;
        for (int32_t j = 0; in_gradient && j < columns; j++) {
            float scaled = (x[j * of_x] - middle) * factor;
            float by = g[j * of_g] * (weight ? weight[j] : 1.0f);
            *in_gradient++ = (by - total - scaled * along) * factor;
        }
    }
}
