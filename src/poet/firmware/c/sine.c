/* Sine and cosine of any float, by whole numbers down to an eighth of a turn.
 *
 * The polynomials' coefficients are those of the Cephes library (Moshier 1992).
 */
#include "layers.h"

/* The bits of 2 / pi behind the point. */
static const uint32_t quarters[] = {0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u,
                                   0x3c439041u, 0xfe5163abu, 0xdebbc561u};

/* Quarters of a turn next to x, which is not negative; what is left of x goes to `rest`. */
static uint32_t quarter(float x, float *rest)
{
    *rest = x;
    if (x <= 0.785398163f)
        return 0;
    union { float value; uint32_t bits; } both = {x};
    int32_t e = (int32_t)(both.bits >> 23) - 150;
    uint64_t m = (both.bits & 0x007fffffu) | 0x00800000u;
    /* Of m 2^e (2 / pi) nobody needs multiples of 4: the bits that give those are passed over, and
     * the next 96 are taken. */
    uint32_t past = e > 2 ? (uint32_t)e - 2 : 0, shift = past % 32, words[3];
    for (int i = 0; i < 3; i++) {
        const uint32_t *word = quarters + past / 32 + i;
        words[i] = (uint32_t)((((uint64_t)word[0] << 32 | word[1]) << shift) >> 32);
    }
    uint64_t low = m * words[2], middle = m * words[1] + (low >> 32);
    uint64_t high = m * words[0] + (middle >> 32);
    uint32_t down = e < 2 ? (uint32_t)(2 - e) : 0;
    uint64_t turned = high << (32 - down) | (middle & 0xffffffffu) >> down; /* 62 bits of a quarter */
    uint64_t near = (turned + ((uint64_t)1 << 61)) >> 62;
    *rest = (float)(int64_t)(turned - (near << 62)) * 3.40612158e-19f; /* pi / 2 * 2^-62 */
    return (uint32_t)near & 3;
}

static float sine_of(float r)
{
    float square = r * r, p = -1.9515295891e-4f;
    p = p * square + 8.3321608736e-3f;
    p = p * square - 1.6666654611e-1f;
    return p * square * r + r;
}

static float cosine_of(float r)
{
    float square = r * r, p = 2.443315711809948e-5f;
    p = p * square - 1.388731625493765e-3f;
    p = p * square + 4.166664568298827e-2f;
    return p * (square * square) - 0.5f * square + 1.0f;
}

/* sin(x + ahead quarters) for x that is not negative */
static float sine_ahead(float x, uint32_t ahead)
{
    if (x - x != 0.0f)
        return x - x; /* none of infinity */
    float rest;
    uint32_t at = quarter(x, &rest) + ahead;
    float size = at & 1 ? cosine_of(rest) : sine_of(rest);
    return at & 2 ? -size : size;
}

float poet_sine(float x, float y, float z, const float *numbers)
{
    (void)y, (void)z, (void)numbers;
    return x < 0.0f ? -sine_ahead(-x, 0) : sine_ahead(x, 0);
}

float poet_cosine(float x, float y, float z, const float *numbers)
{
    (void)y, (void)z, (void)numbers;
    return sine_ahead(x < 0.0f ? -x : x, 1);
}
