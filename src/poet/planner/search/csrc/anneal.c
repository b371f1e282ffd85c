/* Simulated annealing over stage-structured schedules.
 *
 * Stage s ends with the first run of op s; stage n_ops is the step's end, where a made-up op
 * without cost reads all that must end in RAM. The state is these choices:
 *   keep[s] bit i   tensor i, if it is in RAM when stage s - 1 is over, stays into stage s
 *   page[s] bit i   tensor i, if stage s needs it and it is not in RAM, is loaded, else recomputed
 *   early[s] bit i  tensor i, if stage s + 1 keeps it and it is not in RAM, is made in stage s
 *   first[v], again[v]   the variants in which op v runs for the first time and when it runs again
 * `decode_stage` turns the choices into what a stage does: it finds the ops that run, from the last
 * to the first, then walks them in order, loads late, drops early, and counts bytes exactly.
 *
 * A move changes a few bits. Only stages that see the change are decoded again; where a change
 * passes by (a tensor held over a stage that does not touch it) the peak shifts by its bytes and
 * nothing else; and the walk ends where RAM holds again what it held before. States above the
 * limits are allowed and fined; the fines follow how often limits are broken; the best valid state
 * counts.
 *
 * Energy here is joules plus idle watts times seconds, as the caller prices it. No globals, no
 * allocation after `poet_anneal_new`; one annealer belongs to one thread, only `stop` may be set by
 * another. */
#include "cooling.h"
#include "memory.h"

/* ---- Starts ---- */

/* Load what is missing; each op in its first variant. */
static void usual_choices(annealer *a) {
    const problem *p = a->p;
    memset(a->state.page, 0xff, (size_t)a->stages * (size_t)a->words * sizeof(u64));
    memset(a->state.early, 0, (size_t)a->stages * (size_t)a->words * sizeof(u64));
    for (int v = 0; v <= p->n_ops; v++) {
        a->state.first[v] = p->variants_at[v];
        a->state.again[v] = p->again[p->again_at[v]];
    }
}

static void everything_kept(annealer *a) {
    memcpy(a->state.keep, a->allowed, (size_t)(a->stages + 1) * (size_t)a->words * sizeof(u64));
}

static void nothing_kept(annealer *a) {
    size_t rows = (size_t)a->stages * (size_t)a->words;
    memset(a->state.keep, 0, rows * sizeof(u64));
    memcpy(a->state.keep + rows, a->allowed + rows, (size_t)a->words * sizeof(u64));
}

/* Let the op that is stuck read from RAM what it streams and the store no longer has. */
static int unstream(annealer *a) {
    const problem *p = a->p;
    int v = a->stuck_op;
    if (v < 0 || v == a->stuck_stage) return 0;
    for (int k = p->again_at[v]; k < p->again_at[v + 1]; k++)
        if (p->reads_at[p->again[k]] == p->reads_at[p->again[k] + 1]) {
            a->state.again[v] = p->again[k];
            return 1;
        }
    return 0;
}

/* Make what was consumed again in the last stage in which that can be done, and keep it. */
static int make_in_time(annealer *a) {
    const problem *p = a->p;
    int i = a->stuck_tensor, maker = p->producer[i];
    if (!p->makes_early || a->stuck_stage <= p->consumed_by[i] || maker < 0) return 0;
    int s = p->rerun_to[maker] < a->stuck_stage ? p->rerun_to[maker] : a->stuck_stage - 1;
    if (s <= p->consumed_by[i] || has(row_of(a->state.early, s, a->words), i)) return 0;
    put(row_of(a->state.early, s, a->words), i);
    for (int t = s + 1; t <= a->stuck_stage; t++) put(row_of(a->state.keep, t, a->words), i);
    return 1;
}

/* Keep what can be had in no other way, until the state can be carried out. */
static int settle(annealer *a) {
    const problem *p = a->p;
    for (int tries = 4 * p->n_tensors + 16; tries--;) {
        a->stuck_tensor = -1;
        if (decode_all(a)) return 1;
        if (out_of_time(a)) return 0;
        int i = a->stuck_tensor, changed = 0;
        if (i < 0) return 0;
        if (unstream(a) || make_in_time(a)) continue;
        for (int s = p->producer[i] + 1; s <= a->stuck_stage && s <= p->last_keep[i]; s++) {
            u64 *row = row_of(a->state.keep, s, a->words);
            changed |= !has(row, i);
            put(row, i);
        }
        if (!changed) return 0;
    }
    return 0;
}

static void try_keep(annealer *a, const gap *g) {
    totals before = a->sums;
    double was = fined(a);
    begin_move(a);
    set_keep(a, g->tensor, g->from, g->to, 1);
    if (a->until < 0) return;
    if (evaluate(a, 0) && a->sums.over_bytes <= before.over_bytes && fined(a) <= was)
        accept(a);
    else
        undo(a, &before);
}

/* Shell sort: the lists are short, and the standard one takes no context. */
static void sort_gaps(annealer *a, int count) {
    for (int step = count / 2; step; step /= 2)
        for (int k = step; k < count; k++) {
            gap moving = a->gaps[k];
            int at = k;
            for (; at >= step && a->gaps[at - step].score > moving.score; at -= step)
                a->gaps[at] = a->gaps[at - step];
            a->gaps[at] = moving;
        }
}

/* From nothing kept: keep over gaps between uses, by bytes x stages per joule of paging. */
static void keep_gaps(annealer *a) {
    const problem *p = a->p;
    int count = 0, most = max_gaps(p);
    for (int i = 0; i < p->n_tensors; i++) {
        int last = p->producer[i];
        for (int s = last + 1; s <= p->last_keep[i] && count < most; s++) {
            if (!has(row_of(a->now.touched, s, a->words), i) && s != p->last_keep[i]) continue;
            double saved = p->in_joules[i] + p->out_joules[i] + 1e-30;
            double score = (double)p->nbytes[i] * (double)(s - last) / saved;
            if (!has(row_of(a->now.in_ram, s, a->words), i))
                a->gaps[count++] = (gap){score, i, last + 1, s};
            last = s;
        }
    }
    sort_gaps(a, count);
    for (int k = 0; k < count && !out_of_time(a); k++) try_keep(a, &a->gaps[k]);
}

/* Where a stage is above the limit, let go of the held tensor with most bytes x stages per joule of
 * having it again. Returns 0 if nothing can go. */
static int drop_one(annealer *a, int s) {
    const problem *p = a->p;
    const u64 *held = row_of(a->now.in_ram, s, a->words);
    const u64 *touched = row_of(a->now.touched, s, a->words);
    int victim = -1, victim_from = 0, victim_to = 0, victim_load = 0;
    double best = -1;
    for (int i = 0; i < p->n_tensors; i++) {
        int from, to, load;
        if (!has(held, i) || has(touched, i) || !p->nbytes[i] || p->pinned[i]) continue;
        gap_around(a, i, s, &from, &to);
        double price = price_again(a, i, to, &load) + 1e-30;
        double score = (double)p->nbytes[i] * (double)(to - s + 1) / price;
        if (score <= best) continue;
        best = score;
        victim = i;
        victim_from = from;
        victim_to = to;
        victim_load = load;
    }
    if (victim < 0) return 0;
    totals before = a->sums;
    begin_move(a);
    set_keep(a, victim, victim_from, victim_to, 0);
    set_page(a, victim, victim_to, victim_to, victim_load);
    if (a->until < 0) return 0;
    if (!evaluate(a, 0)) {
        undo(a, &before);
        return 0;
    }
    accept(a);
    return 1;
}

static void drop_gaps(annealer *a) {
    for (int s = 0; s < a->stages; s++)
        for (int tries = a->p->n_tensors; tries-- && over(a, a->now.peak[s]);)
            if (out_of_time(a) || !drop_one(a, s)) break;
}

static double mean_move(const annealer *a) { /* joules: the size of one decision */
    const problem *p = a->p;
    double sum = 0;
    for (int v = 0; v < p->n_ops; v++) sum += p->run_joules[p->variants_at[v]];
    return (sum + 1e-30) / p->n_ops;
}

static void set_fines(annealer *a) {
    const problem *p = a->p;
    double unit = mean_move(a), bytes = 1;
    for (int i = 0; i < p->n_tensors; i++) bytes += (double)p->nbytes[i];
    a->ram_fine = unit / (bytes / p->n_tensors);
    a->store_fine = a->ram_fine;
    double seconds = 1e-30;
    for (int v = 0; v < p->n_ops; v++) seconds += p->run_seconds[p->variants_at[v]];
    a->time_fine = unit * p->n_ops / seconds;
    a->usual_ram_fine = a->ram_fine;
    a->usual_time_fine = a->time_fine;
    a->usual_store_fine = a->store_fine;
}

/* Find a valid state quickly; 1 if there is one in a->best. */
int poet_anneal_greedy(annealer *a, double seconds) {
    const double unit = mean_move(a);
    a->until_clock = now_seconds() + seconds;
    a->has_best = 0;
    a->random = 0x9E3779B97F4A7C15ull;
    set_fines(a);
    usual_choices(a); /* whatever ran before: the same result every time */
    everything_kept(a);
    if (!settle(a)) return 0;
    drop_gaps(a);
    remember(a);
    nothing_kept(a);
    if (settle(a)) {
        keep_gaps(a);
        keep_gaps(a); /* a second look: what was loaded together may be kept together */
        remember(a);
    }
    for (int k = 0; k < 20 && !a->has_best && !out_of_time(a); k++) { /* anything valid, by fines */
        everything_kept(a);
        if (!settle(a)) return 0;
        drop_gaps(a);
        cool(a, 0, 1, 2000, unit, COLD * unit);
    }
    return a->has_best;
}

/* Search from the state given to poet_anneal_set: several coolings, since short ones that start hot
 * and find different valleys beat a long one; the last third starts warm from the best state.
 * Returns 1 if a valid state is in a->best. `moves` < 0: as many as `seconds` allow. */
int poet_anneal_run(annealer *a, double seconds, int64_t moves, u64 seed, int64_t *done) {
    const double until = now_seconds() + seconds, unit = mean_move(a);
    a->until_clock = until;
    a->random = seed * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull;
    if (!a->random) a->random = 1;
    for (int k = 0; k < 8; k++) next_random(a);
    a->has_best = 0;
    *done = 0;
    set_fines(a);
    if (!settle(a)) return 0;
    remember(a);
    double hot = HOT, expected = (double)moves;
    if (moves < 0) { /* how many moves there will be decides how many coolings */
        double from = now_seconds();
        *done = cool(a, from, until, 4096, hot * unit, hot * unit);
        double passed = now_seconds() - from + 1e-9;
        expected = (double)*done / passed * (until - from);
    }
    int coolings = (int)fmax(1, fmin(expected / COOLING_MOVES / a->stages, 1000));
    int fresh = coolings - coolings / WARM_SHARE;
    for (int k = 0; k < coolings; k++) {
        if (k >= fresh && a->has_best) {
            copy_choices(a, &a->state, &a->best);
            if (!settle(a)) break;
            hot = WARM * pow(0.5, (k - fresh) % 4);
        }
        double from = now_seconds();
        int64_t left = moves < 0 ? -1 : (moves - *done) / (coolings - k);
        double to = moves < 0 ? from + (until - from) / (coolings - k) : until;
        *done += cool(a, from, to, left, hot * unit, COLD * unit);
    }
    return a->has_best;
}

/* Search near the state given to poet_anneal_set, which may pass the limits: let go of what is too
 * much, then cool from low temperatures only. As above otherwise. */
int poet_anneal_lean(annealer *a, double seconds, int64_t moves, u64 seed, int64_t *done) {
    const double until = now_seconds() + seconds, unit = mean_move(a);
    a->until_clock = until;
    a->random = (seed + 1) * 0x9E3779B97F4A7C15ull;
    a->has_best = 0;
    *done = 0;
    set_fines(a);
    if (!settle(a)) return 0;
    remember(a);
    drop_gaps(a);
    remember(a);
    for (int k = 0; k < LEAN_COOLINGS; k++) {
        double from = now_seconds(), left = LEAN_COOLINGS - k;
        int64_t share = moves < 0 ? -1 : (int64_t)((double)(moves - *done) / left);
        double to = moves < 0 ? from + (until - from) / left : until;
        *done += cool(a, from, to, share, WARM * pow(0.25, LEAN_COOLINGS - k) * unit, COLD * unit);
        if (!a->has_best) continue;
        copy_choices(a, &a->state, &a->best);
        if (!settle(a)) break;
    }
    return a->has_best;
}

/* The schedule of the best state, as triples; returns how many there are (or would be). */
int64_t poet_anneal_emit(annealer *a, int32_t *out, int64_t capacity) {
    const problem *p = a->p;
    emitter e = {out, 0, capacity};
    if (!a->has_best) return 0;
    copy_choices(a, &a->state, &a->best);
    if (!decode_all(a)) return 0;
    const u64 *start = row_of(a->next.in_ram, a->stages + 1, a->words);
    for (int i = 0; i < p->n_tensors; i++)
        if (has(start, i) && write_due(a, i)) emit(&e, DO_PAGE_OUT, i, 0);
    for (int i = 0; i < p->n_tensors; i++)
        if (has(start, i) && !has(a->state.keep, i)) emit(&e, DO_FREE, i, 0);
    a->next.level[0] = a->now.level[0];
    for (int w = 0; w < a->words; w++) a->next.in_ram[w] = a->now.in_ram[w];
    for (int s = 0; s < a->stages; s++)
        if (!decode_stage(a, s, &e)) return 0;
    return e.count;
}

/* The energy of the best state, and in `peak` its RAM while ops run, as the search counts them. */
double poet_anneal_counted(annealer *a, int64_t *peak) {
    *peak = 0;
    copy_choices(a, &a->state, &a->best);
    if (!a->has_best || !decode_all(a)) return 0;
    for (int s = 0; s < a->stages; s++)
        if (a->now.peak[s] > *peak) *peak = a->now.peak[s];
    return energy(a);
}

/* Give the state to search from; rows of keep are stages + 1, of page and early stages. */
void poet_anneal_set(annealer *a, const u64 *keep, const u64 *page, const u64 *early,
                     const int32_t *first, const int32_t *again) {
    size_t row = (size_t)a->words * sizeof(u64);
    memcpy(a->state.keep, keep, (size_t)(a->stages + 1) * row);
    memcpy(a->state.page, page, (size_t)a->stages * row);
    memcpy(a->state.early, early, (size_t)a->stages * row);
    memcpy(a->state.first, first, (size_t)a->stages * sizeof(int32_t));
    memcpy(a->state.again, again, (size_t)a->stages * sizeof(int32_t));
}

/* Search on from the best state found so far. */
void poet_anneal_restore(annealer *a) { copy_choices(a, &a->state, &a->best); }
void poet_anneal_stop(annealer *a, int flag) { atomic_store(&a->stop, flag); }

void poet_anneal_free(annealer *a) {
    if (a) free(a->memory);
    free(a);
}

annealer *poet_anneal_new(const problem *p) {
    annealer *a = calloc(1, sizeof *a);
    if (!a) return 0;
    a->p = p;
    a->stages = p->n_ops + 1;
    a->words = p->n_tensors / 64 + 1;
    a->op_words = a->stages / 64 + 1;
    arena measure = {0};
    carve_all(a, &measure);
    arena m = {a->memory = calloc(1, measure.used + 64), 0};
    if (!m.base) {
        free(a);
        return 0;
    }
    carve_all(a, &m);
    for (int i = 0; i < p->n_tensors; i++) {
        for (int s = p->producer[i] + 1; s <= p->last_keep[i]; s++)
            put(row_of(a->allowed, s, a->words), i);
        if (p->end[i] != END_NONE && p->end[i] != END_STORE && p->end[i] != END_STORE_LAST)
            put(row_of(a->allowed, a->stages, a->words), i);
        for (int s = p->producer[i] + 1; p->pinned[i] && s <= a->stages; s++) {
            put(row_of(a->pinned, s, a->words), i);
            put(row_of(a->allowed, s, a->words), i);
        }
        if (p->start_ram[i]) put(row_of(a->next.in_ram, a->stages + 1, a->words), i);
    }
    usual_choices(a);
    return a;
}
