/* Weight gradients of convolutions by vectors: lanes are four input channels. What they read lies a
 * plane apart, and is gathered by addresses that move on with the pixels, in the order of the plain
 * loops. */
#include "conv.h"
#include "helium.h"
#include "lanes.h"

#if POET_HELIUM

/* One weight by plain loops. */
void poet_weight_plain(float *to, const float *gradient, const float *in, const struct poet_conv *s,
                       const struct poet_tap *tap, int32_t is_more)
{
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    float total = is_more ? *to : 0.0f;
    for (int32_t sample = 0; sample < s->batch; sample++) {
        int32_t row = tap->first;
        while (row < tap->beyond && tap->columns > 0) {
            float part = 0.0f;
            int32_t stop = poet_part_end(tap, row);
            for (; row < stop; row++) {
                const float *y = gradient + row * s->out_width + tap->begin;
                const float *x = in + (row * s->stride_y + tap->down) * s->width +
                                 tap->begin * s->stride_x + tap->across;
                for (int32_t column = 0; column < tap->columns; column++)
                    part += y[column] * x[column * s->stride_x];
            }
            total += part;
        }
        gradient += s->out_planes * out_area;
        in += s->channels * area;
    }
    *to = total;
}

#define OF_OUT(y, part)                                                                            \
    "ldrd %[l], %[r], [%[" y "]], #8\n\t"                                                          \
    "vmul.f32 %q[m], %q[a], %[l]\n\t"                                                              \
    "vadd.f32 %q[" part "], %q[" part "], %q[m]\n\t"                                               \
    "vmul.f32 %q[m], %q[b], %[r]\n\t"                                                              \
    "vadd.f32 %q[" part "], %q[" part "], %q[m]\n\t"
#define TWO_PIXELS(step)                                                                           \
    __asm__("vldrw.u32 %q[a], [%q[x], #" step "]!\n\t"                                             \
            "vldrw.u32 %q[b], [%q[x], #" step "]!\n\t"                                             \
            OF_OUT("y0", "p0") OF_OUT("y1", "p1") OF_OUT("y2", "p2") OF_OUT("y3", "p3")            \
            : [p0] "+w"(part[0]), [p1] "+w"(part[1]), [p2] "+w"(part[2]), [p3] "+w"(part[3]),      \
              [x] "+w"(*x), [y0] "+r"(y[0]), [y1] "+r"(y[1]), [y2] "+r"(y[2]), [y3] "+r"(y[3]),    \
              [a] "=&w"(a), [b] "=&w"(b), [m] "=&w"(m), [l] "=&r"(left), [r] "=&r"(right)          \
            :                                                                                      \
            : "memory")

/* A row of pixels, from those after `x` on, for four output channels. */
POET_INLINE void row_of_four(float32x4_t *part, uint32x4_t *x, const float **y, int32_t columns,
                             const int step)
{
    for (int32_t pairs = columns / 2; pairs > 0; pairs--) {
        float32x4_t a, b, m;
        float left, right;
        if (step == 1)
            TWO_PIXELS("4");
        else
            TWO_PIXELS("8");
    }
    if (columns % 2) {
        float32x4_t a = poet_next_of(x, step);
#pragma GCC unroll 4
        for (int i = 0; i < LANES; i++)
            part[i] = poet_plus(part[i], a, *y[i]++);
    }
}

/* Four output channels by four input channels. */
POET_INLINE void tile(float *to, const float *gradient, const float *in, const struct poet_conv *s,
                      const struct poet_tap *tap, int32_t is_more, const int step)
{
    int32_t channels = s->channels / s->groups, taps = s->kernel_height * s->kernel_width;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    int32_t columns = tap->columns, next_y = s->out_width - columns;
    int32_t next_x = s->stride_y * s->width - columns * step;
    float32x4_t total[4];
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i++)
        total[i] = is_more ? vldrwq_gather_base_f32(poet_each(to + i * channels * taps, taps), 0)
                           : vdupq_n_f32(0.0f);
    for (int32_t sample = 0; sample < s->batch; sample++) {
        int32_t row = tap->first;
        uint32x4_t x = poet_each(in + sample * s->channels * area +
                                (row * s->stride_y + tap->down) * s->width +
                                (tap->begin - 1) * step + tap->across,
                            area);
        const float *y[4];
#pragma GCC unroll 4
        for (int i = 0; i < LANES; i++)
            y[i] = gradient + (sample * s->out_planes + i) * out_area + row * s->out_width +
                   tap->begin;
        while (row < tap->beyond && columns > 0) {
            float32x4_t part[4];
#pragma GCC unroll 4
            for (int i = 0; i < LANES; i++)
                part[i] = vdupq_n_f32(0.0f);
            for (int32_t stop = poet_part_end(tap, row); row < stop; row++) {
                row_of_four(part, &x, y, columns, step);
                x = poet_moved(x, next_x);
#pragma GCC unroll 4
                for (int i = 0; i < LANES; i++)
                    y[i] += next_y;
            }
#pragma GCC unroll 4
            for (int i = 0; i < LANES; i++)
                total[i] = vaddq_f32(total[i], part[i]);
        }
    }
    if (poet_was_flushed(total)) {
        for (int32_t i = 0; i < LANES; i++)
            for (int32_t j = 0; j < LANES; j++)
                poet_weight_plain(to + (i * channels + j) * taps, gradient + i * out_area,
                                  in + j * area, s, tap, is_more);
        return;
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i++)
        vstrwq_scatter_base_f32(poet_each(to + i * channels * taps, taps), 0, total[i]);
}

static void tile_by_one(float *to, const float *gradient, const float *in,
                        const struct poet_conv *s, const struct poet_tap *tap, int32_t is_more)
{
    tile(to, gradient, in, s, tap, is_more, 1);
}

static void tile_by_two(float *to, const float *gradient, const float *in,
                        const struct poet_conv *s, const struct poet_tap *tap, int32_t is_more)
{
    tile(to, gradient, in, s, tap, is_more, 2);
}

int32_t poet_helium_weights(float *to, const float *gradient, const float *in,
                            const struct poet_conv *shape, int32_t is_more)
{
    const struct poet_conv *s = shape;
    if (s->stride_x > 2)
        return 0;
    poet_forget();
    for (int32_t ky = 0; ky < s->kernel_height; ky++)
        for (int32_t kx = 0; kx < s->kernel_width; kx++) {
            struct poet_tap tap = poet_tap_of(s, ky, kx);
            if (s->stride_x == 1)
                tile_by_one(to, gradient, in, s, &tap, is_more);
            else
                tile_by_two(to, gradient, in, s, &tap, is_more);
            to++;
        }
    return 1;
}

#endif
