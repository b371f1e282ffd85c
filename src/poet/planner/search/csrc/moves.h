/* The moves: which choices change at once. Part of anneal.c. */
#ifndef POET_MOVES_H
#define POET_MOVES_H
#include "decode.h"

/* ---- Moves ---- */

static void begin_move(annealer *a) {
    a->n_changes = a->n_flips = a->n_book_log = 0;
    a->changed_words = a->written_words = 0;
    a->changed_op = a->changed_early = -1;
    a->from = a->stages;
    a->until = a->end = -1;
}

static void note_change(annealer *a, int i, int from, int to) {
    if (from < 0) from = 0;
    a->changes[a->n_changes++] = (change){i, from, to};
    a->changed_words |= (u64)1 << (i >> 6 & 63);
    if (from < a->from) a->from = from;
    if (to > a->until) a->until = to;
}

static int write_bits(annealer *a, u64 *rows, int i, int from, int to, int value) {
    int changed = 0;
    for (int s = from; s <= to; s++) {
        u64 *word = row_of(rows, s, a->words) + (i >> 6), mask = (u64)1 << (i & 63);
        if (!!(*word & mask) == value || a->n_flips == a->max_flips) continue;
        *word ^= mask;
        a->flips[a->n_flips++] = (flip){word, mask};
        changed = 1;
    }
    return changed;
}

static void set_keep(annealer *a, int i, int from, int to, int value) {
    if (a->n_changes == MAX_CHANGES || from > to) return;
    if (write_bits(a, a->state.keep, i, from, to, value)) note_change(a, i, from - 1, to);
}

static void set_page(annealer *a, int i, int from, int to, int value) {
    if (a->n_changes == MAX_CHANGES || from > to) return;
    if (write_bits(a, a->state.page, i, from, to, value)) note_change(a, i, from, to);
}

static void set_variant(annealer *a, int op, int variant, int is_first) {
    const problem *p = a->p;
    int32_t *variants = is_first ? a->state.first : a->state.again;
    a->old_variant = variants[op];
    a->old_is_first = is_first;
    a->changed_op = op;
    if (is_first) {
        for (int k = p->writes_at[variants[op]]; k < p->writes_at[variants[op] + 1]; k++)
            book_logged(a, p->writes[k], 0, -1);
        for (int k = p->writes_at[variant]; k < p->writes_at[variant + 1]; k++)
            book_logged(a, p->writes[k], 0, 1);
    }
    variants[op] = variant;
    if (op < a->from) a->from = op;
    if (a->until < (is_first ? op : a->stages - 1)) a->until = is_first ? op : a->stages - 1;
}

static void undo_books(annealer *a, const totals *before) {
    while (a->n_book_log) {
        stored *b = &a->book_log[--a->n_book_log];
        book(a, b->tensor, -b->uses, -b->streamed);
    }
    a->sums = *before;
}

static void undo(annealer *a, const totals *before) {
    forget_rows(a);
    while (a->n_flips) {
        flip *f = &a->flips[--a->n_flips];
        *f->word ^= f->mask;
    }
    undo_books(a, before);
    if (a->changed_op >= 0)
        (a->old_is_first ? a->state.first : a->state.again)[a->changed_op] = a->old_variant;
}

static inline int birth(const annealer *a, int i) { return a->p->producer[i]; }

/* The stages into which tensor i is kept, or not, together with stage s: from after the last stage
 * before s that touches it to the next that does. */
static void gap_around(const annealer *a, int i, int s, int *from, int *to) {
    const u64 *touched = a->now.touched + (i >> 6);
    const size_t words = (size_t)a->words;
    int bit = i & 63, low = s - 1, high = s;
    while (low > birth(a, i) && !(touched[(size_t)low * words] >> bit & 1)) low--;
    while (high < a->p->last_keep[i] && !(touched[(size_t)high * words] >> bit & 1)) high++;
    *from = low + 1;
    *to = high;
}

static int random_bit(annealer *a, const u64 *row, int words) {
    int count = 0;
    for (int w = 0; w < words; w++) count += __builtin_popcountll(row[w]);
    if (!count) return -1;
    int k = below(a, count);
    for (int w = 0; w < words; w++) {
        int here = __builtin_popcountll(row[w]);
        if (k >= here) {
            k -= here;
            continue;
        }
        u64 bits = row[w];
        while (k--) bits &= bits - 1;
        return w * 64 + __builtin_ctzll(bits);
    }
    return -1;
}

/* Whether it is a choice to keep tensor i into stage s. */
static int keepable(const annealer *a, int i, int s) {
    return s > birth(a, i) && s <= a->p->last_keep[i] && !a->p->pinned[i];
}

/* A tensor and a stage into which it could be kept. */
static int pick(annealer *a, int *tensor, int *stage) {
    int s = below(a, a->stages), i = random_bit(a, row_of(a->now.touched, s, a->words), a->words);
    if (i < 0) return 0;
    int side = below(a, 2);
    for (int k = 0; k < 2; k++, side ^= 1)
        if (keepable(a, i, s + side)) {
            *tensor = i;
            *stage = s + side;
            return 1;
        }
    return 0;
}

/* What it costs to have tensor i in stage s again once it was dropped: an estimate that looks one
 * op back. Says in `load` which way is cheaper. */
static double price_again(const annealer *a, int i, int s, int *load) {
    const problem *p = a->p;
    const u64 *held = row_of(a->now.in_ram, s, a->words);
    const u64 *touched = row_of(a->now.touched, s, a->words);
    double price = 1e300;
    *load = 1;
    if (s >= p->load_from[i] && s <= p->load_to[i])
        price = p->in_joules[i] + (a->store_uses[i] ? 0 : p->out_joules[i]);
    int maker = p->producer[i];
    if (maker < 0 || s > p->rerun_to[maker]) return price;
    double run = p->run_joules[a->state.again[maker]];
    for (int k = p->inputs_at[maker]; k < p->inputs_at[maker + 1] && run < price; k++) {
        int j = p->inputs[k], source = p->producer[j];
        if (has(held, j) || has(touched, j)) continue;
        double more = s >= p->load_from[j] && s <= p->load_to[j] ? p->in_joules[j] : 1e300;
        if (source >= 0 && s <= p->rerun_to[source] && p->run_joules[a->state.again[source]] < more)
            more = p->run_joules[a->state.again[source]];
        run += more;
    }
    if (run < price) {
        *load = 0;
        price = run;
    }
    return price;
}

static void set_gap(annealer *a, int i, int s, int value) {
    int from, to;
    gap_around(a, i, s, &from, &to);
    set_keep(a, i, from, to, value);
    if (value) return;
    int load = below(a, 2);
    if (below(a, 8)) price_again(a, i, to, &load); /* mostly what looks cheaper */
    set_page(a, i, to, to, load);
}

static void move_gap(annealer *a) {
    int i, s;
    if (!pick(a, &i, &s)) return;
    set_gap(a, i, s, !has(row_of(a->now.in_ram, s, a->words), i));
}

/* Keep one tensor instead of another. */
static void move_swap(annealer *a) {
    int i, s, from, to;
    if (!pick(a, &i, &s)) return;
    int held = has(row_of(a->now.in_ram, s, a->words), i);
    gap_around(a, i, s, &from, &to);
    int at = from + below(a, to - from + 1), j;
    if (held) {
        j = random_bit(a, row_of(a->now.touched, at, a->words), a->words);
        if (j < 0 || j == i || !keepable(a, j, at) || has(row_of(a->now.in_ram, at, a->words), j))
            return;
    } else {
        j = random_bit(a, row_of(a->now.in_ram, at, a->words), a->words);
        if (j < 0 || j == i || !keepable(a, j, at)) return;
    }
    set_gap(a, i, s, !held);
    set_gap(a, j, at, held);
}

/* A neighbour in the graph: an input of the producer, or an output of a reader. */
static int neighbour(annealer *a, int i, int s) {
    const problem *p = a->p;
    int v = p->producer[i];
    if (v >= 0 && below(a, 2)) {
        int count = p->inputs_at[v + 1] - p->inputs_at[v];
        return count ? p->inputs[p->inputs_at[v] + below(a, count)] : -1;
    }
    if (s >= a->stages) s = a->stages - 1;
    return random_bit(a, row_of(a->now.touched, s, a->words), a->words);
}

static void move_chain(annealer *a) {
    int i, s, from, to, value;
    if (!pick(a, &i, &s)) return;
    value = !has(row_of(a->now.in_ram, s, a->words), i);
    gap_around(a, i, s, &from, &to);
    set_gap(a, i, s, value);
    int opposite = below(a, 2);
    for (int count = 1 + below(a, 3); count--;) {
        int j = neighbour(a, i, below(a, 2) ? from : to);
        if (j < 0) return;
        int at = s;
        if (!keepable(a, j, at)) at = to;
        if (!keepable(a, j, at)) at = from;
        if (!keepable(a, j, at)) continue;
        set_gap(a, j, at, value ^ opposite);
        i = j;
    }
}

/* Two gaps of one tensor on either side of a stage that touches it. */
static void move_span(annealer *a) {
    int i, s, from, to;
    if (!pick(a, &i, &s)) return;
    int value = !has(row_of(a->now.in_ram, s, a->words), i);
    gap_around(a, i, s, &from, &to);
    int other = below(a, 2) ? to + 1 : from - 1;
    set_gap(a, i, s, value);
    if (keepable(a, i, other)) set_gap(a, i, other, value ^ below(a, 2));
}

static const decoding *tried(const annealer *a, int s) {
    return s >= a->from && s < a->end && a->fresh[s] ? &a->next : &a->now;
}

/* Evaluate a move that brought more into RAM, and drop what is cheap until it fits again. */
static int evaluate_ejecting(annealer *a, const totals *before, int rounds) {
    const problem *p = a->p;
    int n_forced = a->n_changes;
    for (;;) {
        if (!evaluate(a, 0)) return 0;
        if (a->sums.over_bytes <= before->over_bytes || !rounds--) return 1;
        int worst = -1;
        int64_t most = 0;
        for (int s = a->from; s < a->end; s++)
            if (over(a, a->next.peak[s]) > most) {
                most = over(a, a->next.peak[s]);
                worst = s;
            }
        if (worst < 0) return 1;
        const u64 *held = row_of(a->next.in_ram, worst, a->words);
        const u64 *touched = row_of(tried(a, worst)->touched, worst, a->words);
        int victim = -1, victim_load = 0, victim_from = 0, victim_to = 0;
        double least = 1e299;
        for (int w = 0; w < a->words; w++)
            for (u64 bits = held[w] & ~touched[w]; bits; bits &= bits - 1) {
                int i = w * 64 + __builtin_ctzll(bits), from, to, load, forced = 0;
                for (int k = 0; k < n_forced; k++) forced |= a->changes[k].tensor == i;
                if (forced || !p->nbytes[i] || !keepable(a, i, worst)) continue;
                gap_around(a, i, worst, &from, &to);
                double frees = (double)(p->nbytes[i] < most ? p->nbytes[i] : most);
                double price = price_again(a, i, to, &load) / frees * (0.2 + uniform(a));
                if (price < least) {
                    least = price;
                    victim = i;
                    victim_load = load;
                    victim_from = from;
                    victim_to = to;
                }
            }
        if (victim < 0 || a->n_changes + 2 > MAX_CHANGES) return 1;
        forget_rows(a);
        set_keep(a, victim, victim_from, victim_to, 0);
        set_page(a, victim, victim_to, victim_to, victim_load);
        undo_books(a, before);
    }
}

/* Let one tensor go, and keep others in the room it leaves. */
static void move_release(annealer *a) {
    const problem *p = a->p;
    int i, s, from, to;
    if (!pick(a, &i, &s) || !has(row_of(a->now.in_ram, s, a->words), i)) return;
    gap_around(a, i, s, &from, &to);
    set_gap(a, i, s, 0);
    int64_t room = p->nbytes[i];
    for (int tries = 16; tries-- && room > 0;) {
        int at = from + below(a, to - from + 1);
        const u64 *held = row_of(a->now.in_ram, at, a->words);
        int j = random_bit(a, row_of(a->now.touched, at, a->words), a->words);
        int begins, ends, fits = 1;
        if (j < 0 || j == i || has(held, j) || !keepable(a, j, at)) continue;
        gap_around(a, j, at, &begins, &ends);
        for (int t = begins; t < ends && fits; t++) {
            int64_t free_bytes = p->ram_bytes - a->now.peak[t] + (t >= from && t < to ? room : 0);
            fits = free_bytes >= p->nbytes[j];
        }
        if (!fits) continue;
        set_keep(a, j, begins, ends, 1);
        room -= p->nbytes[j];
    }
}

/* Load what was recomputed, or the other way round, in one stage or in all. */
static void move_page(annealer *a) {
    const problem *p = a->p;
    int s = below(a, a->stages), i = random_bit(a, row_of(a->now.touched, s, a->words), a->words);
    if (i < 0 || has(row_of(a->now.in_ram, s, a->words), i) || p->producer[i] == s) return;
    int value = !has(row_of(a->state.page, s, a->words), i);
    if (below(a, 4))
        set_page(a, i, s, s, value);
    else
        set_page(a, i, p->producer[i] + 1, p->last_keep[i], value);
}

static void move_variant(annealer *a) {
    const problem *p = a->p;
    int v = below(a, p->n_ops), is_first = below(a, 2), variant;
    if (is_first) {
        variant = p->variants_at[v] + below(a, p->variants_at[v + 1] - p->variants_at[v]);
        if (variant == a->state.first[v]) return;
    } else {
        variant = p->again[p->again_at[v] + below(a, p->again_at[v + 1] - p->again_at[v])];
        if (variant == a->state.again[v]) return;
    }
    set_variant(a, v, variant, is_first);
}

/* Keep a tensor whether there is room or not: evaluate_ejecting makes it. */
static void move_force(annealer *a) {
    int i, s;
    a->eject = MOST_EJECTED;
    if (pick(a, &i, &s) && !has(row_of(a->now.in_ram, s, a->words), i)) set_gap(a, i, s, 1);
}

/* Make a tensor for later in a stage that does not need it: while what it is made from is there. */
static void move_early(annealer *a) {
    const problem *p = a->p;
    int i = below(a, p->n_tensors), maker = p->producer[i], from, to;
    if (maker < 0) return;
    int last = p->rerun_if_kept[maker];
    if (last >= p->last_keep[i]) last = p->last_keep[i] - 1;
    if (last <= maker) return;
    int s = maker + 1 + below(a, last - maker);
    int value = !has(row_of(a->state.early, s, a->words), i);
    if (!write_bits(a, a->state.early, i, s, s, value)) return;
    a->changed_early = s;
    note_change(a, i, s, s);
    if (!keepable(a, i, s + 1)) return;
    gap_around(a, i, s + 1, &from, &to);
    set_keep(a, i, s + 1, to, value);
}

static void propose(annealer *a, int has_variants) {
    begin_move(a);
    a->eject = 0;
    int forced = below(a, 1000), kind = below(a, has_variants ? 110 : 100);
    if (forced < FORCED_PER_MILLE / 2) move_force(a);
    else if (forced < FORCED_PER_MILLE) move_release(a);
    else if (kind < 40) move_gap(a);
    else if (kind < 60) move_swap(a);
    else if (kind < 75) move_chain(a);
    else if (kind < 85) move_span(a);
    else if (kind < 100 && a->p->makes_early && below(a, 2)) move_early(a);
    else if (kind < 100) move_page(a);
    else move_variant(a);
}

#endif
