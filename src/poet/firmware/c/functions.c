/* Functions of one, two or three elements, the slopes of activations, and the terms of losses. */
#include "layers.h"

#define UNUSED __attribute__((unused))
#define FUNCTION(name, result)                                                                     \
    float poet_##name(float x UNUSED, float y UNUSED, float z UNUSED, const float *n UNUSED)       \
    {                                                                                              \
        return result;                                                                             \
    }

POET_INLINE float size_of(float x)
{
    return x < 0.0f ? -x : x;
}

POET_INLINE float within(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

/* tanh(log(1 + e^x)) = e (e + 2) / (e (e + 2) + 2), without a difference of near numbers */
static float mish_gate(float x)
{
    if (x > 20.0f)
        return 1.0f;
    float e = poet_exp(x), s = e * (e + 2.0f);
    return s / (s + 2.0f);
}

/* the slope of mish: the gate, and x by the slope of the gate, 4 e (e + 1) / (e (e + 2) + 2)^2 */
static float mish_slope(float x)
{
    if (x > 20.0f)
        return 1.0f;
    float e = poet_exp(x), s = e * (e + 2.0f), d = s + 2.0f;
    return s / d + x * (4.0f * e * (e + 1.0f) / (d * d));
}

static float silu_slope(float x)
{
    float gate = poet_sigmoid(x);
    return gate * (1.0f + x * (1.0f - gate));
}

static float softplus(float x, float beta, float threshold)
{
    return x * beta > threshold ? x : poet_log1p(poet_exp(x * beta)) / beta;
}

/* log(1 + e^-|x|): what log(sigmoid) and its kin add */
static float rest(float x)
{
    return poet_log1p(poet_exp(-size_of(x)));
}

static float not_below(float x, float least)
{
    return x < least ? least : x;
}

FUNCTION(absolute, size_of(x))
FUNCTION(sign, (float)((x > 0.0f) - (x < 0.0f)))
FUNCTION(exp_of, poet_exp(x))
FUNCTION(expm1_of, poet_expm1(x))
FUNCTION(log_of, poet_log(x))
FUNCTION(log1p_of, poet_log1p(x))
FUNCTION(sqrt_of, poet_sqrt(x))
FUNCTION(rsqrt_of, 1.0f / poet_sqrt(x))
FUNCTION(reciprocal, 1.0f / x)
FUNCTION(relu_of, x < 0.0f ? 0.0f : x)
FUNCTION(clamp_of, within(x, n[0], n[1]))
FUNCTION(tanh_of, poet_tanh(x))
FUNCTION(sigmoid_of, poet_sigmoid(x))
FUNCTION(silu_of, x * poet_sigmoid(x))
FUNCTION(threshold, x <= n[0] ? n[1] : x)
FUNCTION(leaky_relu, x > 0.0f ? x : x * n[0])
FUNCTION(elu, x <= 0.0f ? poet_expm1(x * n[2]) * n[0] : x * n[1])
FUNCTION(softplus, softplus(x, n[0], n[1]))
FUNCTION(mish, x * mish_gate(x))
FUNCTION(hardswish, x * within(x + 3.0f, 0.0f, 6.0f) / 6.0f)
FUNCTION(hardsigmoid, within(x + 3.0f, 0.0f, 6.0f) / 6.0f)
FUNCTION(hardshrink, x >= -n[0] && x <= n[0] ? 0.0f : x)
FUNCTION(softshrink, x > n[0] ? x - n[0] : x < -n[0] ? x + n[0] : x * 0.0f)
FUNCTION(log_sigmoid, (x < 0.0f ? x : 0.0f) - rest(x))
FUNCTION(exp_of_minus_size, poet_exp(-size_of(x)))
FUNCTION(most, x != x || x > y ? x : y)
FUNCTION(least, x != x || x < y ? x : y)
FUNCTION(xlogy, x == 0.0f && y == y ? 0.0f : x * poet_log(y))
FUNCTION(product, x * y)
FUNCTION(gated, x * poet_sigmoid(y))
FUNCTION(prelu, x > 0.0f ? x : x * y)

FUNCTION(relu_slope, y > n[0] ? x : 0.0f)
FUNCTION(clamp_slope, y > n[0] && y < n[1] ? x : 0.0f)
FUNCTION(tanh_slope, x * (1.0f - y * y))
FUNCTION(sigmoid_slope, x * (1.0f - y) * y)
FUNCTION(silu_slope, x * silu_slope(y))
FUNCTION(leaky_relu_slope, y > 0.0f ? x : x * n[0])
FUNCTION(elu_slope, y <= 0.0f ? x * n[2] * n[0] * poet_exp(y * n[2]) : x * n[1])
FUNCTION(elu_slope_of_result, y <= 0.0f ? x * n[2] * (y + n[0]) : x * n[1])
FUNCTION(softplus_slope, y * n[0] > n[1] ? x : x * poet_sigmoid(y * n[0]))
FUNCTION(mish_slope, x * mish_slope(y))
FUNCTION(hardswish_slope, y <= -3.0f ? 0.0f : y < 3.0f ? x * (y / 3.0f + 0.5f) : x)
FUNCTION(hardsigmoid_slope, y > -3.0f && y < 3.0f ? x / 6.0f : 0.0f)
FUNCTION(shrink_slope, y >= -n[0] && y <= n[0] ? 0.0f : x)
FUNCTION(log_sigmoid_slope, x * poet_sigmoid(-y))
FUNCTION(gate_slope, x * y * (1.0f - poet_sigmoid(z)) * poet_sigmoid(z))
FUNCTION(prelu_slope, y > 0.0f ? x : x * z)
FUNCTION(prelu_weight_slope, y > 0.0f ? 0.0f : x * y)

FUNCTION(mse_term, (x - y) * (x - y))
FUNCTION(mse_slope, 2.0f * (x - y))
FUNCTION(smooth_term, size_of(x - y) < n[0] ? 0.5f * (x - y) * (x - y) / n[0]
                                            : size_of(x - y) - 0.5f * n[0])
FUNCTION(smooth_slope, within((x - y) / n[0], -1.0f, 1.0f))
FUNCTION(huber_term, size_of(x - y) <= n[0] ? 0.5f * (x - y) * (x - y)
                                            : n[0] * (size_of(x - y) - 0.5f * n[0]))
FUNCTION(huber_slope, within(x - y, -n[0], n[0]))
FUNCTION(bce_term, (y - 1.0f) * not_below(poet_log1p(-x), -100.0f) -
                       y * not_below(poet_log(x), -100.0f))
FUNCTION(bce_slope, (x - y) / not_below((1.0f - x) * x, 1e-12f))
FUNCTION(logits_term, (1.0f - y) * x + ((z - 1.0f) * y + 1.0f) * (rest(x) + not_below(-x, 0.0f)))
FUNCTION(margin_term, softplus(-y * x, 1.0f, 80.0f))
FUNCTION(margin_slope, -y * poet_sigmoid(-y * x))
