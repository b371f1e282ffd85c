/* Simulated annealing over stage-structured schedules.
 *
 * Stage s ends with the first run of op s; stage n_ops is the step's end, where a made-up op
 * without cost reads all that must end in RAM. The state is three choices:
 *   keep[s] bit i   tensor i, if it is in RAM when stage s - 1 is over, stays into stage s
 *   page[s] bit i   tensor i, if stage s needs it and it is not in RAM, is loaded, else recomputed
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
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint64_t u64;
enum { END_NONE, END_RAM, END_STORE, END_BOTH, END_EITHER };
enum { DO_COMPUTE, DO_PAGE_OUT, DO_PAGE_IN, DO_FREE };
enum { KEPT, LOADED, MADE }; /* where a stage has a tensor from */
enum {
    MAX_CHANGES = 64,          /* tensors that one move may touch */
    MOST_EJECTED = 12,         /* tensors dropped to make room for one */
    COOLING_MOVES = 5000,      /* moves of one cooling, a stage */
    WARM_SHARE = 3,            /* one cooling in so many starts from the best state */
    FORCED_PER_MILLE = 300,    /* moves that make room or fill it */
    WORK_BETWEEN_CLOCKS = 100000, /* ops decoded, at most, before the clock is read */
};
/* Temperatures, in units of an op's mean energy: at the start, at the end, and of a warm start. */
static const double HOT = 2.0, COLD = 0.003, WARM = 1.0;

/* The problem as flat arrays; anneal.py fills it in the same order. Offsets (`*_at`) have one more
 * entry than there are owners. Op n_ops is the made-up one of the step's end. */
typedef struct problem {
    int64_t ram_bytes, store_bytes;
    double deadline_seconds;
    int32_t n_ops, n_tensors, n_pairs, padding;
    const int64_t *nbytes;
    const double *in_joules, *in_seconds, *out_joules, *out_seconds;
    const int32_t *producer;             /* -1: exists at the start */
    const int32_t *last_keep;            /* the last stage into which keeping can be of use */
    const int32_t *load_from, *load_to;  /* the stages in which a load is possible */
    const int32_t *slot;                 /* of the store */
    const uint8_t *start_ram, *start_stored, *end;
    const int32_t *rerun_to;             /* per op: the last stage in which it may run again; -1 */
    const int32_t *inputs_at, *inputs, *outputs_at, *outputs;
    const int32_t *seat; /* parallel to outputs: the input whose bytes it takes, or -1 */
    const int32_t *variants_at, *again_at, *again; /* `again`: variants without streamed outputs */
    const double *run_joules, *run_seconds;
    const int64_t *workspace;
    const int32_t *reads_at, *reads, *writes_at, *writes; /* streams, per variant */
    const int32_t *pairs; /* (old, new): new's write to the store destroys old, maybe wanted */
} problem;

/* What a schedule does, stage by stage. Rows of bits over tensors (or ops, for `reruns`). */
typedef struct decoding {
    u64 *in_ram;  /* when the stage begins */
    u64 *touched; /* read, made or streamed in the stage */
    u64 *moved;   /* loaded or streamed: needs a copy in the store */
    u64 *reruns;
    double *joules, *seconds;
    int64_t *peak, *level; /* bytes: the highest in the stage, and when it begins */
} decoding;

typedef struct change { /* stages from..to must be decoded again if they touch the tensor */
    int32_t tensor, from, to;
} change;

typedef struct gap { /* stages into which a tensor could be kept */
    double score;
    int32_t tensor, from, to;
} gap;

typedef struct flip {
    u64 *word;
    u64 mask;
} flip;

typedef struct stored { /* an entry of the undo log of the store's books */
    int32_t tensor, uses, streamed;
} stored;

typedef struct totals {
    double joules, seconds;             /* of all stages */
    double write_joules, write_seconds; /* of writes to the store */
    int64_t over_bytes;                 /* the sum over stages of bytes above the limit */
    int64_t slot_bytes;                 /* slots of the store in use */
} totals;

typedef struct choices {
    u64 *keep, *page;
    int32_t *first, *again;
} choices;

typedef struct annealer {
    const problem *p;
    int stages, words, op_words; /* stages = n_ops + 1 */
    choices state, best;
    decoding now, next;
    u64 *allowed; /* where keep bits may be set */
    uint8_t *fresh;
    totals sums;
    /* the store's books */
    int32_t *store_uses, *streamed_out, *slot_uses;
    stored *book_log;
    int n_book_log;
    /* the move being tried */
    change changes[MAX_CHANGES];
    int n_changes, changed_op, from, until, end;
    u64 changed_words, active_words, written_words; /* masks of word numbers modulo 64: those of the
        changed tensors, those in which next.in_ram may differ from now's, those ever written */
    flip *flips;
    int n_flips, max_flips;
    int old_variant, old_is_first;
    /* scratch of decode_stage */
    u64 *todo, *live, *used;
    int32_t *order, *last_use, *stamp;
    uint8_t *source;
    int32_t epoch;
    /* fines: joules per unit of violation */
    double ram_fine, time_fine, store_fine;
    double usual_ram_fine, usual_time_fine, usual_store_fine;
    double best_joules;
    int has_best;
    u64 random;
    atomic_int stop;
    double until_clock;
    int64_t work; /* ops decoded since the clock was read */
    void *memory;
    gap *gaps;
    int32_t stuck_tensor, stuck_stage;
    int eject; /* the move being tried may drop so many tensors to make room */
} annealer;

typedef struct emitter {
    int32_t *out; /* triples: what, id, variant */
    int64_t count, capacity;
} emitter;

static inline int has(const u64 *row, int i) { return (int)(row[i >> 6] >> (i & 63) & 1); }
static inline void put(u64 *row, int i) { row[i >> 6] |= (u64)1 << (i & 63); }
static inline void take(u64 *row, int i) { row[i >> 6] &= ~((u64)1 << (i & 63)); }
static inline u64 *row_of(u64 *rows, int s, int words) { return rows + (size_t)s * (size_t)words; }

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline u64 next_random(annealer *a) { /* xorshift64* */
    a->random ^= a->random >> 12;
    a->random ^= a->random << 25;
    a->random ^= a->random >> 27;
    return a->random * 0x2545F4914F6CDD1Dull;
}
static inline int below(annealer *a, int n) { return (int)((next_random(a) >> 32) * (u64)n >> 32); }
static inline double uniform(annealer *a) { return (double)((next_random(a) >> 11) + 1) * 0x1p-53; }

static void emit(emitter *e, int what, int id, int variant) {
    if (e->count < e->capacity) {
        e->out[3 * e->count] = what;
        e->out[3 * e->count + 1] = id;
        e->out[3 * e->count + 2] = variant;
    }
    e->count++;
}

/* ---- The store's books: which tensors need a copy there, and what writing them costs ---- */

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

/* ---- Decoding ---- */

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
            int i = p->inputs[k], maker = p->producer[i];
            int can_load = s >= p->load_from[i] && s <= p->load_to[i];
            put(touched, i);
            if (streams && is_streamed(p, variant, i)) {
                if (!can_load) goto stuck;
                put(moved, i);
                continue;
            }
            if (a->stamp[i] == a->epoch) continue;
            a->stamp[i] = a->epoch;
            a->last_use[i] = v;
            put(a->used, i);
            if (has(in_ram, i)) {
                a->source[i] = KEPT;
                continue;
            }
            int can_make = maker >= 0 && s <= p->rerun_to[maker];
            if (can_load && (!can_make || has(page, i))) {
                a->source[i] = LOADED;
            } else if (can_make) {
                a->source[i] = MADE;
                put(a->todo, maker);
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
        while (word >= 0 && !a->todo[word]) word--;
        if (word < 0) return count;
        v = word * 64 + 63 - __builtin_clzll(a->todo[word]);
        take(a->todo, v);
    }
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

/* ---- Moves ---- */

static void begin_move(annealer *a) {
    a->n_changes = a->n_flips = a->n_book_log = 0;
    a->changed_words = a->written_words = 0;
    a->changed_op = -1;
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

/* A tensor and a stage into which it could be kept. */
static int pick(annealer *a, int *tensor, int *stage) {
    const problem *p = a->p;
    int s = below(a, a->stages), i = random_bit(a, row_of(a->now.touched, s, a->words), a->words);
    if (i < 0) return 0;
    int side = below(a, 2);
    for (int k = 0; k < 2; k++, side ^= 1)
        if (s + side > birth(a, i) && s + side <= p->last_keep[i]) {
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

static int keepable(const annealer *a, int i, int s) {
    return s > birth(a, i) && s <= a->p->last_keep[i];
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
    else if (kind < 100) move_page(a);
    else move_variant(a);
}

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
        a->state.keep[k] &= a->allowed[k];
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
    for (int i = 0; i < p->n_tensors; i++)
        if (p->start_stored[i] || p->end[i] == END_STORE || p->end[i] == END_BOTH) book(a, i, 1, 0);
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

/* ---- Starts ---- */

static int max_gaps(const problem *p) { return 4 * p->inputs_at[p->n_ops + 1] + p->n_tensors; }

/* Load what is missing; each op in its first variant. */
static void usual_choices(annealer *a) {
    const problem *p = a->p;
    memset(a->state.page, 0xff, (size_t)a->stages * (size_t)a->words * sizeof(u64));
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

/* Keep what can be had in no other way, until the state can be carried out. */
static int settle(annealer *a) {
    const problem *p = a->p;
    for (int tries = 4 * p->n_tensors + 16; tries--;) {
        a->stuck_tensor = -1;
        if (decode_all(a)) return 1;
        if (out_of_time(a)) return 0;
        int i = a->stuck_tensor, changed = 0;
        if (i < 0) return 0;
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
        if (!has(held, i) || has(touched, i) || !p->nbytes[i]) continue;
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

/* Give the state to search from; rows of keep are stages + 1, of page stages. */
void poet_anneal_set(annealer *a, const u64 *keep, const u64 *page, const int32_t *first,
                     const int32_t *again) {
    size_t row = (size_t)a->words * sizeof(u64);
    memcpy(a->state.keep, keep, (size_t)(a->stages + 1) * row);
    memcpy(a->state.page, page, (size_t)a->stages * row);
    memcpy(a->state.first, first, (size_t)a->stages * sizeof(int32_t));
    memcpy(a->state.again, again, (size_t)a->stages * sizeof(int32_t));
}

/* Search on from the best state found so far. */
void poet_anneal_restore(annealer *a) { copy_choices(a, &a->state, &a->best); }
void poet_anneal_stop(annealer *a, int flag) { atomic_store(&a->stop, flag); }

/* ---- Memory ---- */

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
        if (p->end[i] != END_NONE && p->end[i] != END_STORE)
            put(row_of(a->allowed, a->stages, a->words), i);
        if (p->start_ram[i]) put(row_of(a->next.in_ram, a->stages + 1, a->words), i);
    }
    usual_choices(a);
    return a;
}
