/* From choices to what each stage does: decoding, and evaluating a move. Part of anneal.c. */
#ifndef POET_DECODE_H
#define POET_DECODE_H
#include "books.h"

static inline int is_streamed(const problem *p, int variant, int i) {
    for (int k = p->reads_at[variant]; k < p->reads_at[variant + 1]; k++)
        if (p->reads[k] == i) return 1;
    return 0;
}
static inline int is_written(const problem *p, int variant, int i) {
    for (int k = p->writes_at[variant]; k < p->writes_at[variant + 1]; k++)
        if (p->writes[k] == i) return 1;
    return 0;
}

/* Whether op v can run again in stage s though something that it reads was consumed, and can no
 * longer be made: if that was made again in time, and kept. */
static int runs_if_kept(const annealer *a, int s, int v, const u64 *in_ram, u64 *touched) {
    const problem *p = a->p;
    if (s > p->rerun_if_kept[v]) return 0;
    for (int k = p->inputs_at[v]; k < p->inputs_at[v + 1]; k++) {
        int i = p->inputs[k], maker = p->producer[i];
        if (s <= p->consumed_by[i] || s <= p->rerun_to[maker]) continue;
        put(touched, i); /* the answer depends on it */
        if (!has(in_ram, i) && !runs_if_kept(a, s, maker, in_ram, touched)) return 0;
    }
    return 1;
}

static int can_make(const annealer *a, int s, int i, const u64 *in_ram, u64 *touched) {
    int maker = a->p->producer[i];
    return maker >= 0 &&
           (s <= a->p->rerun_to[maker] || runs_if_kept(a, s, maker, in_ram, touched));
}

/* What may end in either place and is in neither, or is not to be written, is made when the step
 * ends. */
static void make_last(annealer *a, int s, const u64 *in_ram, const u64 *page, u64 *touched) {
    const problem *p = a->p;
    for (int i = 0; i < p->n_tensors; i++) {
        if (p->end[i] != END_EITHER || has(in_ram, i)) continue;
        if ((s <= p->load_to[i] && has(page, i)) || !can_make(a, s, i, in_ram, touched)) continue;
        a->stamp[i] = a->epoch;
        a->last_use[i] = s;
        a->source[i] = MADE;
        put(a->todo, p->producer[i]);
    }
}

/* What is to be made in stage s for a later one. */
static void make_early(annealer *a, int s, const u64 *in_ram, u64 *touched) {
    const u64 *early = row_of(a->state.early, s, a->words);
    const u64 *keep = row_of(a->state.keep, s + 1, a->words);
    for (int w = 0; w < a->words; w++)
        for (u64 bits = early[w]; bits; bits &= bits - 1) {
            int i = w * 64 + __builtin_ctzll(bits);
            put(touched, i);
            if (!has(keep, i) || has(in_ram, i) || a->p->producer[i] >= s) continue;
            if (can_make(a, s, i, in_ram, touched)) put(a->todo, a->p->producer[i]);
        }
}

/* The ops that run in stage s, last to first into a->order; says where each tensor comes from.
 * Returns their number, or 0 if something can be had from nowhere. */
static int choose_ops(annealer *a, int s, const u64 *in_ram, u64 *touched, u64 *moved,
                      u64 *reruns) {
    const problem *p = a->p;
    const u64 *page = row_of(a->state.page, s, a->words);
    int count = 0, v = s, word = s >> 6;
    if (a->epoch == INT32_MAX) { /* stamps of 2^31 stages ago must not look new */
        a->epoch = 0;
        memset(a->stamp, 0, (size_t)p->n_tensors * sizeof(int32_t));
    }
    a->epoch++;
    for (;;) {
        int variant = v == s ? a->state.first[v] : a->state.again[v];
        int streams = p->reads_at[variant] != p->reads_at[variant + 1];
        a->order[count++] = v;
        if (v != s) put(reruns, v);
        for (int k = p->inputs_at[v]; k < p->inputs_at[v + 1]; k++) {
            int i = p->inputs[k];
            int can_load = s >= p->load_from[i] && s <= p->load_to[i];
            put(touched, i);
            if (streams && is_streamed(p, variant, i)) {
                a->stuck_op = v;
                if (!can_load) goto stuck;
                put(moved, i);
                continue;
            }
            if (a->stamp[i] == a->epoch) continue;
            a->stuck_op = -1;
            a->stamp[i] = a->epoch;
            a->last_use[i] = v;
            put(a->used, i);
            if (has(in_ram, i)) {
                a->source[i] = KEPT;
                continue;
            }
            int makes = can_make(a, s, i, in_ram, touched);
            if (can_load && (!makes || has(page, i))) {
                a->source[i] = LOADED;
            } else if (makes) {
                a->source[i] = MADE;
                put(a->todo, p->producer[i]);
            } else {
                goto stuck;
            }
            continue;
        stuck:
            a->stuck_tensor = i;
            a->stuck_stage = s;
            memset(a->todo, 0, (size_t)a->op_words * sizeof(u64));
            return 0;
        }
        for (int k = p->outputs_at[v]; k < p->outputs_at[v + 1]; k++) put(touched, p->outputs[k]);
        if (v == p->n_ops) make_last(a, s, in_ram, page, touched);
        if (v == s && p->makes_early) make_early(a, s, in_ram, touched);
        while (word >= 0 && !a->todo[word]) word--;
        if (word < 0) return count;
        v = word * 64 + 63 - __builtin_clzll(a->todo[word]);
        take(a->todo, v);
    }
}

static void emit_last_writes(const problem *p, emitter *e) {
    for (int i = 0; i < p->n_tensors; i++)
        if (is_written_last(p, i)) emit(e, DO_PAGE_OUT, i, 0);
}

/* What stage s does when it begins with next.in_ram[s]. Fills next's row s and in_ram of s + 1.
 * Returns 0 if the stage cannot be carried out at all. */
static int decode_stage(annealer *a, int s, emitter *e) {
    const problem *p = a->p;
    const int words = a->words;
    decoding *d = &a->next;
    const u64 *in_ram = row_of(d->in_ram, s, words), *keep = row_of(a->state.keep, s + 1, words);
    u64 *touched = row_of(d->touched, s, words), *moved = row_of(d->moved, s, words);
    u64 *live = a->live;
    memset(touched, 0, (size_t)words * sizeof(u64));
    memset(moved, 0, (size_t)words * sizeof(u64));
    memset(a->used, 0, (size_t)words * sizeof(u64));
    memset(row_of(d->reruns, s, a->op_words), 0, (size_t)a->op_words * sizeof(u64));
    int count = choose_ops(a, s, in_ram, touched, moved, row_of(d->reruns, s, a->op_words));
    if (!count) return 0;
    a->work += count;

    int64_t level = d->level[s], peak = 0;
    double joules = 0, seconds = 0;
    for (int w = 0; w < words; w++) { /* what is neither used here nor wanted later leaves first */
        u64 gone = in_ram[w] & ~keep[w] & ~a->used[w];
        live[w] = in_ram[w] & ~gone;
        for (; gone; gone &= gone - 1) {
            int i = w * 64 + __builtin_ctzll(gone);
            level -= p->nbytes[i];
            if (e) emit(e, DO_FREE, i, 0);
        }
    }
    while (count--) {
        int v = a->order[count], variant = v == s ? a->state.first[v] : a->state.again[v];
        int reads = p->reads_at[variant] != p->reads_at[variant + 1];
        int writes = p->writes_at[variant] != p->writes_at[variant + 1];
        for (int k = p->inputs_at[v]; k < p->inputs_at[v + 1]; k++) {
            int i = p->inputs[k];
            if (has(live, i) || a->stamp[i] != a->epoch || a->source[i] != LOADED) continue;
            if (reads && is_streamed(p, variant, i)) continue;
            put(live, i);
            put(moved, i);
            level += p->nbytes[i];
            joules += p->in_joules[i];
            seconds += p->in_seconds[i];
            if (e) emit(e, DO_PAGE_IN, i, 0);
        }
        int64_t more = p->workspace[variant], stays = 0;
        for (int k = p->outputs_at[v]; k < p->outputs_at[v + 1]; k++) {
            int i = p->outputs[k];
            if (writes && is_written(p, variant, i)) {
                put(moved, i);
                continue;
            }
            int seat = p->seat[k];
            if (seat < 0 || (reads && is_streamed(p, variant, seat))) more += p->nbytes[i];
            if (!has(live, i)) {
                put(live, i);
                stays += p->nbytes[i];
            }
        }
        if (level + more > peak) peak = level + more;
        level += stays;
        joules += p->run_joules[variant];
        seconds += p->run_seconds[variant];
        if (e && v < p->n_ops) emit(e, DO_COMPUTE, v, variant);
        if (e && v == p->n_ops) emit_last_writes(p, e);
        for (int k = p->outputs_at[v]; k < p->outputs_at[v + 1]; k++) {
            int i = p->outputs[k], seat = p->seat[k];
            if (seat >= 0 && has(live, seat)) { /* consumed */
                take(live, seat);
                level -= p->nbytes[seat];
            }
            if (e && v == s && write_due(a, i)) emit(e, DO_PAGE_OUT, i, 0);
            if (has(live, i) && a->stamp[i] != a->epoch && !has(keep, i)) {
                take(live, i);
                level -= p->nbytes[i];
                if (e) emit(e, DO_FREE, i, 0);
            }
        }
        for (int k = p->inputs_at[v]; k < p->inputs_at[v + 1]; k++) {
            int i = p->inputs[k];
            if (a->stamp[i] != a->epoch || a->last_use[i] != v || !has(live, i) || has(keep, i))
                continue;
            take(live, i);
            level -= p->nbytes[i];
            if (e) emit(e, DO_FREE, i, 0);
        }
    }
    if (s == p->n_ops) /* what may end in either place and is not in RAM must be in the store */
        for (int i = 0; i < p->n_tensors; i++)
            if (p->end[i] == END_EITHER) {
                put(touched, i);
                if (has(live, i)) continue;
                a->stuck_tensor = i;
                a->stuck_stage = s;
                a->stuck_op = -1;
                if (s > p->load_to[i]) return 0;
                put(moved, i);
            }
    memcpy(row_of(d->in_ram, s + 1, words), live, (size_t)words * sizeof(u64));
    d->level[s + 1] = level;
    d->joules[s] = joules;
    d->seconds[s] = seconds;
    d->peak[s] = peak;
    return 1;
}

static inline int64_t over(const annealer *a, int64_t peak) {
    return peak > a->p->ram_bytes ? peak - a->p->ram_bytes : 0;
}

/* Loop over the word numbers w of a row that a mask of numbers modulo 64 names. */
#define FOR_WORDS(w, mask, words)            \
    for (u64 left_ = (mask); left_; left_ &= left_ - 1) \
        for (int w = __builtin_ctzll(left_); w < (words); w += 64)

static int sees_change(const annealer *a, int s) {
    const u64 *touched = row_of(a->now.touched, s, a->words);
    const u64 *was = row_of(a->now.in_ram, s, a->words), *is = row_of(a->next.in_ram, s, a->words);
    FOR_WORDS(w, a->active_words, a->words) if ((was[w] ^ is[w]) & touched[w]) return 1;
    for (int k = 0; k < a->n_changes; k++) {
        const change *c = &a->changes[k];
        if (s >= c->from && s <= c->to && has(touched, c->tensor)) return 1;
    }
    int v = a->changed_op;
    if (s == a->changed_early) return 1;
    return v >= 0 && (s == v || has(row_of(a->now.reruns, s, a->op_words), v));
}

/* A change passes stage s by: the row of s + 1 and the bytes follow from the incumbent's. Returns
 * the mask of words in which the two rows differ. */
static u64 pass_by(annealer *a, int s) {
    const int words = a->words;
    const u64 *touched = row_of(a->now.touched, s, words), *is = row_of(a->next.in_ram, s, words);
    const u64 *was = row_of(a->now.in_ram, s + 1, words);
    const u64 *keep = row_of(a->state.keep, s + 1, words);
    u64 *to = row_of(a->next.in_ram, s + 1, words), differ = 0;
    int64_t more = 0;
    FOR_WORDS(w, a->active_words, words) {
        to[w] = (was[w] & touched[w]) | (is[w] & keep[w] & ~touched[w]);
        u64 bits = to[w] ^ was[w];
        if (bits) differ |= (u64)1 << (w & 63);
        for (; bits; bits &= bits - 1) {
            int i = w * 64 + __builtin_ctzll(bits);
            more += has(to, i) ? a->p->nbytes[i] : -a->p->nbytes[i];
        }
    }
    a->next.peak[s] = a->now.peak[s] + more;
    a->next.level[s + 1] = a->now.level[s + 1] + more;
    return differ;
}

static u64 differing_words(const annealer *a, int s) {
    const u64 *was = row_of(a->now.in_ram, s, a->words), *is = row_of(a->next.in_ram, s, a->words);
    u64 differ = 0;
    for (int w = 0; w < a->words; w++) differ |= (u64)(was[w] != is[w]) << (w & 63);
    return differ;
}

/* Between moves the rows of next.in_ram are those of now; bring them back after a move. */
static void forget_rows(annealer *a) {
    for (int s = a->from; s <= a->end && s <= a->stages; s++) {
        const u64 *was = row_of(a->now.in_ram, s, a->words);
        u64 *is = row_of(a->next.in_ram, s, a->words);
        FOR_WORDS(w, a->written_words, a->words) is[w] = was[w];
    }
}

/* Decode what the move in a->changes touches, into a->next and a->sums. 0: it cannot be done. */
static int evaluate(annealer *a, int all) {
    const problem *p = a->p;
    const int words = a->words;
    int s = a->from;
    a->end = s;
    a->next.level[s] = a->now.level[s];
    a->active_words = a->changed_words;
    if (s == 0) {
        const u64 *start = row_of(a->next.in_ram, a->stages + 1, words);
        a->next.level[0] = 0;
        for (int w = 0; w < words; w++) a->next.in_ram[w] = start[w] & a->state.keep[w];
        for (int i = 0; i < p->n_tensors; i++)
            if (has(a->next.in_ram, i)) a->next.level[0] += p->nbytes[i];
        a->active_words |= differing_words(a, 0);
    }
    a->written_words = all ? ~(u64)0 : a->active_words;
    for (; s < a->stages; s++) {
        u64 differ;
        a->end = s;
        a->fresh[s] = (uint8_t)(all || sees_change(a, s));
        if (a->fresh[s]) {
            if (!decode_stage(a, s, 0)) return 0;
            book_difference(a, row_of(a->now.moved, s, words), row_of(a->next.moved, s, words));
            a->sums.joules += a->next.joules[s] - a->now.joules[s];
            a->sums.seconds += a->next.seconds[s] - a->now.seconds[s];
            differ = differing_words(a, s + 1);
        } else {
            differ = pass_by(a, s);
        }
        a->active_words = differ | a->changed_words;
        a->written_words |= differ;
        a->sums.over_bytes += over(a, a->next.peak[s]) - over(a, a->now.peak[s]);
        if (!differ && s >= a->until && !all) {
            s++;
            break;
        }
    }
    a->end = s;
    return !p->n_pairs || !store_conflict(a);
}

static void accept(annealer *a) {
    const int words = a->words;
    decoding *to = &a->now, *is = &a->next;
    for (int s = a->from; s < a->end; s++) {
        if (a->fresh[s]) {
            size_t size = (size_t)words * sizeof(u64);
            memcpy(row_of(to->touched, s, words), row_of(is->touched, s, words), size);
            memcpy(row_of(to->moved, s, words), row_of(is->moved, s, words), size);
            memcpy(row_of(to->reruns, s, a->op_words), row_of(is->reruns, s, a->op_words),
                   (size_t)a->op_words * sizeof(u64));
            to->joules[s] = is->joules[s];
            to->seconds[s] = is->seconds[s];
        }
        to->peak[s] = is->peak[s];
        to->level[s + 1] = is->level[s + 1];
    }
    to->level[a->from] = is->level[a->from];
    for (int s = a->from; s <= a->end; s++) {
        u64 *row = row_of(to->in_ram, s, words);
        const u64 *by = row_of(is->in_ram, s, words);
        FOR_WORDS(w, a->written_words, words) row[w] = by[w];
    }
}

#endif
