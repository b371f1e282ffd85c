/* A store in memory that dies: a write can be cut before it, in the middle of the sector, or after
 * it; or with all that was not flushed written in part, as a store with a cache of its own may
 * leave it. `power` is where the program goes on. */
#ifndef DYING_STORE_H
#define DYING_STORE_H

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "network.h"
#include "poet.h"

/* From UNFLUSHED on each way loses others of the writes. */
enum way { BEFORE, TORN, AFTER, UNFLUSHED, WAYS, MORE_WAYS = WAYS + 4 };
enum { MOST_PENDING = 4096 };

static uint8_t *card, *pending;
static size_t card_bytes;
static uint32_t writes, cut_at, pending_count, pendings[MOST_PENDING];
static enum way way;
static jmp_buf power;

static int read_card(void *user, uint32_t offset, void *to, uint32_t count)
{
    (void)user;
    if (offset % POET_SECTOR || count % POET_SECTOR || offset + count > card_bytes)
        return 1;
    memcpy(to, card + offset, count);
    return 0;
}

static int flush_card(void *user)
{
    (void)user;
    pending_count = 0;
    return 0;
}

/* Of each sector that was not flushed, chance decides whether it is there. */
static void lose_some(void)
{
    uint32_t chance = cut_at * 2654435761u + (uint32_t)(way - UNFLUSHED) * 2246822519u;
    for (uint32_t i = 0; i < pending_count; i++) {
        chance = chance * 1664525u + 1013904223u;
        if (chance >> 31)
            memcpy(card + pendings[i], pending + (size_t)i * POET_SECTOR, POET_SECTOR);
    }
}

static int write_card(void *user, uint32_t offset, const void *from, uint32_t count)
{
    (void)user;
    if (offset % POET_SECTOR || count != POET_SECTOR || offset + count > card_bytes)
        return 1;
    if (pending_count == MOST_PENDING)
        return 1;
    memcpy(pending + (size_t)pending_count * POET_SECTOR, card + offset, POET_SECTOR);
    pendings[pending_count++] = offset;
    writes++;
    if (writes != cut_at) {
        memcpy(card + offset, from, count);
        return 0;
    }
    if (way == TORN) {
        memcpy(card + offset, from, 200);
        memset(card + offset + 200, 0xa5, 56);
    } else if (way != BEFORE) {
        memcpy(card + offset, from, count);
    }
    if (way >= UNFLUSHED)
        lose_some(); /* what was there before comes back for some of them */
    longjmp(power, 1);
}

static const struct poet_io io = {.read = read_card, .write = write_card, .flush = flush_card};

/* ---- a network on it ---- */

static struct poet net;

static uint32_t weight_bytes(void)
{
    uint32_t sum = 0;
    for (uint32_t n = 0; n < POET_WEIGHTS; n++)
        sum += poet_weights[n].bytes;
    return sum;
}

static void fail(const char *what)
{
    printf("cut %u, way %d: %s\n", (unsigned)cut_at, (int)way, what);
    exit(1);
}

static void expect(enum poet_error error)
{
    if (error != POET_OK)
        fail(poet_error_text(error));
}

static void weights(uint8_t *to)
{
    for (uint32_t n = 0; n < POET_WEIGHTS; n++) {
        expect(poet_get_weights(&net, n, 0, to, poet_weights[n].bytes));
        to += poet_weights[n].bytes;
    }
}

static uint32_t steps_done(void)
{
    uint32_t steps;
    expect(poet_get_steps(&net, &steps));
    return steps;
}

static void start(void)
{
    memset(&net, 0xa5, sizeof net);
    memset(poet_arena, 0xa5, POET_ARENA_BYTES);
    pending_count = 0;
    expect(poet_init(&net, &io));
}

static uint8_t *room(size_t count)
{
    uint8_t *made = malloc(count);
    if (made == NULL)
        exit(2);
    return made;
}

#endif
