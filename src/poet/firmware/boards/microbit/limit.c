/* The micro:bit has 16 KiB of RAM, and an access past it faults. */
void limit_ram(void);
void limit_ram(void)
{
}
