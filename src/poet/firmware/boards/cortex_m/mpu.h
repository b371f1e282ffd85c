/* The memory protection unit: what no region allows, faults. */
#ifndef POET_MPU_H
#define POET_MPU_H

#include <stdint.h>

#define MPU ((volatile uint32_t *)0xe000ed90u)
enum { MPU_CONTROL = 1, MPU_REGION = 2, MPU_BASE = 3, MPU_RULES = 4 };
enum { READ_ONLY = 6u << 24, READ_WRITE = 3u << 24, NO_CODE = 1u << 28, ON = 1 };

/* A region of 2^log2_bytes bytes; `base` is a multiple of its size. */
static inline void allow(uint32_t number, uint32_t base, uint32_t log2_bytes, uint32_t rules)
{
    MPU[MPU_REGION] = number;
    MPU[MPU_BASE] = base;
    MPU[MPU_RULES] = rules | (log2_bytes - 1) << 1 | ON;
}

static inline void begin_protection(void)
{
    MPU[MPU_CONTROL] = ON;
    __asm__ volatile("dsb\nisb");
}

#endif
