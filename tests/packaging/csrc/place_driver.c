/* place_driver FILE: the search for addresses on blocks from a file.
 *
 * The file has four int64 (blocks, height, steps, seed) and the arrays of poet_place: sizes,
 * alignments, starts, rivals, order. Printed are how many blocks found no address, and the addresses.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int64_t poet_place(int32_t count, const int64_t *sizes, const int64_t *alignments,
                   const int32_t *starts, const int32_t *rivals, const int32_t *order,
                   int64_t *offsets, int64_t height, int64_t steps, uint64_t seed);

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
    int64_t *head = taken(file, 4, sizeof(int64_t));
    size_t count = (size_t)head[0];
    int64_t *sizes = taken(file, count, sizeof(int64_t));
    int64_t *alignments = taken(file, count, sizeof(int64_t));
    int32_t *starts = taken(file, count + 1, sizeof(int32_t));
    int32_t *rivals = taken(file, (size_t)starts[count], sizeof(int32_t));
    int32_t *order = taken(file, count, sizeof(int32_t));
    int64_t *offsets = calloc(count + 1, sizeof *offsets);
    int64_t left = poet_place((int32_t)count, sizes, alignments, starts, rivals, order, offsets,
                              head[1], head[2], (uint64_t)head[3]);
    printf("%lld\n", (long long)left);
    for (size_t n = 0; n < count; n++) printf("%lld\n", (long long)offsets[n]);
    return 0;
}
