/* Updates of parameters, in the order of operations of PyTorch's own. */
#include "kernels.h"

void sgd(float *parameter, const float *gradient, double learning_rate, const struct sgd *rule,
         int32_t count)
{
    float rate = (float)-learning_rate;
    for (int32_t i = 0; i < count; i++) {
        float g = gradient[i];
        if (rule->weight_decay != 0.0f)
            g = g + parameter[i] * rule->weight_decay;
        parameter[i] = parameter[i] + g * rate;
    }
}

void sgd_momentum(float *parameter, float *buffer, const float *gradient, double learning_rate,
                  int64_t step, const struct sgd *rule, int32_t count)
{
    float rate = (float)-learning_rate;
    float share = step > 1 ? 1.0f - rule->dampening : 1.0f; /* the first is taken whole */
    for (int32_t i = 0; i < count; i++) {
        float g = gradient[i];
        if (rule->weight_decay != 0.0f)
            g = g + parameter[i] * rule->weight_decay;
        buffer[i] = buffer[i] * rule->momentum + g * share;
        g = rule->nesterov ? g + buffer[i] * rule->momentum : buffer[i];
        parameter[i] = parameter[i] + g * rate;
    }
}
