/* Sums of convolutions by vectors where three taps of a row are a run: four pixels of a line at a
 * time, and two channels, whose weights come three in one load. */
#include "conv.h"
#include "helium.h"
#include "lanes.h"

#if POET_HELIUM

/* What goes on over the planes of a tile: where taps read, and the weights of two channels. */
struct reading {
    const float *x, *y, *other;
};

#define TAP_BEGINS(at, left, right)                                                                \
    "vldrw.u32 %q[a], [%[x], #" at "]\n\t"                                                         \
    "vmul.f32 %q[p], %q[a], " left "\n\t"                                                          \
    "vmul.f32 %q[q], %q[a], " right "\n\t"
#define TAP(at, left, right)                                                                       \
    "vldrw.u32 %q[a], [%[x], #" at "]\n\t"                                                         \
    "vmul.f32 %q[b], %q[a], " left "\n\t"                                                          \
    "vmul.f32 %q[c], %q[a], " right "\n\t"                                                         \
    "vadd.f32 %q[p], %q[p], %q[b]\n\t"                                                             \
    "vadd.f32 %q[q], %q[q], %q[c]\n\t"
#define ROW(part_of, FIRST, second, third)                                                             \
    __asm__("ldmia %[y]!, {r4, r5, r6}\n\t"                                                        \
            "ldmia %[other]!, {r8, r9, r10}\n\t"                                                   \
            FIRST("0", "r4", "r8")                                                            \
            TAP(second, "r5", "r9")                                                                \
            TAP(third, "r6", "r10")                                                                \
            : [p] part_of(part[0]), [q] part_of(part[1]), [a] "=&w"(a), [b] "=&w"(b), [c] "=&w"(c),      \
              [y] "+r"(at->y), [other] "+r"(at->other)                                             \
            : [x] "r"(at->x)                                                                       \
            : "r4", "r5", "r6", "r8", "r9", "r10", "memory")

/* A row of taps in one plane. */
POET_INLINE void row_of(struct reading *at, float32x4_t *part, const int is_first,
                        const int is_back)
{
    float32x4_t a, b, c;
    if (is_first && is_back)
        ROW("=&w", TAP_BEGINS, "-4", "-8");
    else if (is_first)
        ROW("=&w", TAP_BEGINS, "4", "8");
    else if (is_back)
        ROW("+w", TAP, "-4", "-8");
    else
        ROW("+w", TAP, "4", "8");
}

/* Four pixels from each on: sums over planes, added to `total`. */
POET_INLINE void planes_of(struct reading at, float32x4_t *total, const struct poet_walk *w,
                           const int rows, const int is_back)
{
    int32_t from_row = w->from_row, from_rest = w->from_plane - (rows - 1) * from_row;
    int32_t rest = w->weight_plane - 3 * rows;
    for (int32_t plane = w->planes; plane > 0; plane--) {
        float32x4_t part[2];
#pragma GCC unroll 3
        for (int row = 0; row < rows; row++) {
            row_of(&at, part, row == 0, is_back);
            at.x += row < rows - 1 ? from_row : from_rest;
            POET_KEEP(at.x);
        }
        at.y += rest;
        at.other += rest;
        POET_KEEP(at.y);
        POET_KEEP(at.other);
        total[0] = vaddq_f32(total[0], part[0]);
        total[1] = vaddq_f32(total[1], part[1]);
    }
}

static void plain(float *out, const float *from, const float *weight, const struct poet_walk *w)
{
    struct poet_walk four = *w;
    four.channels = 2;
    four.from_channel = 0;
    four.lines = 1;
    four.pixels = LANES;
    poet_conv_plain(out, from, weight, &four);
}

POET_INLINE void line(float *out, const float *from, const float *weight,
                      const struct poet_walk *w, int32_t vectors, const int rows,
                      const int is_back)
{
    for (; vectors > 0; vectors--) {
        struct reading at = {from, weight, weight + w->channel};
        float32x4_t total[4] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
        float *other = out + w->out_plane;
        if (w->is_more) {
            total[0] = vld1q_f32(out);
            total[1] = vld1q_f32(other);
        }
        planes_of(at, total, w, rows, is_back);
        if (poet_flushed_two(total)) {
            plain(out, from, weight, w);
        } else {
            vst1q_f32(out, total[0]);
            vst1q_f32(other, total[1]);
        }
        out += LANES;
        from += LANES;
    }
}

#define LINE(name, rows, is_back)                                                                  \
    static void name(float *out, const float *from, const float *weight,                           \
                     const struct poet_walk *w, int32_t vectors)                                   \
    {                                                                                              \
        line(out, from, weight, w, vectors, rows, is_back);                                        \
    }
LINE(one, 1, 0)
LINE(two, 2, 0)
LINE(three, 3, 0)
LINE(one_back, 1, 1)
LINE(two_back, 2, 1)
LINE(three_back, 3, 1)

int32_t poet_helium_three(poet_helium_line **found, const struct poet_walk *walk)
{
    const struct poet_walk *w = walk;
    static poet_helium_line *const lines[2][3] = {{one, two, three},
                                                  {one_back, two_back, three_back}};
    if (w->columns != 3 || w->weight_column != 1 || w->rows < 1 || w->rows > 3 ||
        (w->rows > 1 && w->weight_row != 3) || (w->from_column != 1 && w->from_column != -1))
        return 0;
    *found = lines[w->from_column < 0][w->rows - 1];
    return 1;
}

#endif
