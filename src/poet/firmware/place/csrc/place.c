/* The search for addresses below a height (arena.py says what it does), on plain arrays.
 *
 * Block n has sizes[n] bytes and may not overlap those in rivals[starts[n]] to
 * rivals[starts[n + 1] - 1]. Whole numbers alone decide, so that every processor finds the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { GROWTH = 16 }; /* the part by which what was forced in weighs more */
#define MOST_WEIGHT (1ull << 40) /* that the weights of all blocks can be added */

struct place { /* where a rival begins or ends, and what it weighs */
    int64_t at;
    uint64_t weight;
};

struct search {
    int64_t height;
    const int64_t *sizes, *alignments;
    const int32_t *starts, *rivals;
    int64_t *offsets; /* -1: out */
    uint64_t *weights;
    struct place *begins, *ends, *spare;
    uint64_t state;
};

static uint64_t next(struct search *s)
{
    uint64_t x = s->state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    s->state = x;
    return x * 0x2545f4914f6cdd1dull;
}

/* Sort by `at`, in order: runs of eight by insertion, then merged. `spare` has room for as many. */
static void sort(struct place *places, struct place *spare, int count)
{
    enum { RUN = 8 };
    for (int from = 0; from < count; from += RUN)
        for (int i = from + 1; i < count && i < from + RUN; i++) {
            struct place one = places[i];
            int j = i;
            for (; j > from && places[j - 1].at > one.at; j--)
                places[j] = places[j - 1];
            places[j] = one;
        }
    for (int width = RUN; width < count; width *= 2) {
        for (int from = 0; from < count; from += 2 * width) {
            int middle = from + width < count ? from + width : count;
            int to = from + 2 * width < count ? from + 2 * width : count;
            int left = from, right = middle;
            for (int i = from; i < to; i++)
                spare[i] = left < middle && (right >= to || places[left].at <= places[right].at)
                               ? places[left++]
                               : places[right++];
        }
        memcpy(places, spare, (size_t)count * sizeof *places);
    }
}

static int64_t up(int64_t at, int64_t alignment)
{
    return (at + alignment - 1) / alignment * alignment;
}

/* The address at which block n overlaps least by weight: one beside a rival, or at either end. Of
 * several a random one, or, where `lowest`, the lowest. */
static int64_t best_address(struct search *s, int n, int lowest, uint64_t *least)
{
    int count = 0;
    int64_t size = s->sizes[n], alignment = s->alignments[n];
    int64_t top = (s->height - size) / alignment * alignment;
    for (int32_t i = s->starts[n]; i < s->starts[n + 1]; i++) {
        int32_t other = s->rivals[i];
        if (s->offsets[other] < 0)
            continue;
        s->begins[count].at = s->offsets[other];
        s->ends[count].at = s->offsets[other] + s->sizes[other];
        s->begins[count].weight = s->ends[count].weight = s->weights[other];
        count++;
    }
    sort(s->begins, s->spare, count);
    sort(s->ends, s->spare, count);
    int64_t found = 0;
    uint64_t ties = 0;
    *least = UINT64_MAX;
    /* Twice upwards: first to sit on a rival's end, then to hang below a rival's begin. */
    for (int hang = 0; hang < 2; hang++) {
        int begun = 0, ended = 0;
        uint64_t over = 0; /* of rivals that begin below the block's end, less those that end below its begin */
        for (int i = -1; i <= count; i++) {
            int64_t at;
            if (hang)
                at = i < 0 ? -1 : i == count ? top : (s->begins[i].at - size) / alignment * alignment;
            else
                at = i < 0 ? 0 : i == count ? -1 : up(s->ends[i].at, alignment);
            if (at < 0 || at > top)
                continue;
            while (begun < count && s->begins[begun].at < at + size)
                over += s->begins[begun++].weight;
            while (ended < count && s->ends[ended].at <= at)
                over -= s->ends[ended++].weight;
            if (over < *least) {
                *least = over;
                found = at;
                ties = 1;
                if (lowest && over == 0)
                    return found;
            } else if (over == *least && !lowest && next(s) % ++ties == 0) {
                found = at;
            }
        }
    }
    return found;
}

/* Where in `out` a largest block is: what is small finds room between the large, but not they
 * between the small. */
static int64_t largest(struct search *s, const int32_t *out, int64_t left)
{
    int64_t chosen = (int64_t)(next(s) % (uint64_t)left);
    for (int64_t i = 0; i < left; i++)
        if (s->sizes[out[i]] > s->sizes[out[chosen]])
            chosen = i;
    return chosen;
}

/* Addresses below `height` for all blocks, in at most `steps` steps; offsets of -1 are of those that
 * found none. How many those are, or -1 without memory. `order` is the order to begin with. */
int64_t poet_place(int32_t count, const int64_t *sizes, const int64_t *alignments,
                   const int32_t *starts, const int32_t *rivals, const int32_t *order,
                   int64_t *offsets, int64_t height, int64_t steps, uint64_t seed)
{
    size_t room = (size_t)count + 1;
    struct search s = {.height = height, .sizes = sizes, .alignments = alignments,
                       .starts = starts, .rivals = rivals, .offsets = offsets};
    s.weights = malloc(room * sizeof *s.weights);
    s.begins = malloc(room * sizeof *s.begins);
    s.ends = malloc(room * sizeof *s.ends);
    s.spare = malloc(room * sizeof *s.spare);
    int32_t *out = malloc(room * sizeof *out);
    int64_t left = -1;
    for (int n = 0; n < count; n++)
        if (sizes[n] > height) {
            left = count;
            goto end;
        }
    if (s.weights == NULL || s.begins == NULL || s.ends == NULL ||
        s.spare == NULL || out == NULL)
        goto end;
    s.state = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
    left = 0;
    for (int n = 0; n < count; n++) {
        offsets[n] = sizes[n] > 0 ? -1 : 0;
        s.weights[n] = 64 + (uint64_t)(sizes[n] / (height / 4096 + 1));
    }
    for (int i = 0; i < count; i++) {
        int n = order[i];
        uint64_t over;
        if (sizes[n] == 0)
            continue;
        int64_t at = best_address(&s, n, 1, &over);
        if (over == 0)
            offsets[n] = at;
        else
            out[left++] = n;
    }
    for (int64_t step = 0; step < steps && left > 0; step++) {
        int64_t chosen = largest(&s, out, left);
        int n = out[chosen];
        out[chosen] = out[--left];
        uint64_t over;
        int64_t at = best_address(&s, n, 0, &over);
        if (over > 0) {
            for (int32_t i = starts[n]; i < starts[n + 1]; i++) {
                int32_t other = rivals[i];
                if (offsets[other] >= 0 && sizes[other] > 0 && offsets[other] < at + sizes[n] &&
                    at < offsets[other] + sizes[other]) {
                    offsets[other] = -1;
                    out[left++] = other;
                }
            }
            s.weights[n] += GROWTH + s.weights[n] / GROWTH;
            if (s.weights[n] > MOST_WEIGHT)
                for (int i = 0; i < count; i++)
                    s.weights[i] = s.weights[i] / 65536 + 1;
        }
        offsets[n] = at;
    }
end:
    free(s.weights);
    free(s.begins);
    free(s.ends);
    free(s.spare);
    free(out);
    return left;
}
