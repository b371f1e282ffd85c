/* Start-up and the functions of board.h on an nRF52840 itself: the card on SPI, the console on a
 * serial line of 115,200 baud. The memory is laid out as in the folder's link.ld: the stack lowest. */
#include <stddef.h>

#include "board.h"
#include "nrf52840.h"
#include "sd.h"

extern uint32_t ram_begin, stack_top, data_begin, data_end, data_from, bss_begin, bss_end;
int main(void);

enum { PAINT = 0x5aa5c33c };

int board_read(uint32_t offset, void *to, uint32_t count)
{
    return sd_read(offset, to, count);
}

int board_write(uint32_t offset, const void *from, uint32_t count)
{
    return sd_write(offset, from, count);
}

/* ---- the console: UARTE0, whose DMA reaches RAM alone, and constant texts are in flash ---- */
#define UARTE(offset) AT(0x40002000u + (offset))
enum { START_OUT = 0x008, EVENT_SENT = 0x120, ENABLE = 0x500, PIN_OUT = 0x50c, BAUD = 0x524 };
enum { FROM = 0x544, FROM_COUNT = 0x548 };

static void open_console(void)
{
    PIN_SET(CONSOLE_OUT) = BIT(CONSOLE_OUT);
    PIN_CONFIGURED(CONSOLE_OUT) = OUTPUT;
    UARTE(PIN_OUT) = CONSOLE_OUT;
    UARTE(BAUD) = 0x01d60000; /* 115,200 */
    UARTE(ENABLE) = 8;
}

void board_log(const char *text)
{
    static char line[64];
    while (*text != 0) {
        uint32_t count = 0;
        while (count < sizeof line && *text != 0)
            line[count++] = *text++;
        UARTE(FROM) = (uint32_t)(uintptr_t)line;
        UARTE(FROM_COUNT) = count;
        UARTE(EVENT_SENT) = 0;
        __asm__ volatile("dmb" ::: "memory");
        UARTE(START_OUT) = 1;
        while (UARTE(EVENT_SENT) == 0) {
        }
    }
}

/* There is nothing to go back to: the processor sleeps until somebody resets it. */
void board_exit(int code)
{
    if (code != 0)
        board_log("stopped\n");
    for (;;)
        __asm__ volatile("wfi");
}

/* ---- cycles, by the debug unit's counter of 32 bits: right if asked once a minute ---- */
#define CYCLES AT(0xe0001004u)

uint64_t board_instructions(void)
{
    static uint64_t all;
    all += (uint32_t)(CYCLES - (uint32_t)all);
    return all;
}

uint32_t board_stack_used(void)
{
    const uint32_t *at = &ram_begin;
    while (at < &stack_top && *at == PAINT)
        at++;
    return (uint32_t)((const uint8_t *)&stack_top - (const uint8_t *)at);
}

/* ---- start and faults ---- */
void on_fault(void);
void on_fault(void)
{
    board_log("error: fault: an access outside of RAM, or a broken instruction\n");
    board_exit(3);
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
    AT(0xe000ed88u) |= 0xf00000u; /* the floating-point unit on */
    __asm__ volatile("dsb\nisb");
    AT(0xe000edfcu) |= 1u << 24; /* the debug unit on, and its counter of cycles */
    CYCLES = 0;
    AT(0xe0001000u) |= 1u;
    AT(0x40000000u) = 1; /* the crystal: the serial line wants its accuracy */
    while (AT(0x40000100u) == 0) {
    }
    open_console();
    board_exit(main());
}

struct vectors {
    const void *stack;
    void (*handlers[15])(void);
};

/* No peripheral interrupts: the drivers wait. */
__attribute__((section(".vectors"), used)) static const struct vectors vectors = {
    &stack_top,
    {on_reset, on_fault, on_fault, on_fault, on_fault, on_fault, 0, 0, 0, 0, on_fault, on_fault, 0,
     on_fault, on_fault},
};
