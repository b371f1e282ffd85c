/* What a board gives. */
#ifndef POET_BOARD_H
#define POET_BOARD_H

#include <stdint.h>

/* Called once, before main, by the start-up of boards without an operating system. */
void board_begin(void);

/* Both return 0, or another number if the card does not do it. */
int board_read(uint32_t offset, void *to, uint32_t count);
int board_write(uint32_t offset, const void *from, uint32_t count);

void board_log(const char *text);
void board_exit(int code);

/* Instructions since the start, where the board can count them. */
uint64_t board_instructions(void);

/* Most bytes of stack used so far, where the board can tell. */
uint32_t board_stack_used(void);

#endif
