/* An ordinary computer: the card is the file named on the command line. */
#include <stdio.h>
#include <stdlib.h>

#include "board.h"

static FILE *card;

static void open_card(void)
{
    const char *name = getenv("POET_CARD");
    if (card == NULL)
        card = fopen(name ? name : "card.img", "r+b");
    if (card == NULL) {
        fprintf(stderr, "error: there is no card: %s\n", name ? name : "card.img");
        exit(1);
    }
}

int board_read(uint32_t offset, void *to, uint32_t count)
{
    open_card();
    return fseek(card, (long)offset, SEEK_SET) != 0 || fread(to, 1, count, card) != count;
}

int board_write(uint32_t offset, const void *from, uint32_t count)
{
    open_card();
    return fseek(card, (long)offset, SEEK_SET) != 0 || fwrite(from, 1, count, card) != count;
}

void board_log(const char *text)
{
    fputs(text, stderr);
    fflush(stderr);
}

void board_exit(int code)
{
    if (card != NULL && fclose(card) != 0)
        code = 1;
    exit(code);
}

uint64_t board_instructions(void)
{
    return 0;
}

uint32_t board_stack_used(void)
{
    return 0;
}
