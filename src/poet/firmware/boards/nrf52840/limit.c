/* The emulated machine has megabytes of RAM; an nRF52840 has 256 KiB. The memory protection unit is
 * set to that constant, whatever the linker script says. */
#include "mpu.h"

void limit_ram(void);
void limit_ram(void)
{
    allow(0, 0x00000000u, 20, READ_ONLY);            /* 1 MiB of flash */
    allow(1, 0x20000000u, 18, READ_WRITE | NO_CODE); /* 256 KiB of RAM */
    begin_protection();
}
