/* SD cards over SPI: whole sectors of 512 bytes, as poet.h asks of a store. */
#ifndef SD_H
#define SD_H

#include <stdint.h>

/* Offsets are multiples of 512, and so are counts of bytes to write. 0 if all went well. A write that has returned is on the
 * card. The card is opened when it is first used, and again after an error. */
int sd_read(uint32_t offset, void *to, uint32_t count);
int sd_write(uint32_t offset, const void *from, uint32_t count);

#endif
