/* SPI by SPIM0, whose DMA reaches RAM alone. */
#include "spi.h"

#include <stddef.h>

#include "nrf52840.h"

#define SPIM(offset) AT(0x40003000u + (offset))
enum { START = 0x010, EVENT_END = 0x118, ENABLE = 0x500, PIN_CLOCK = 0x508, PIN_OUT = 0x50c };
enum { PIN_IN = 0x510, FREQUENCY = 0x524, TO = 0x534, TO_COUNT = 0x538, FROM = 0x544 };
enum { FROM_COUNT = 0x548, MODE = 0x554, FILLER = 0x5c0 };
#define KHZ_250 0x04000000u
#define MHZ_8 0x80000000u

void spi_open(void)
{
    SPIM(ENABLE) = 0;
    PIN_SET(CARD_SELECT) = BIT(CARD_SELECT);
    PIN_CLEAR(CARD_CLOCK) = BIT(CARD_CLOCK);
    PIN_SET(CARD_OUT) = BIT(CARD_OUT);
    PIN_CONFIGURED(CARD_SELECT) = OUTPUT;
    PIN_CONFIGURED(CARD_CLOCK) = OUTPUT;
    PIN_CONFIGURED(CARD_OUT) = OUTPUT;
    PIN_CONFIGURED(CARD_IN) = INPUT_PULLED_UP;
    SPIM(PIN_CLOCK) = CARD_CLOCK;
    SPIM(PIN_OUT) = CARD_OUT;
    SPIM(PIN_IN) = CARD_IN;
    SPIM(FREQUENCY) = KHZ_250;
    SPIM(MODE) = 0; /* the first edge samples, most significant bit first */
    SPIM(FILLER) = 0xff;
    SPIM(ENABLE) = 7;
}

void spi_go_fast(void)
{
    SPIM(FREQUENCY) = MHZ_8;
}

void spi_select(int is_selected)
{
    if (is_selected)
        PIN_CLEAR(CARD_SELECT) = BIT(CARD_SELECT);
    else
        PIN_SET(CARD_SELECT) = BIT(CARD_SELECT);
}

void spi_move(const uint8_t *from, uint8_t *to, uint32_t count)
{
    static uint8_t nothing;
    SPIM(FROM) = (uint32_t)(uintptr_t)from;
    SPIM(FROM_COUNT) = from == NULL ? 0 : count;
    SPIM(TO) = (uint32_t)(uintptr_t)(to == NULL ? &nothing : to);
    uint32_t steps = 1;
    if (from == NULL && to == NULL) { /* the filler goes out while bytes come in: one at a time */
        SPIM(TO_COUNT) = 1;
        steps = count;
    } else {
        SPIM(TO_COUNT) = to == NULL ? 0 : count;
    }
    for (uint32_t i = 0; i < steps; i++) {
        SPIM(EVENT_END) = 0;
        __asm__ volatile("dmb" ::: "memory"); /* what was stored is there before the DMA reads */
        SPIM(START) = 1;
        while (SPIM(EVENT_END) == 0) {
        }
        __asm__ volatile("dmb" ::: "memory");
    }
}
