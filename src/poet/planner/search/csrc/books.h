/* The store's books: which tensors need a copy there, and what writing them costs. Part of anneal.c. */
#ifndef POET_BOOKS_H
#define POET_BOOKS_H
#include "state.h"

static inline int write_due(const annealer *a, int i) {
    return a->store_uses[i] > 0 && !a->streamed_out[i] && !a->p->start_stored[i];
}

static void book(annealer *a, int i, int uses, int streamed) {
    const problem *p = a->p;
    int before = write_due(a, i), held = a->store_uses[i] > 0 || a->streamed_out[i] > 0;
    a->store_uses[i] += uses;
    a->streamed_out[i] += streamed;
    int change = write_due(a, i) - before;
    a->sums.write_joules += change * p->out_joules[i];
    a->sums.write_seconds += change * p->out_seconds[i];
    int holds = a->store_uses[i] > 0 || a->streamed_out[i] > 0;
    if (holds != held) {
        int slot = p->slot[i];
        int was_used = a->slot_uses[slot] > 0;
        a->slot_uses[slot] += holds - held;
        a->sums.slot_bytes += ((a->slot_uses[slot] > 0) - was_used) * p->nbytes[i];
    }
}

static inline int is_written_last(const problem *p, int i) {
    return p->end[i] == END_STORE_LAST || p->end[i] == END_BOTH_LAST;
}

/* A slot of the store that is used whatever else happens. */
static void book_slot(annealer *a, int i) {
    if (!a->slot_uses[a->p->slot[i]]++) a->sums.slot_bytes += a->p->nbytes[i];
}

static void book_logged(annealer *a, int i, int uses, int streamed) {
    book(a, i, uses, streamed);
    a->book_log[a->n_book_log++] = (stored){i, uses, streamed};
}

static void book_difference(annealer *a, const u64 *was, const u64 *is) {
    for (int w = 0; w < a->words; w++)
        for (u64 bits = was[w] ^ is[w]; bits; bits &= bits - 1) {
            int i = w * 64 + __builtin_ctzll(bits);
            book_logged(a, i, has(is, i) ? 1 : -1, 0);
        }
}

/* A copy that is wanted in the store after its heir's write has destroyed it. */
static int store_conflict(const annealer *a) {
    const problem *p = a->p;
    for (int k = 0; k < p->n_pairs; k++) {
        int old = p->pairs[2 * k], heir = p->pairs[2 * k + 1], made = p->producer[heir];
        if (!a->store_uses[heir] && !a->streamed_out[heir]) continue;
        if (p->end[old] == END_STORE || p->end[old] == END_BOTH) return 1;
        for (int s = made + 1; s < a->stages; s++) {
            const decoding *d = s >= a->from && s < a->end && a->fresh[s] ? &a->next : &a->now;
            if (has(row_of(d->moved, s, a->words), old)) return 1;
        }
    }
    return 0;
}

#endif
