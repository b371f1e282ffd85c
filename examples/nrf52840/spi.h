/* What the driver of the card needs of a board: bytes both ways, the card's select line, a clock. */
#ifndef SPI_H
#define SPI_H

#include <stdint.h>

void spi_open(void); /* slow at first: a card that has just been plugged in takes 400 kHz at most */
void spi_go_fast(void);
void spi_select(int is_selected);

/* `count` bytes out of `from` and into `to`, which lie in RAM. NULL: 0xff goes out; what comes in is
 * thrown away. */
void spi_move(const uint8_t *from, uint8_t *to, uint32_t count);

#endif
