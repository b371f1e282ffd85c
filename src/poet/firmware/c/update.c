/* Updates of parameters, in the order of operations of PyTorch's own. */
#include "kernels.h"

void poet_sgd(float *parameter, const float *gradient, double learning_rate,
              const struct poet_sgd *rule, int32_t count)
{
    float rate = (float)-learning_rate;
    for (int32_t i = 0; i < count; i++) {
        float g = gradient[i];
        if (rule->weight_decay != 0.0f)
            g = g + parameter[i] * rule->weight_decay;
        parameter[i] = parameter[i] + g * rate;
    }
}

void poet_sgd_momentum(float *parameter, float *buffer, const float *gradient, double learning_rate,
                       int64_t step, const struct poet_sgd *rule, int32_t count)
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

static double power(double base, int64_t exponent)
{
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1, base = base * base)
        if (exponent & 1)
            result = result * base;
    return result;
}

/* The root of a double between 0 and 1, by Newton's method from the root of a float. */
static double root(double x)
{
    double guess = (double)poet_sqrt((float)x);
    for (int i = 0; i < 3 && guess > 0.0; i++)
        guess = 0.5 * (guess + x / guess);
    return guess;
}

void poet_adam(float *parameter, float *mean, float *square, const float *gradient,
               double learning_rate, int64_t step, const struct poet_adam *rule, int32_t count)
{
    float share1 = (float)(1.0 - rule->beta1), share2 = (float)(1.0 - rule->beta2);
    float kept2 = (float)rule->beta2, epsilon = (float)rule->epsilon;
    float decay = (float)rule->weight_decay;
    float shrink = (float)(1.0 - learning_rate * rule->weight_decay);
    float rate = (float)-(learning_rate / (1.0 - power(rule->beta1, step)));
    float unbias = (float)root(1.0 - power(rule->beta2, step));
    for (int32_t i = 0; i < count; i++) {
        float p = parameter[i], g = gradient[i];
        if (rule->is_decoupled)
            p = p * shrink;
        else if (decay != 0.0f)
            g = g + p * decay;
        mean[i] = mean[i] + share1 * (g - mean[i]);
        square[i] = square[i] * kept2 + share2 * (g * g);
        parameter[i] = p + rate * (mean[i] / (poet_sqrt(square[i]) / unbias + epsilon));
    }
}
