/* Depthwise convolutions of three by three taps and stride 1, padded by one, and their data
 * gradients, by vectors: lanes are four pixels of a line. The first vector of a line lacks a tap in
 * its first lane, the last one in its last lane; the last one ends where the line ends, and makes
 * again what the one before it made, where four do not divide the line. */
#include "conv.h"
#include "helium.h"
#include "lanes.h"

#if POET_HELIUM

enum place { FIRST, MIDDLE, LAST };

#define TAP(at, weight)                                                                            \
    "vldrw.u32 %q[x], [%[from], #" at "]\n\t"                                                      \
    "vmul.f32 %q[x], %q[x], " weight "\n\t"                                                        \
    "vadd.f32 %q[sum], %q[sum], %q[x]\n\t"
/* In lanes that are there. */
#define SOME(at, weight)                                                                           \
    "vmsr p0, %[there]\n\t"                                                                        \
    "vpsttt\n\t"                                                                                   \
    "vldrwt.u32 %q[x], [%[from], #" at "]\n\t"                                                     \
    "vmult.f32 %q[x], %q[x], " weight "\n\t"                                                       \
    "vaddt.f32 %q[sum], %q[sum], %q[x]\n\t"
#define ROW(FIRST_TAP, first, LAST_TAP, last)                                                      \
    __asm__("ldm %[weight], {r4, r5, r6}\n\t"                                                      \
            FIRST_TAP(first, "r4") TAP("0", "r5") LAST_TAP(last, "r6")                             \
            : [sum] "+w"(sum), [x] "=&w"(x)                                                        \
            : [from] "r"(from), [weight] "r"(weight), [there] "r"(there)                           \
            : "r4", "r5", "r6", "memory")

/* A row of taps at four pixels from that of the middle tap on. */
POET_INLINE float32x4_t row_of(float32x4_t sum, const float *from, const float *weight,
                               uint32_t there, const int is_back, const enum place place)
{
    float32x4_t x;
    if (place == MIDDLE && is_back)
        ROW(TAP, "4", TAP, "-4");
    else if (place == MIDDLE)
        ROW(TAP, "-4", TAP, "4");
    else if (place == FIRST && is_back)
        ROW(TAP, "4", SOME, "-4");
    else if (place == FIRST)
        ROW(SOME, "-4", TAP, "4");
    else if (is_back)
        ROW(SOME, "4", TAP, "-4");
    else
        ROW(TAP, "-4", SOME, "4");
    return sum;
}

POET_INLINE void vector_of(float *out, const float *from, int32_t from_row, const float *weight,
                           const int rows, const int is_back, const enum place place)
{
    uint32_t there = place == FIRST ? 0xfff0 : 0x0fff;
    float32x4_t sum = vdupq_n_f32(0.0f);
#pragma GCC unroll 3
    for (int row = 0; row < rows; row++)
        sum = row_of(sum, from + row * from_row, weight + row * 3, there, is_back, place);
    vst1q_f32(out, sum);
}

/* Lines that the same rows of taps meet. */
POET_INLINE void lines(float *out, const float *from, const float *weight, int32_t count,
                       int32_t width, const int rows, const int is_back)
{
    int32_t from_row = is_back ? -width : width;
    for (; count > 0; count--) {
        const float *x = from;
        float *to = out;
        vector_of(to, x, from_row, weight, rows, is_back, FIRST);
        for (int32_t n = (width - 1) / LANES - 1; n > 0; n--) {
            to += LANES;
            x += LANES;
            vector_of(to, x, from_row, weight, rows, is_back, MIDDLE);
        }
        out += width;
        from += width;
        vector_of(out - LANES, from - LANES, from_row, weight, rows, is_back, LAST);
    }
}

static void forward(float *out, const float *from, const float *weight, int32_t height,
                    int32_t width)
{
    int32_t bottom = (height - 1) * width;
    lines(out, from, weight + 3, 1, width, 2, 0);
    lines(out + width, from, weight, height - 2, width, 3, 0);
    lines(out + bottom, from + bottom - width, weight, 1, width, 2, 0);
}

static void backward(float *out, const float *from, const float *weight, int32_t height,
                     int32_t width)
{
    int32_t bottom = (height - 1) * width;
    lines(out, from + width, weight, 1, width, 2, 1);
    lines(out + width, from + 2 * width, weight, height - 2, width, 3, 1);
    lines(out + bottom, from + bottom, weight + 3, 1, width, 2, 1);
}

static void plain(float *out, const float *from, const float *weight, int32_t height,
                  int32_t width, int32_t is_back)
{
    for (int32_t y = 0; y < height; y++)
        for (int32_t x = 0; x < width; x++) {
            float sum = 0.0f;
            for (int32_t tap = 0; tap < 9; tap++) {
                int32_t row = is_back ? y + 1 - tap / 3 : y - 1 + tap / 3;
                int32_t column = is_back ? x + 1 - tap % 3 : x - 1 + tap % 3;
                if (row >= 0 && row < height && column >= 0 && column < width)
                    sum += weight[tap] * from[row * width + column];
            }
            *out++ = sum;
        }
}

static int32_t is_same(const struct poet_axis *axis)
{
    return axis->stride == 1 && axis->kernel == 3 && axis->dilation == 1 && axis->pad == 1;
}

int32_t poet_helium_lines(float *out, const float *from, const float *weight,
                          const struct poet_walk *walk, const struct poet_axis *down,
                          const struct poet_axis *across)
{
    int32_t height = down->extent, width = across->extent, is_back = down->is_backward;
    if (!is_same(down) || !is_same(across) || height < 2 || width < 2 * LANES)
        return 0;
    poet_forget();
    for (int32_t channel = walk->channels; channel > 0; channel--) {
        if (is_back)
            backward(out, from, weight, height, width);
        else
            forward(out, from, weight, height, width);
        if (poet_has_flushed())
            plain(out, from, weight, height, width, is_back);
        out += walk->out_plane;
        from += walk->from_channel;
        weight += walk->channel;
    }
    return 1;
}

#endif
