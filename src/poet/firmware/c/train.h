/* Between the step that was planned (step.c) and the loop around it (train.c). */
#ifndef POET_TRAIN_H
#define POET_TRAIN_H

#include <stdint.h>

/* A tensor's place in the arena and on the card. */
struct slot {
    uint32_t arena, card, bytes;
};

/* ---- step.c ---- */
extern uint8_t arena[];
extern const uint32_t start_bytes, record_bytes;
extern const char fingerprint[33];
extern const struct slot residents[], inputs[]; /* of an input `card` counts from its record */
extern const uint32_t resident_count, input_count;
extern const uint32_t loss_at, rate_at, count_at; /* in the arena; NOWHERE if there is none */
enum { NOWHERE = 0xffffffffu };
void step(void);

/* ---- train.c, for the step ---- */
extern uint32_t poet_seed, poet_step;
extern uint32_t poet_record; /* where the sample of this step lies on the card */
void page_in(void *to, uint32_t card, uint32_t count);
void page_out(const void *from, uint32_t card, uint32_t count);
/* A tile of a parameter to and from its place on the card. */
void stream_in(void *to, uint32_t card, uint32_t count);
void stream_out(const void *from, uint32_t card, uint32_t count);
/* A tile that lies on the card in runs of bytes, in up to three dimensions, `step` bytes apart. */
struct runs {
    uint32_t count[3], step[3], bytes;
};
void stream_in_runs(void *to, uint32_t card, const struct runs *shape);
void stream_out_runs(const void *from, uint32_t card, const struct runs *shape);
/* What an instruction adds to the bytes in use when it begins, and what is gone when it ends. */
void take(uint32_t count);
void give(uint32_t count);

#endif
