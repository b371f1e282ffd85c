/* The memory of a search: one block, carved once. Part of anneal.c. */
#ifndef POET_MEMORY_H
#define POET_MEMORY_H
#include "state.h"

static int max_gaps(const problem *p) { return 4 * p->inputs_at[p->n_ops + 1] + p->n_tensors; }

typedef struct arena {
    char *base;
    size_t used;
} arena;

static void *carve(arena *m, size_t count, size_t size) {
    m->used = (m->used + 63) & ~(size_t)63;
    void *at = m->base ? m->base + m->used : 0;
    m->used += count * size;
    return at;
}

static void carve_decoding(arena *m, decoding *d, size_t stages, size_t words, size_t op_words) {
    d->in_ram = carve(m, (stages + 2) * words, sizeof(u64)); /* last row: in RAM at the start */
    d->touched = carve(m, stages * words, sizeof(u64));
    d->moved = carve(m, stages * words, sizeof(u64));
    d->reruns = carve(m, stages * op_words, sizeof(u64));
    d->joules = carve(m, stages, sizeof(double));
    d->seconds = carve(m, stages, sizeof(double));
    d->peak = carve(m, stages, sizeof(int64_t));
    d->level = carve(m, stages + 1, sizeof(int64_t));
}

static void carve_choices(arena *m, choices *c, size_t stages, size_t words) {
    c->keep = carve(m, (stages + 1) * words, sizeof(u64));
    c->page = carve(m, (stages + 1) * words, sizeof(u64));
    c->early = carve(m, (stages + 1) * words, sizeof(u64));
    c->first = carve(m, stages, sizeof(int32_t));
    c->again = carve(m, stages, sizeof(int32_t));
}

static void carve_all(annealer *a, arena *m) {
    size_t stages = (size_t)a->stages, words = (size_t)a->words, op_words = (size_t)a->op_words;
    size_t tensors = (size_t)a->p->n_tensors;
    carve_choices(m, &a->state, stages, words);
    carve_choices(m, &a->best, stages, words);
    carve_decoding(m, &a->now, stages, words, op_words);
    carve_decoding(m, &a->next, stages, words, op_words);
    a->allowed = carve(m, (stages + 1) * words, sizeof(u64));
    a->pinned = carve(m, (stages + 1) * words, sizeof(u64));
    a->fresh = carve(m, stages, 1);
    a->store_uses = carve(m, tensors, sizeof(int32_t));
    a->streamed_out = carve(m, tensors, sizeof(int32_t));
    a->slot_uses = carve(m, tensors, sizeof(int32_t));
    a->book_log = carve(m, stages * tensors + 2 * tensors + 2, sizeof(stored));
    a->max_flips = (int)(MAX_CHANGES * stages);
    a->flips = carve(m, (size_t)a->max_flips, sizeof(flip));
    a->todo = carve(m, op_words, sizeof(u64));
    a->live = carve(m, words, sizeof(u64));
    a->used = carve(m, words, sizeof(u64));
    a->order = carve(m, stages, sizeof(int32_t));
    a->last_use = carve(m, tensors, sizeof(int32_t));
    a->stamp = carve(m, tensors, sizeof(int32_t));
    a->source = carve(m, tensors, 1);
    a->gaps = carve(m, (size_t)max_gaps(a->p), sizeof(gap));
}

#endif
