/* exp, log, sqrt and what is made of them, from additions, products and bits alone.
 *
 * The polynomials' coefficients are those of the Cephes library (Moshier 1992).
 */
#include "kernels.h"

static float from_bits(uint32_t bits)
{
    union { uint32_t bits; float value; } both = {bits};
    return both.value;
}

static uint32_t to_bits(float value)
{
    union { float value; uint32_t bits; } both = {value};
    return both.bits;
}

/* exp(r) - 1, |r| <= ln(2) / 2 */
static float near_zero(float r)
{
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r) + r;
}

/* 2^k times a polynomial in the rest: exp(x) = 2^k exp(r), |r| <= ln(2) / 2. */
float poet_exp(float x)
{
    if (x != x)
        return x;
    if (x > 88.72283f)
        return from_bits(0x7f800000u);
    if (x < -103.97208f)
        return 0.0f;
    float scaled = x * 1.44269504f;
    int32_t k = (int32_t)(scaled < 0.0f ? scaled - 0.5f : scaled + 0.5f);
    float whole = (float)k;
    float r = x - whole * 0.693359375f; /* exact: the constant has few bits */
    r = r + whole * 2.12194440e-4f;
    float p = near_zero(r) + 1.0f;
    /* In two factors, since 2^k itself may be too small or too large for a float. */
    int32_t half = k / 2;
    return p * from_bits((uint32_t)(half + 127) << 23) * from_bits((uint32_t)(k - half + 127) << 23);
}

/* exp(x) - 1, also where exp(x) is next to 1 */
float poet_expm1(float x)
{
    return x > -0.34f && x < 0.34f ? near_zero(x) : poet_exp(x) - 1.0f;
}

/* log(m 2^e) = e ln(2) + log(m), sqrt(1/2) <= m < sqrt(2). */
float poet_log(float x)
{
    if (x != x || x < 0.0f)
        return from_bits(0x7fc00000u);
    if (x == 0.0f)
        return from_bits(0xff800000u);
    uint32_t bits = to_bits(x);
    if (bits == 0x7f800000u)
        return x;
    int32_t e = 0;
    if (bits < 0x00800000u) { /* too small for the usual form */
        bits = to_bits(x * 8388608.0f);
        e = -23;
    }
    e += (int32_t)(bits >> 23) - 126;
    float m = from_bits((bits & 0x007fffffu) | 0x3f000000u);
    if (m < 0.707106781f) {
        e -= 1;
        m = m + m;
    }
    m = m - 1.0f;
    float square = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = p * m * square;
    p = p + (float)e * -2.12194440e-4f;
    p = p - 0.5f * square;
    return (m + p) + (float)e * 0.693359375f;
}

/* log(1 + x): what rounding 1 + x has lost is made good by what is left of x. */
float poet_log1p(float x)
{
    float sum = 1.0f + x;
    if (sum == 1.0f || x != x || sum - sum != 0.0f)
        return x;
    return sum == 0.0f ? poet_log(sum) : poet_log(sum) * (x / (sum - 1.0f));
}

/* The nearest float: sqrt(m 2^e) = 2^(e/2) sqrt(m) for an even e, by whole numbers alone. */
float poet_sqrt(float x)
{
    uint32_t bits = to_bits(x);
    if (x != x || x == 0.0f || bits == 0x7f800000u)
        return x;
    if (x < 0.0f)
        return from_bits(0x7fc00000u);
    int32_t e = 0;
    if (bits < 0x00800000u) { /* too small for the usual form */
        bits = to_bits(x * 16777216.0f);
        e = -24;
    }
    e += (int32_t)(bits >> 23) - 150;
    int32_t more = e & 1 ? 23 : 24; /* so that the rest of the exponent is even */
    uint64_t m = (uint64_t)((bits & 0x007fffffu) | 0x00800000u) << more;
    e = (e - more) / 2;
    uint32_t root = 0;
    for (uint32_t bit = 1u << 23; bit != 0; bit >>= 1) {
        uint64_t trial = root | bit;
        if (trial * trial <= m)
            root |= bit;
    }
    uint64_t rest = m - (uint64_t)root * root;
    if (rest > root)
        root++; /* (root + 1/2)^2 lies between whole numbers: there are no ties */
    return (float)root * from_bits((uint32_t)(e + 127) << 23);
}

float poet_sigmoid(float x)
{
    if (x >= 0.0f)
        return 1.0f / (1.0f + poet_exp(-x));
    float e = poet_exp(x);
    return e / (1.0f + e);
}

float poet_tanh(float x)
{
    float size = x < 0.0f ? -x : x;
    float result;
    if (size < 0.625f) { /* a polynomial, where the quotient below would cancel */
        float square = x * x;
        float p = -5.70498872745e-3f;
        p = p * square + 2.06390887954e-2f;
        p = p * square - 5.37397155531e-2f;
        p = p * square + 1.33314422036e-1f;
        p = p * square - 3.33332819422e-1f;
        return p * square * x + x;
    }
    result = size > 9.02f ? 1.0f : 1.0f - 2.0f / (poet_exp(size + size) + 1.0f);
    return x < 0.0f ? -result : result;
}
