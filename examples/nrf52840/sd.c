/* The protocol is that of the SD Physical Layer Simplified Specification, chapter 7. The card's own
 * checksums are off, as they are on SPI by default: each sector of POET has one. */
#include "sd.h"

#include <stddef.h>

#include "spi.h"

enum { SECTOR = 512 };
enum { IDLE = 0x01, TOKEN = 0xfe, ACCEPTED = 0x05 };
enum { GO_IDLE = 0, SEND_IF_COND = 8, SEND_STATUS = 13, SET_BLOCKLEN = 16, READ_BLOCK = 17 };
enum { WRITE_BLOCK = 24, APP_SEND_OP_COND = 41, APP_COMMAND = 55, READ_OCR = 58 };

/* Bytes to wait for: at 8 MHz a byte takes a microsecond at least, and a card half a second at most
 * to write. */
enum { ANSWER_BYTES = 10, PATIENCE_BYTES = 1000000, ATTEMPTS = 20000 };

static int is_open, takes_sectors;

static uint8_t next(void)
{
    uint8_t byte;
    spi_move(NULL, &byte, 1);
    return byte;
}

/* The first byte that is not `byte`; `byte` itself if the card does not end. */
static uint8_t other_than(uint8_t byte)
{
    uint8_t got = byte;
    for (uint32_t i = 0; i < PATIENCE_BYTES && got == byte; i++)
        got = next();
    return got;
}

/* Ends what was said: the card lets the line go in the next clock cycles. */
static int closed(int failed)
{
    spi_select(0);
    next();
    return failed;
}

/* The first byte of the answer; the top bit is set if there is none. The card stays selected. */
static uint8_t ask(uint8_t command, uint32_t with)
{
    uint8_t frame[6] = {(uint8_t)(0x40 | command), (uint8_t)(with >> 24), (uint8_t)(with >> 16),
                        (uint8_t)(with >> 8), (uint8_t)with,
                        command == GO_IDLE ? 0x95 : 0x87 /* checksums of the two that have one */};
    uint8_t answer = 0xff;
    spi_select(1);
    if (command != GO_IDLE && other_than(0x00) != 0xff)
        return 0xff;
    spi_move(frame, NULL, sizeof frame);
    for (int i = 0; i < ANSWER_BYTES && (answer & 0x80) != 0; i++)
        answer = next();
    return answer;
}

static int begin(void)
{
    uint8_t answer = 0xff, words[4];
    uint32_t host_has = 0;
    spi_open();
    spi_select(0);
    spi_move(NULL, NULL, 10);
    for (int i = 0; i < 10 && answer != IDLE; i++) {
        answer = ask(GO_IDLE, 0);
        closed(0);
    }
    if (answer != IDLE)
        return 1;
    if (ask(SEND_IF_COND, 0x1aa) == IDLE) { /* a card of version 2 says 0x1aa in turn */
        spi_move(NULL, words, 4);
        if ((words[2] & 0x0f) != 1 || words[3] != 0xaa)
            return closed(1);
        host_has = 0x40000000; /* large cards are known */
    }
    closed(0);
    for (int i = 0; i < ATTEMPTS && answer != 0; i++) {
        answer = ask(APP_COMMAND, 0);
        closed(0);
        if ((answer & 0x80) == 0)
            answer = ask(APP_SEND_OP_COND, host_has);
        closed(0);
    }
    if (answer != 0)
        return 1;
    if ((ask(READ_OCR, 0) & (0xff ^ IDLE)) != 0)
        return closed(1);
    spi_move(NULL, words, 4);
    closed(0);
    takes_sectors = (words[0] & 0x40) != 0;
    if (!takes_sectors && closed(ask(SET_BLOCKLEN, SECTOR) != 0))
        return 1;
    spi_go_fast();
    return 0;
}

static int read_sector(uint32_t offset, uint8_t *to)
{
    if (ask(READ_BLOCK, takes_sectors ? offset / SECTOR : offset) != 0)
        return closed(1);
    if (other_than(0xff) != TOKEN)
        return closed(1);
    spi_move(NULL, to, SECTOR);
    spi_move(NULL, NULL, 2);
    return closed(0);
}

static int write_sector(uint32_t offset, const uint8_t *from)
{
    uint8_t before[2] = {0xff, TOKEN};
    if (ask(WRITE_BLOCK, takes_sectors ? offset / SECTOR : offset) != 0)
        return closed(1);
    spi_move(before, NULL, sizeof before);
    spi_move(from, NULL, SECTOR);
    spi_move(NULL, NULL, 2);
    if ((next() & 0x1f) != ACCEPTED)
        return closed(1);
    if (other_than(0x00) == 0x00)
        return closed(1);
    closed(0);
    uint8_t failed = ask(SEND_STATUS, 0);
    failed |= next();
    return closed(failed != 0);
}

static int is_ready(void)
{
    if (!is_open)
        is_open = begin() == 0;
    return is_open;
}

int sd_read(uint32_t offset, void *to, uint32_t count)
{
    static uint8_t part[SECTOR];
    for (uint32_t at = 0; at < count; at += SECTOR) {
        uint8_t *there = (uint8_t *)to + at;
        int is_part = count - at < SECTOR;
        if (!is_ready() || read_sector(offset + at, is_part ? part : there) != 0) {
            is_open = 0;
            return 1;
        }
        for (uint32_t i = 0; is_part && i < count - at; i++)
            there[i] = part[i];
    }
    return 0;
}

int sd_write(uint32_t offset, const void *from, uint32_t count)
{
    for (uint32_t at = 0; at < count; at += SECTOR)
        if (!is_ready() || write_sector(offset + at, (const uint8_t *)from + at) != 0) {
            is_open = 0;
            return 1;
        }
    return 0;
}
