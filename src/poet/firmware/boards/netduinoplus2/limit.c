/* An STM32F405 has 128 KiB of contiguous RAM, and 64 KiB elsewhere that only its core reaches; some
 * versions of the emulator have 192 KiB in one piece. The memory protection unit is set to the 128
 * KiB, whatever the linker script says. */
#include "mpu.h"

void limit_ram(void);
void limit_ram(void)
{
    allow(0, 0x00000000u, 20, READ_ONLY);            /* 1 MiB of flash, as it is seen at 0 ... */
    allow(1, 0x08000000u, 20, READ_ONLY);            /* ... and at its own address */
    allow(2, 0x20000000u, 17, READ_WRITE | NO_CODE); /* 128 KiB of RAM */
    begin_protection();
}
