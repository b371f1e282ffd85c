/* The search for a small arena (arena.py says what it does), on plain arrays.
 *
 * Block n has sizes[n] bytes and may not overlap those in rivals[starts[n]] to
 * rivals[starts[n + 1] - 1]. The order comes in with the best that simple rules gave.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct search {
    int count;
    const int64_t *sizes, *alignments;
    const int32_t *starts, *rivals;
    int64_t least;
    int64_t *offsets, *trial; /* of the order that was kept, and of the one that is tried */
    int64_t *begins, *ends;   /* room for the rivals of one block */
    int64_t top;
    int above_count;
    int32_t *above;
};

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1dull;
}

static double share(uint64_t *state) /* from 0 to below 1 */
{
    return (double)(next(state) >> 11) / 9007199254740992.0;
}

static int below(uint64_t *state, int count)
{
    return (int)(share(state) * count);
}

/* The lowest address that is free of all rivals placed so far. */
static int64_t lowest(struct search *s, int n)
{
    int found = 0;
    for (int32_t i = s->starts[n]; i < s->starts[n + 1]; i++) {
        int32_t other = s->rivals[i];
        int64_t begin = s->trial[other];
        if (begin < 0 || s->sizes[other] == 0)
            continue;
        int at = found++;
        for (; at > 0 && s->begins[at - 1] > begin; at--) {
            s->begins[at] = s->begins[at - 1];
            s->ends[at] = s->ends[at - 1];
        }
        s->begins[at] = begin;
        s->ends[at] = begin + s->sizes[other];
    }
    int64_t at = 0, alignment = s->alignments[n];
    for (int i = 0; i < found; i++) {
        if (at + s->sizes[n] <= s->begins[i])
            break;
        if (s->ends[i] > at)
            at = (s->ends[i] + alignment - 1) / alignment * alignment;
    }
    return at;
}

/* Piles the blocks; the first `same` lie as they are kept. The bytes above the least, summed. */
static int64_t pile(struct search *s, const int32_t *order, int same, double allowed)
{
    int64_t excess = 0;
    s->top = 0;
    s->above_count = 0;
    for (int n = 0; n < s->count; n++)
        s->trial[n] = -1;
    for (int place = 0; place < s->count; place++) {
        int n = order[place];
        int64_t at = place < same ? s->offsets[n] : lowest(s, n);
        int64_t end = at + s->sizes[n];
        s->trial[n] = at;
        if (end > s->top)
            s->top = end;
        if (end > s->least) {
            excess += end - s->least;
            s->above[s->above_count++] = n;
            if ((double)excess > allowed)
                break;
        }
    }
    return excess;
}

/* Up to `tries` orders; where the arena is within `limit`, no more after `enough` of them, and none
 * once it is `good`. Offsets go to `best`. The size of the arena, or -1 without memory. */
int64_t poet_place(int32_t count, const int64_t *sizes, const int64_t *alignments,
                   const int32_t *starts, const int32_t *rivals, int64_t least, int64_t limit,
                   int64_t good, int32_t *order, int64_t *best, int64_t tries, int64_t enough, double warmth,
                   uint64_t seed)
{
    struct search s = {.count = count, .sizes = sizes, .alignments = alignments, .starts = starts,
                       .rivals = rivals, .least = least};
    size_t room = (size_t)count + 1;
    int64_t *numbers = malloc(4 * room * sizeof *numbers);
    int32_t *lists = malloc(3 * room * sizeof *lists);
    if (numbers == NULL || lists == NULL) {
        free(numbers);
        free(lists);
        return -1;
    }
    s.offsets = numbers;
    s.trial = numbers + room;
    s.begins = numbers + 2 * room;
    s.ends = numbers + 3 * room;
    s.above = lists;
    int32_t *other = lists + room, *tall = lists + 2 * room;
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;

    int64_t now = pile(&s, order, 0, INFINITY), arena = s.top;
    int tall_count = s.above_count;
    double heat = warmth * (double)now;
    memcpy(s.offsets, s.trial, (size_t)count * sizeof *s.offsets);
    memcpy(best, s.trial, (size_t)count * sizeof *best);
    memcpy(tall, s.above, (size_t)tall_count * sizeof *tall);
    for (int64_t i = 0; i < tries && arena > least; i++) {
        if (arena <= good || (arena <= limit && i >= enough))
            break;
        int at;
        if (tall_count > 0 && share(&state) < 0.7) {
            int wanted = tall[below(&state, tall_count)];
            for (at = 0; order[at] != wanted; at++) {
            }
        } else {
            at = below(&state, count);
        }
        int to = share(&state) < 0.8 ? below(&state, at + 1) : below(&state, count);
        memcpy(other, order, (size_t)count * sizeof *other);
        int32_t moved = other[at];
        if (to < at)
            memmove(other + to + 1, other + to, (size_t)(at - to) * sizeof *other);
        else
            memmove(other + at, other + at + 1, (size_t)(to - at) * sizeof *other);
        other[to] = moved;
        double cooled = heat * (1.0 - (double)i / (double)tries);
        double allowed = (double)now - cooled * log(1.0 - share(&state));
        int64_t excess = pile(&s, other, at < to ? at : to, allowed);
        if ((double)excess > allowed)
            continue;
        now = excess;
        memcpy(order, other, (size_t)count * sizeof *order);
        memcpy(s.offsets, s.trial, (size_t)count * sizeof *s.offsets);
        tall_count = s.above_count;
        memcpy(tall, s.above, (size_t)tall_count * sizeof *tall);
        if (s.top < arena) {
            arena = s.top;
            memcpy(best, s.trial, (size_t)count * sizeof *best);
        }
    }
    free(numbers);
    free(lists);
    return arena;
}
