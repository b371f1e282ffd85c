/* The functions of board.h on an nRF52840 itself: the card on SPI, the console on a serial line of
 * 115,200 baud. The start-up is start.c of the folder that poet emit wrote. */
#include "board.h"
#include "nrf52840.h"
#include "sd.h"

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

void board_begin(void)
{
    AT(0xe000edfcu) |= 1u << 24; /* the debug unit on, and its counter of cycles */
    CYCLES = 0;
    AT(0xe0001000u) |= 1u;
    AT(0x40000000u) = 1; /* the crystal: the serial line wants its accuracy */
    while (AT(0x40000100u) == 0) {
    }
    open_console();
}
