/* Start-up for Cortex-M processors, whatever the board.
 *
 * RAM from its first byte: the stack (which grows down, so that an overflow leaves RAM and faults),
 * variables, the arena. All that is the board's own is in board.c.
 */
#include "board.h"

extern uint32_t ram_begin, stack_top, data_begin, data_end, data_from, bss_begin, bss_end;
int main(void);

enum { PAINT = 0x5aa5c33c };

uint32_t board_stack_used(void)
{
    const uint32_t *at = &ram_begin;
    while (at < &stack_top && *at == PAINT)
        at++;
    return (uint32_t)((const uint8_t *)&stack_top - (const uint8_t *)at);
}

void on_fault(void);
void on_fault(void)
{
    board_log("error: fault: an access outside of RAM, or a broken instruction\n");
    board_exit(3);
}

/* A board that has a use for this interrupt has a function of this name. */
void on_systick(void);
__attribute__((weak)) void on_systick(void)
{
    on_fault();
}

void on_reset(void);
void on_reset(void)
{
    register uint32_t *stack_now __asm__("sp");
    for (uint32_t *at = &ram_begin; at < stack_now - 8; at++)
        *at = PAINT;
    const uint32_t *from = &data_from;
    for (uint32_t *to = &data_begin; to < &data_end; to++)
        *to = *from++;
    for (uint32_t *to = &bss_begin; to < &bss_end; to++)
        *to = 0;
#if defined(__ARM_FP)
    *(volatile uint32_t *)0xe000ed88u |= 0xf00000u; /* the floating-point unit on */
    __asm__ volatile("dsb\nisb");
#endif
    board_begin();
    board_exit(main());
}

struct vectors {
    const void *stack;
    void (*handlers[15])(void);
};

__attribute__((section(".vectors"), used)) static const struct vectors vectors = {
    &stack_top,
    {on_reset, on_fault, on_fault, on_fault, on_fault, on_fault, 0, 0, 0, 0, on_fault, on_fault, 0,
     on_fault, on_systick},
};
