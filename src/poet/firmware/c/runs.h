/* Products of a row: what a processor can load several at a time. Sums are the same in any case. */
#ifndef POET_RUNS_H
#define POET_RUNS_H

#include "kernels.h"

/* One load for a run of numbers, which compilers do not make of C. */
#if defined(__thumb2__) && defined(__ARM_FP) && (__ARM_FP & 4)
#define POET_LOADS_RUNS 1
#else
#define POET_LOADS_RUNS 0
#endif

/* sum + a[0] * b[0] + ... + a[3] * b[3], one after the other; `b` moves on. */
POET_INLINE float poet_four_of_a_run(float sum, const float *a, const float **b)
{
#if POET_LOADS_RUNS
    __asm__("vldmia %1!, {s16-s19}\n\t"
            "vmul.f32 s16, s16, %2\n\t"
            "vmul.f32 s17, s17, %3\n\t"
            "vmul.f32 s18, s18, %4\n\t"
            "vmul.f32 s19, s19, %5\n\t"
            "vadd.f32 %0, %0, s16\n\t"
            "vadd.f32 %0, %0, s17\n\t"
            "vadd.f32 %0, %0, s18\n\t"
            "vadd.f32 %0, %0, s19"
            : "+t"(sum), "+r"(*b)
            : "t"(a[0]), "t"(a[1]), "t"(a[2]), "t"(a[3]), "m"(*(const float(*)[4])*b)
            : "s16", "s17", "s18", "s19");
#else
    for (int k = 0; k < 4; k++)
        sum += a[k] * (*b)[k];
    *b += 4;
#endif
    return sum;
}

/* sum[i] + a * b[i] for eight in a row. */
POET_INLINE void poet_eight_in_a_row(float *sum, float a, const float *b)
{
#if POET_LOADS_RUNS
    __asm__("vldmia %8, {s16-s23}\n\t"
            "vmul.f32 s16, s16, %9\n\t"
            "vmul.f32 s17, s17, %9\n\t"
            "vmul.f32 s18, s18, %9\n\t"
            "vmul.f32 s19, s19, %9\n\t"
            "vmul.f32 s20, s20, %9\n\t"
            "vmul.f32 s21, s21, %9\n\t"
            "vmul.f32 s22, s22, %9\n\t"
            "vmul.f32 s23, s23, %9\n\t"
            "vadd.f32 %0, %0, s16\n\t"
            "vadd.f32 %1, %1, s17\n\t"
            "vadd.f32 %2, %2, s18\n\t"
            "vadd.f32 %3, %3, s19\n\t"
            "vadd.f32 %4, %4, s20\n\t"
            "vadd.f32 %5, %5, s21\n\t"
            "vadd.f32 %6, %6, s22\n\t"
            "vadd.f32 %7, %7, s23"
            : "+t"(sum[0]), "+t"(sum[1]), "+t"(sum[2]), "+t"(sum[3]), "+t"(sum[4]), "+t"(sum[5]),
              "+t"(sum[6]), "+t"(sum[7])
            : "r"(b), "t"(a), "m"(*(const float(*)[8])b)
            : "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23");
#else
    for (int i = 0; i < 8; i++)
        sum[i] += a * b[i];
#endif
}

#endif
