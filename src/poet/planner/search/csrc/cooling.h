/* The search itself: energy, fines, and one cooling. Part of anneal.c. */
#ifndef POET_COOLING_H
#define POET_COOLING_H
#include "moves.h"

/* ---- The search ---- */

static inline double energy(const annealer *a) { return a->sums.joules + a->sums.write_joules; }
static inline double late(const annealer *a) {
    double seconds = a->sums.seconds + a->sums.write_seconds;
    return seconds > a->p->deadline_seconds ? seconds - a->p->deadline_seconds : 0;
}
static inline int64_t store_over(const annealer *a) {
    return a->sums.slot_bytes > a->p->store_bytes ? a->sums.slot_bytes - a->p->store_bytes : 0;
}
static inline double fined(const annealer *a) {
    return energy(a) + a->ram_fine * (double)a->sums.over_bytes + a->time_fine * late(a) +
           a->store_fine * (double)store_over(a);
}
static inline int valid(const annealer *a) {
    return !a->sums.over_bytes && late(a) <= 0 && !store_over(a);
}

static void copy_choices(annealer *a, choices *to, const choices *from) {
    size_t rows = (size_t)(a->stages + 1) * (size_t)a->words * sizeof(u64);
    memcpy(to->keep, from->keep, rows);
    memcpy(to->page, from->page, rows);
    memcpy(to->early, from->early, rows);
    memcpy(to->first, from->first, (size_t)a->stages * sizeof(int32_t));
    memcpy(to->again, from->again, (size_t)a->stages * sizeof(int32_t));
}

static void remember(annealer *a) {
    if (!valid(a) || (a->has_best && energy(a) >= a->best_joules)) return;
    a->best_joules = energy(a);
    a->has_best = 1;
    copy_choices(a, &a->best, &a->state);
}

/* Decode the whole state anew; the books start from what the ends and the variants demand. */
static int decode_all(annealer *a) {
    const problem *p = a->p;
    const int words = a->words;
    for (size_t k = 0; k < (size_t)(a->stages + 1) * (size_t)words; k++)
        a->state.keep[k] = (a->state.keep[k] & a->allowed[k]) | a->pinned[k];
    memcpy(row_of(a->state.keep, a->stages, words), row_of(a->allowed, a->stages, words),
           (size_t)words * sizeof(u64));
    a->sums = (totals){0};
    memset(a->store_uses, 0, (size_t)p->n_tensors * sizeof(int32_t));
    memset(a->streamed_out, 0, (size_t)p->n_tensors * sizeof(int32_t));
    memset(a->slot_uses, 0, (size_t)p->n_tensors * sizeof(int32_t));
    memset(a->now.moved, 0, (size_t)a->stages * (size_t)words * sizeof(u64));
    memset(a->now.joules, 0, (size_t)a->stages * sizeof(double));
    memset(a->now.seconds, 0, (size_t)a->stages * sizeof(double));
    memset(a->now.peak, 0, (size_t)a->stages * sizeof(int64_t));
    for (int i = 0; i < p->n_tensors; i++) {
        if (p->start_stored[i] || p->end[i] == END_STORE || p->end[i] == END_BOTH) book(a, i, 1, 0);
        if (is_written_last(p, i)) book_slot(a, i);
    }
    for (int v = 0; v < p->n_ops; v++) {
        int variant = a->state.first[v];
        for (int k = p->writes_at[variant]; k < p->writes_at[variant + 1]; k++)
            book(a, p->writes[k], 0, 1);
    }
    begin_move(a);
    a->from = 0;
    int good = evaluate(a, 1);
    if (good) accept(a);
    begin_move(a);
    return good;
}

/* A limit that is broken grows dearer, one that is kept grows cheaper, within bounds. */
static double adapted(double fine, double usual, int broken) {
    return fmin(fmax(fine * (broken ? 1.08 : 0.96), usual * 1e-6), usual * 1e9);
}

static void adapt_fines(annealer *a) {
    a->ram_fine = adapted(a->ram_fine, a->usual_ram_fine, a->sums.over_bytes > 0);
    a->time_fine = adapted(a->time_fine, a->usual_time_fine, late(a) > 0);
    a->store_fine = adapted(a->store_fine, a->usual_store_fine, store_over(a) > 0);
}

static int out_of_time(annealer *a) {
    a->work = 0;
    return atomic_load_explicit(&a->stop, memory_order_relaxed) || now_seconds() >= a->until_clock;
}

/* One cooling, from the state as it is: over so many moves, or, if that is negative, from one clock
 * to another. Returns the number of moves tried. */
static int64_t cool(annealer *a, double from_clock, double to_clock, int64_t moves, double hot,
                    double cold) {
    const problem *p = a->p;
    const int has_variants = p->variants_at[p->n_ops] > p->n_ops;
    double temperature = hot;
    for (int64_t k = 0;; k++) {
        if (moves >= 0 && k >= moves) return k;
        if (!(k & 63) || a->work > WORK_BETWEEN_CLOCKS) {
            if (out_of_time(a)) return k;
            if (moves < 0 && now_seconds() >= to_clock) return k;
        }
        if (!(k & 63)) {
            double clock_share = (now_seconds() - from_clock) / (to_clock - from_clock);
            double progress = moves < 0 ? clock_share : (double)k / (double)moves;
            temperature = hot * pow(cold / hot, fmin(progress, 1));
            if (!(k & 255)) adapt_fines(a);
        }
        totals before = a->sums;
        double was = fined(a);
        propose(a, has_variants);
        if (a->until < 0) continue;
        int good = a->eject ? evaluate_ejecting(a, &before, a->eject) : evaluate(a, 0);
        if (!good || fined(a) - was > -temperature * log(uniform(a))) {
            undo(a, &before);
            continue;
        }
        accept(a);
        remember(a);
    }
}

#endif
