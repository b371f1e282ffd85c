/* The problem, the state of the search, and the small tools all of it uses. Part of anneal.c. */
#ifndef POET_STATE_H
#define POET_STATE_H
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint64_t u64;
enum { END_NONE, END_RAM, END_STORE, END_BOTH, END_EITHER,
       END_STORE_LAST, END_BOTH_LAST }; /* consumed, made again, and written when the step ends */
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
enum { LEAN_COOLINGS = 3 }; /* near a state that was given: from a 64th of WARM, a 16th, a quarter */

/* The problem as flat arrays; anneal.py fills it in the same order. Offsets (`*_at`) have one more
 * entry than there are owners. Op n_ops is the made-up one of the step's end. */
typedef struct problem {
    int64_t ram_bytes, store_bytes;
    double deadline_seconds;
    int32_t n_ops, n_tensors, n_pairs;
    int32_t makes_early; /* whether what was consumed can be made again: then `early` is a choice */
    const int64_t *nbytes;
    const double *in_joules, *in_seconds, *out_joules, *out_seconds;
    const int32_t *producer;             /* -1: exists at the start */
    const int32_t *consumed_by;          /* the op that takes its bytes; n_ops: none */
    const int32_t *last_keep;            /* the last stage into which keeping can be of use */
    const int32_t *load_from, *load_to;  /* the stages in which a load is possible */
    const int32_t *slot;                 /* of the store */
    const uint8_t *pinned;               /* somebody else holds it: it cannot leave RAM */
    const uint8_t *start_ram, *start_stored, *end;
    const int32_t *rerun_to;             /* per op: the last stage in which it may run again; -1 */
    const int32_t *rerun_if_kept; /* the same, if what was made again after it was consumed is there */
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
    u64 *keep, *page, *early;
    int32_t *first, *again;
} choices;

typedef struct annealer {
    const problem *p;
    int stages, words, op_words; /* stages = n_ops + 1 */
    choices state, best;
    decoding now, next;
    u64 *allowed; /* where keep bits may be set */
    u64 *pinned;  /* where keep bits must be set */
    uint8_t *fresh;
    totals sums;
    /* the store's books */
    int32_t *store_uses, *streamed_out, *slot_uses;
    stored *book_log;
    int n_book_log;
    /* the move being tried */
    change changes[MAX_CHANGES];
    int n_changes, changed_op, changed_early, from, until, end;
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
    int32_t stuck_tensor, stuck_stage, stuck_op; /* the op that streams it, or -1 */
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

#endif
