/* Products on processors with vectors of four floats (Arm's Helium, MVE), by multiplying and adding
 * apart and in the order of the plain loops. */
#ifndef POET_HELIUM_H
#define POET_HELIUM_H

#include "kernels.h"

#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#define POET_HELIUM 1
#else
#define POET_HELIUM 0
#endif

struct poet_walk; /* conv.h */

/* One block of products for all of `out`, as poet_matmul does it. */
void poet_helium_block(float *out, const float *a, const float *b, const float *row,
                       const struct poet_matmul *shape, int32_t is_first, int32_t count);
/* The sums of poet_conv_sums: returns 0, and does nothing, where taps are not next to each other in
 * what is read, or more than three by three. */
int32_t poet_helium_sums(float *out, const float *from, const float *weight,
                         const struct poet_walk *walk);

#endif
