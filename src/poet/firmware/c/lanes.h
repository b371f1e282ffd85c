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

POET_INLINE uint32_t poet_flag_and_forget(uint32_t flags)
{
    if (!(flags & FLUSHED))
        return 0;
    __asm__ volatile("vmsr fpscr, %0" : : "r"(flags & ~(uint32_t)FLUSHED) : "memory");
    return 1;
}

/* Whether a number next to zero was taken for zero on the way to four vectors, or to two; forgotten
 * then. */
POET_INLINE uint32_t poet_was_flushed(float32x4_t *x)
{
    uint32_t flags;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(flags), "+w"(x[0]), "+w"(x[1]), "+w"(x[2]), "+w"(x[3]));
    return poet_flag_and_forget(flags);
}

POET_INLINE uint32_t poet_flushed_two(float32x4_t *x)
{
    uint32_t flags;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(flags), "+w"(x[0]), "+w"(x[1]));
    return poet_flag_and_forget(flags);
}

/* The same for all that was stored before. */
POET_INLINE uint32_t poet_has_flushed(void)
{
    uint32_t flags;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(flags) : : "memory");
    return poet_flag_and_forget(flags);
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

/* Addresses of four numbers `apart` elements apart. */
POET_INLINE uint32x4_t poet_each(const float *first, int32_t apart)
{
    return vmlaq_n_u32(vdupq_n_u32((uint32_t)(uintptr_t)first), vidupq_n_u32(0, 4),
                       (uint32_t)apart);
}

POET_INLINE uint32x4_t poet_moved(uint32x4_t at, int32_t elements)
{
    return vaddq_n_u32(at, 4 * (uint32_t)elements);
}

/* Moves on by a pixel, and takes what is there. */
POET_INLINE float32x4_t poet_next_of(uint32x4_t *x, const int step)
{
    float32x4_t found;
    if (step == 1)
        __asm__("vldrw.u32 %q0, [%q1, #4]!" : "=&w"(found), "+w"(*x) : : "memory");
    else
        __asm__("vldrw.u32 %q0, [%q1, #8]!" : "=&w"(found), "+w"(*x) : : "memory");
    return found;
}

#endif
#endif
