/* Dropout's masks, from a generator without a state: a number is a hash of where it stands. */
#include "kernels.h"

static uint32_t mixed(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du; /* both factors: Wellons 2018, "prospecting for hash functions" */
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

void poet_dropout_mask(float *out, float kept, uint32_t seed, uint32_t step, uint32_t op,
                       int32_t first, int32_t count)
{
    uint32_t key = mixed(mixed(mixed(seed) + step) + op);
    float value = kept > 0.0f ? 1.0f / kept : 0.0f;
    for (int32_t i = 0; i < count; i++) {
        float chance = (float)(mixed(key + (uint32_t)(first + i)) >> 8) * (1.0f / 16777216.0f);
        out[i] = chance < kept ? value : 0.0f;
    }
}
