/* spi.h of examples/nrf52840 on a machine that the emulator has with an SD card on SPI (lm3s6965evb:
 * a PL022 at 0x40008000, the card's select line on pin 0 of port D). */
#include "spi.h"

#include "board.h"
#include "sd.h"

#define AT(address) (*(volatile uint32_t *)(address))
#define SSI(offset) AT(0x40008000u + (offset))
#define PIN_D0 AT(0x40007000u + (1u << 2))
enum { CONTROL_0 = 0x000, CONTROL_1 = 0x004, DATA = 0x008, STATUS = 0x00c, PRESCALER = 0x010 };

void spi_open(void)
{
    AT(0x40007400u) |= 1; /* an output */
    AT(0x4000751cu) |= 1; /* a digital one */
    SSI(CONTROL_1) = 0;
    SSI(PRESCALER) = 2;
    SSI(CONTROL_0) = 7; /* eight bits */
    SSI(CONTROL_1) = 2;
}

void spi_go_fast(void)
{
}

void spi_select(int is_selected)
{
    PIN_D0 = is_selected ? 0 : 1;
}

void spi_move(const uint8_t *from, uint8_t *to, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        SSI(DATA) = from != 0 ? from[i] : 0xff;
        while ((SSI(STATUS) & 4) == 0) { /* nothing has come in */
        }
        uint8_t got = (uint8_t)SSI(DATA);
        if (to != 0)
            to[i] = got;
    }
}

int board_read(uint32_t offset, void *to, uint32_t count)
{
    return sd_read(offset, to, count);
}

int board_write(uint32_t offset, const void *from, uint32_t count)
{
    return sd_write(offset, from, count);
}
