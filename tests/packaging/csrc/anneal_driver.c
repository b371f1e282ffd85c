/* anneal_driver FILE MOVES SEED: the local search on a problem from a file.
 *
 * The file has `problem` (state.h) as it lies in memory up to its first array, then for every array
 * its bytes as an int64 and the bytes themselves. Printed are whether a valid state was found, the
 * moves tried, the best joules to the last bit, and the schedule's triples. No clock cuts the search
 * short, so that a slow machine prints the same. */
#include <stddef.h>
#include <stdio.h>

#include "state.h"

annealer *poet_anneal_new(const problem *p);
int poet_anneal_greedy(annealer *a, double seconds);
void poet_anneal_restore(annealer *a);
int poet_anneal_run(annealer *a, double seconds, int64_t moves, u64 seed, int64_t *done);
int64_t poet_anneal_emit(annealer *a, int32_t *out, int64_t capacity);
void poet_anneal_free(annealer *a);

static const double FOREVER = 1e9;

static void read_bytes(FILE *file, void *to, size_t size) {
    if (size && fread(to, size, 1, file) != 1) {
        fputs("the problem is cut short\n", stderr);
        exit(2);
    }
}

static problem read_problem(FILE *file) {
    problem p;
    const size_t first = offsetof(problem, nbytes);
    read_bytes(file, &p, first);
    for (size_t at = first; at < sizeof p; at += sizeof(void *)) {
        int64_t size;
        read_bytes(file, &size, sizeof size);
        void *array = malloc((size_t)size + 1);
        read_bytes(file, array, (size_t)size);
        memcpy((char *)&p + at, &array, sizeof array);
    }
    return p;
}

int main(int argc, char **argv) {
    FILE *file = argc == 4 ? fopen(argv[1], "rb") : 0;
    if (!file) return 2;
    problem p = read_problem(file);
    annealer *a = poet_anneal_new(&p);
    if (!a) return 2;
    if (poet_anneal_greedy(a, FOREVER)) poet_anneal_restore(a);
    int64_t done = 0;
    int valid = poet_anneal_run(a, FOREVER, atoll(argv[2]), strtoull(argv[3], 0, 10), &done);
    printf("%d %lld %a\n", valid, (long long)done, a->best_joules);
    int64_t count = poet_anneal_emit(a, 0, 0);
    int32_t *triples = malloc(3 * sizeof *triples * (size_t)count + 1);
    if (poet_anneal_emit(a, triples, count) != count) return 2;
    for (int64_t k = 0; k < count; k++)
        printf("%d %d %d\n", triples[3 * k], triples[3 * k + 1], triples[3 * k + 2]);
    poet_anneal_free(a);
    return 0;
}
