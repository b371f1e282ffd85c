/* Vectors of four floats.
 *
 * They take numbers next to zero for zero, which plain loops do not. The processor says when that
 * has happened, and what it has happened to is computed again without vectors. So compilers must
 * not make vectors by themselves (-fno-tree-vectorize).
 */
#ifndef POET_LANES_H
#define POET_LANES_H

#include "helium.h"

#if POET_HELIUM
#include <arm_mve.h>

enum { LANES = 4, FLUSHED = 1 << 7 | 1 << 3 /* of the flags: an operand, or a result */ };

/* Whether a number next to zero was taken for zero on the way to four vectors; forgotten then. */
POET_INLINE uint32_t poet_was_flushed(float32x4_t *x)
{
    uint32_t flags;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(flags), "+w"(x[0]), "+w"(x[1]), "+w"(x[2]), "+w"(x[3]));
    if (!(flags & FLUSHED))
        return 0;
    __asm__ volatile("vmsr fpscr, %0" : : "r"(flags & ~(uint32_t)FLUSHED) : "memory");
    return 1;
}

POET_INLINE void poet_forget(void)
{
    uint32_t flags;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(flags) : : "memory");
    __asm__ volatile("vmsr fpscr, %0" : : "r"(flags & ~(uint32_t)FLUSHED) : "memory");
}

/* Two numbers of a run, in one load, and on to the next. */
POET_INLINE void poet_take_two(float *to, const float **from)
{
    __asm__("ldrd %0, %1, [%2], #8"
            : "=r"(to[0]), "=r"(to[1]), "+r"(*from)
            : "m"(*(const float(*)[2]) * from));
}

POET_INLINE float32x4_t poet_plus(float32x4_t sum, float32x4_t right, float left)
{
    return vaddq_f32(sum, vmulq_n_f32(right, left));
}

#endif
#endif
