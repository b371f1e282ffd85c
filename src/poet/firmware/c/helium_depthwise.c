/* Weight gradients of depthwise convolutions by vectors: lanes are four channels, and the three taps
 * of a row go together, since they are summed over the same gradients. */
#include "conv.h"
#include "helium.h"
#include "lanes.h"

#if POET_HELIUM

/* Pixels of a line that the last tap alone meets, the last two, all three, the first two, and the
 * first: from column `begin` on. */
struct spans {
    struct poet_tap tap[3];
    int32_t begin, last, last_two, all, first_two, first;
};

/* Returns 0 for lines without pixels that all three meet. */
static int32_t find(struct spans *found, const struct poet_conv *s, int32_t ky)
{
    const struct poet_tap *tap = found->tap;
    for (int32_t kx = 0; kx < 3; kx++)
        found->tap[kx] = poet_tap_of(s, ky, kx);
    int32_t last = tap[2].begin + tap[2].columns, middle = tap[1].begin + tap[1].columns;
    found->begin = tap[2].begin;
    found->last = tap[1].begin - tap[2].begin;
    found->last_two = tap[0].begin - tap[1].begin;
    found->all = last - tap[0].begin;
    found->first_two = middle - last;
    found->first = tap[0].begin + tap[0].columns - middle;
    return tap[0].columns > 0 && tap[1].columns > 0 && tap[2].columns > 0 && found->all > 0;
}

/* Where lanes are: before the next gradient, and where the first tap reads for it. */
struct places {
    uint32x4_t gradient, in;
};

#define TAP(part, at)                                                                              \
    "vldrw.u32 %q[x], [%q[e], #" at "]\n\t"                                                        \
    "vmul.f32 %q[x], %q[x], %q[y]\n\t"                                                             \
    "vadd.f32 %q[" part "], %q[" part "], %q[x]\n\t"
#define ALL(step)                                                                                  \
    __asm__("vldrw.u32 %q[y], [%q[g], #4]!\n\t"                                                    \
            "vldrw.u32 %q[x], [%q[e], #" step "]!\n\t"                                             \
            "vmul.f32 %q[x], %q[x], %q[y]\n\t"                                                     \
            "vadd.f32 %q[p0], %q[p0], %q[x]\n\t"                                                   \
            TAP("p1", "4") TAP("p2", "8")                                                          \
            : [p0] "+w"(part[0]), [p1] "+w"(part[1]), [p2] "+w"(part[2]), [x] "=&w"(x),            \
              [y] "=&w"(y), [g] "+w"(at->gradient), [e] "+w"(at->in)                               \
            :                                                                                      \
            : "memory")

POET_INLINE void all_three(float32x4_t *part, struct places *at, const int step)
{
    float32x4_t x, y;
    if (step == 1)
        ALL("4");
    else
        ALL("8");
}

/* Pixels that some of the three meet. */
POET_INLINE void some(float32x4_t *part, struct places *at, int32_t pixels, const int first,
                      const int last, const int step)
{
    for (; pixels > 0; pixels--) {
        float32x4_t y = poet_next_of(&at->gradient, 1);
        at->in = poet_moved(at->in, step);
        if (first == 0)
            part[0] = vaddq_f32(part[0], vmulq_f32(vldrwq_gather_base_f32(at->in, 0), y));
        if (first <= 1 && last >= 1)
            part[1] = vaddq_f32(part[1], vmulq_f32(vldrwq_gather_base_f32(at->in, 4), y));
        if (last == 2)
            part[2] = vaddq_f32(part[2], vmulq_f32(vldrwq_gather_base_f32(at->in, 8), y));
    }
}

POET_INLINE void line(float32x4_t *part, struct places *at, const struct spans *spans,
                      const int step)
{
    some(part, at, spans->last, 2, 2, step);
    some(part, at, spans->last_two, 1, 2, step);
    for (int32_t pairs = spans->all / 2; pairs > 0; pairs--) {
        all_three(part, at, step);
        all_three(part, at, step);
    }
    if (spans->all % 2)
        all_three(part, at, step);
    some(part, at, spans->first_two, 0, 1, step);
    some(part, at, spans->first, 0, 0, step);
}

/* A row of taps of four channels. */
POET_INLINE void tile(float *to, const float *gradient, const float *in, const struct poet_conv *s,
                      const struct spans *spans, int32_t is_more, const int step)
{
    const struct poet_tap *tap = spans->tap;
    int32_t taps = 3 * s->kernel_height, area = s->height * s->width;
    int32_t out_area = s->out_height * s->out_width;
    int32_t columns = tap[0].begin + tap[0].columns - spans->begin;
    int32_t next_y = s->out_width - columns, next_x = s->stride_y * s->width - columns * step;
    float32x4_t total[4] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f),
                            vdupq_n_f32(0.0f)};
    for (int i = 0; is_more && i < 3; i++)
        total[i] = vldrwq_gather_base_f32(poet_each(to + i, taps), 0);
    for (int32_t sample = 0; sample < s->batch; sample++) {
        int32_t row = tap->first;
        struct places at = {
            .gradient = poet_each(gradient + sample * s->out_planes * out_area +
                                      row * s->out_width + spans->begin - 1,
                                  out_area),
            .in = poet_each(in + sample * s->channels * area +
                                (row * s->stride_y + tap->down) * s->width +
                                (spans->begin - 1) * step + tap->across,
                            area)};
        while (row < tap->beyond) {
            float32x4_t part[3];
#pragma GCC unroll 3
            for (int i = 0; i < 3; i++)
                part[i] = vdupq_n_f32(0.0f);
            for (int32_t stop = poet_part_end(tap, row); row < stop; row++) {
                line(part, &at, spans, step);
                at.gradient = poet_moved(at.gradient, next_y);
                at.in = poet_moved(at.in, next_x);
            }
#pragma GCC unroll 3
            for (int i = 0; i < 3; i++)
                total[i] = vaddq_f32(total[i], part[i]);
        }
    }
    int32_t is_flushed = (int32_t)poet_was_flushed(total);
    for (int32_t i = 0; i < 3; i++) {
        if (!is_flushed)
            vstrwq_scatter_base_f32(poet_each(to + i, taps), 0, total[i]);
        for (int32_t lane = 0; is_flushed && lane < LANES; lane++)
            poet_weight_plain(to + i + lane * taps, gradient + lane * out_area, in + lane * area,
                              s, &tap[i], is_more);
    }
}

static void tile_by_one(float *to, const float *gradient, const float *in,
                        const struct poet_conv *s, const struct spans *spans, int32_t is_more)
{
    tile(to, gradient, in, s, spans, is_more, 1);
}

static void tile_by_two(float *to, const float *gradient, const float *in,
                        const struct poet_conv *s, const struct spans *spans, int32_t is_more)
{
    tile(to, gradient, in, s, spans, is_more, 2);
}

int32_t poet_helium_depthwise(float *to, const float *gradient, const float *in,
                              const struct poet_conv *shape, int32_t is_more)
{
    const struct poet_conv *s = shape;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    int32_t channel = 0;
    struct spans spans;
    if (s->kernel_width != 3 || s->dilation_x != 1 || s->stride_x > 2 || !find(&spans, s, 0))
        return 0;
    poet_forget();
    for (; channel + LANES <= s->channels; channel += LANES)
        for (int32_t ky = 0; ky < s->kernel_height; ky++) {
            float *at = to + (channel * s->kernel_height + ky) * 3;
            find(&spans, s, ky);
            if (s->stride_x == 1)
                tile_by_one(at, gradient + channel * out_area, in + channel * area, s, &spans,
                            is_more);
            else
                tile_by_two(at, gradient + channel * out_area, in + channel * area, s, &spans,
                            is_more);
        }
    return channel;
}

#endif
