/* place_driver FILE: the search for addresses on blocks from a file.
 *
 * The file has seven int64 (blocks, least, limit, good, tries, enough, seed), the warmth, and the
 * arrays of poet_place: sizes, alignments, starts, rivals, order. Printed are the arena's bytes and
 * the addresses. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int64_t poet_place(int32_t count, const int64_t *sizes, const int64_t *alignments,
                   const int32_t *starts, const int32_t *rivals, int64_t least, int64_t limit,
                   int64_t good, int32_t *order, int64_t *best, int64_t tries, int64_t enough,
                   double warmth, uint64_t seed);

static void *taken(FILE *file, size_t count, size_t size) {
    void *array = calloc(count + 1, size);
    if (!array || fread(array, size, count, file) != count) {
        fputs("the blocks are cut short\n", stderr);
        exit(2);
    }
    return array;
}

int main(int argc, char **argv) {
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : 0;
    if (!file) return 2;
    int64_t *head = taken(file, 7, sizeof(int64_t));
    double *warmth = taken(file, 1, sizeof(double));
    size_t count = (size_t)head[0];
    int64_t *sizes = taken(file, count, sizeof(int64_t));
    int64_t *alignments = taken(file, count, sizeof(int64_t));
    int32_t *starts = taken(file, count + 1, sizeof(int32_t));
    int32_t *rivals = taken(file, (size_t)starts[count], sizeof(int32_t));
    int32_t *order = taken(file, count, sizeof(int32_t));
    int64_t *best = calloc(count + 1, sizeof *best);
    int64_t arena = poet_place((int32_t)count, sizes, alignments, starts, rivals, head[1], head[2],
                               head[3], order, best, head[4], head[5], *warmth, (uint64_t)head[6]);
    printf("%lld\n", (long long)arena);
    for (size_t n = 0; n < count; n++) printf("%lld\n", (long long)best[n]);
    return 0;
}
