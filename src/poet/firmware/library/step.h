/* Between the network that was planned (step.c) and the library around it (poet.c, card.c, store.c). */
#ifndef POET_STEP_H
#define POET_STEP_H

#include <stddef.h>

#include "poet.h"

#define POET_NOWHERE 0xffffffffu
#define POET_FILLED 0xfffffffeu /* of a weight that begins with the same word everywhere */

/* ---- step.c ---- */

/* Addresses on the card count the bytes that sectors hold, POET_HELD each; what lies in two copies
 * has its address in the first. */
#define POET_HELD 508u
#define POET_CARD_VERSION 2u

/* What never changes may lie in flash: then its address is this and its place in `poet_flash`. No
 * card is so large. */
#define POET_FLASH_AT (POET_HELD << 23)
extern const uint32_t poet_flash_words[];
#define poet_flash ((const uint8_t *)poet_flash_words)

/* A tensor's place in the arena and on the card. */
struct poet_slot {
    uint32_t arena, card, bytes;
    int is_twin; /* whether it lies in two copies */
};

/* An input of the step: in the arena when a step begins, or, where that is POET_NOWHERE, in the
 * record of its sample. */
struct poet_input {
    uint32_t arena, record, bytes;
    int is_inferred_from;
};

struct poet_network {
    char fingerprint[33];
    uint32_t start_bytes, records_at, record_bytes;
    uint32_t batch_at;                   /* the record for a batch from RAM; or POET_NOWHERE */
    uint32_t loss_at, rate_at, count_at; /* in the arena; or POET_NOWHERE */
    uint32_t resident_count, input_count, weight_count;
    /* The card, in sectors: two copies of what changes, one after the other, of
     * each the first `shared_sectors` with several tensors in one; what a step changes
     * row by row, in its place; what it writes for itself; the journal, two sectors an entry. */
    uint32_t copy_at, copy_sectors, shared_sectors, rows_at, row_sectors, pages_at, page_sectors;
    uint32_t journal_at, journal_entries, save_every;
    int commits; /* whether a step writes what lasts, and is committed when it ends */
    uint32_t *shared; /* room for a sector that small tensors share; or NULL: none waits */
    const struct poet_slot *residents;
    const struct poet_input *inputs;
};
extern const struct poet_network poet_network;

/* The arena lies with the other variables that begin as zero, or in a section of its own, which a
 * linker script can put elsewhere: -DPOET_ARENA_SECTION=.name */
#ifdef POET_ARENA_SECTION
#define POET_TEXT(name) #name
#define POET_SECTION(name) __attribute__((section(POET_TEXT(name)), aligned(8)))
#define POET_ARENA POET_SECTION(POET_ARENA_SECTION)
#else
#define POET_ARENA __attribute__((aligned(8)))
#endif
extern uint8_t poet_arena[];
enum poet_error poet_run_step(struct poet *ctx);
enum poet_error poet_run_inference(struct poet *ctx, void *const *outputs);

/* ---- around each op: its number, and an end if something has gone wrong in it ---- */
#define POET_BEGIN(op) poet_op_begins(ctx, op)
#define POET_END(op)                                                                               \
    if (poet_op_ends(ctx, op) != POET_OK)                                                          \
    return ctx->error
enum poet_error poet_op_ends(struct poet *ctx, uint32_t op);
#ifdef POET_PROFILE
void poet_op_begins(struct poet *ctx, uint32_t op);
#else
#define poet_op_begins(ctx, op) ((void)0)
#endif

/* ---- poet.c ---- */

/* For POET_PROFILE and POET_TRACE; `io.log` must be there. */
void poet_log_number(struct poet *ctx, uint64_t number);

uint32_t poet_crc(const void *bytes, uint32_t count);
void poet_copy(void *to, const void *from, uint32_t count);

/* ---- failures.c: what kernels found since it was forgotten ---- */
enum poet_error poet_failure(void);
void poet_forget_failures(void);

/* ---- card.c: sectors, commits, the journal, new cards ---- */
enum poet_error poet_open_card(struct poet *ctx);
enum poet_error poet_commit(struct poet *ctx);
enum poet_error poet_recommit(struct poet *ctx);
/* Nothing is committed any more; what is put now is of a new card. */
void poet_erase_card(struct poet *ctx);
/* The buffer goes to the card as this sector. */
void poet_seal(struct poet *ctx, uint32_t sector);

/* ---- store.c: after the first error transfers do nothing, until the op ends ---- */
void poet_page_in(struct poet *ctx, void *to, uint32_t card, uint32_t count);
void poet_page_out(struct poet *ctx, const void *from, uint32_t card, uint32_t count);
/* A tile of a parameter to and from its place on the card. */
void poet_stream_in(struct poet *ctx, void *to, uint32_t card, uint32_t count);
void poet_stream_out(struct poet *ctx, const void *from, uint32_t card, uint32_t count);
/* A tile that lies on the card in runs of bytes, in up to three dimensions, `step` bytes apart. */
struct poet_runs {
    uint32_t count[3], step[3], bytes;
};
void poet_stream_in_runs(struct poet *ctx, void *to, uint32_t card, const struct poet_runs *shape);
void poet_stream_out_runs(struct poet *ctx, const void *from, uint32_t card,
                          const struct poet_runs *shape);
/* The same, uncounted. `is_all`: nothing else of this tensor is written. */
void poet_get(struct poet *ctx, void *to, uint32_t card, uint32_t count);
void poet_put(struct poet *ctx, const void *from, uint32_t card, uint32_t count, int is_all);

/* What an instruction adds to the bytes in use when it begins, and what is gone when it ends. */
#if POET_COUNTERS
void poet_take(struct poet *ctx, uint32_t count);
void poet_give(struct poet *ctx, uint32_t count);
#else
#define poet_take(ctx, count) ((void)0)
#define poet_give(ctx, count) ((void)0)
#endif

#endif
