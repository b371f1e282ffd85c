/* The internal RAM of this board ends, and an access past it faults. */
void limit_ram(void);
void limit_ram(void)
{
}
