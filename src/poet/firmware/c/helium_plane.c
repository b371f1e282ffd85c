/* Sums over a single plane by vectors: lanes are four channels, whose pixels are gathered, so that
 * regions of any size and stride are alike. Four pixels go together, to load weights once for all. */
#include "conv.h"
#include "helium.h"
#include "lanes.h"

#if POET_HELIUM

enum { MOST_TAPS = 9 };

/* Four channels: how far apart they lie, in bytes, and their weights, row by row. */
struct quad {
    uint32x4_t from, out;
    float32x4_t weight[MOST_TAPS];
};

#define PIXEL(part, at)                                                                            \
    "vldrw.u32 %q[x], [%q[e], #%c[" at "]]\n\t"                                                    \
    "vmul.f32 %q[x], %q[x], %q[w]\n\t"                                                             \
    "vadd.f32 %q[" part "], %q[" part "], %q[x]\n\t"

/* One tap at four pixels. */
POET_INLINE void four_of(float32x4_t *part, uint32x4_t from, float32x4_t weight, const int at,
                         const int pixel)
{
    float32x4_t x;
    __asm__(PIXEL("p0", "at0") PIXEL("p1", "at1") PIXEL("p2", "at2") PIXEL("p3", "at3")
            : [p0] "+w"(part[0]), [p1] "+w"(part[1]), [p2] "+w"(part[2]), [p3] "+w"(part[3]),
              [x] "=&w"(x)
            : [e] "w"(from), [w] "w"(weight), [at0] "i"(4 * at), [at1] "i"(4 * (at + pixel)),
              [at2] "i"(4 * (at + 2 * pixel)), [at3] "i"(4 * (at + 3 * pixel))
            : "memory");
}

/* One tap at one pixel. */
POET_INLINE void one_of(float32x4_t *part, uint32x4_t from, float32x4_t weight, const int at)
{
    float32x4_t x;
    __asm__(PIXEL("p0", "at0")
            : [p0] "+w"(part[0]), [x] "=&w"(x)
            : [e] "w"(from), [w] "w"(weight), [at0] "i"(4 * at)
            : "memory");
}

POET_INLINE void pixels_of(const int pixels, float *out, const float *from, const struct quad *quad,
                           const struct poet_walk *w, int32_t out_pixel, const int columns,
                           const int from_column, const int pixel)
{
    const float *weight = (const float *)quad->weight;
    uint32x4_t at = vaddq_n_u32(quad->from, (uint32_t)(uintptr_t)from);
    uint32_t from_row = 4 * (uint32_t)w->from_row;
    float32x4_t part[4];
#pragma GCC unroll 4
    for (int i = 0; i < pixels; i++)
        part[i] = vdupq_n_f32(0.0f);
    for (int32_t row = w->rows; row > 0; row--) {
#pragma GCC unroll 3
        for (int column = 0; column < columns; column++) {
            float32x4_t y = vld1q_f32(weight + column * LANES);
            if (pixels == 4)
                four_of(part, at, y, column * from_column, pixel);
            else
                one_of(part, at, y, column * from_column);
        }
        weight += columns * LANES;
        at = vaddq_n_u32(at, from_row);
    }
    uint32x4_t lanes = quad->out;
#pragma GCC unroll 4
    for (int i = 0; i < pixels; i++) {
        vstrwq_scatter_offset_f32(out, lanes, part[i]);
        out += out_pixel;
    }
}

POET_INLINE void lines(float *out, const float *from, const struct quad *quad,
                       const struct poet_walk *w, const int columns, const int from_column,
                       const int pixel)
{
    int32_t step = w->pixel, out_pixel = w->out_pixel;
    int32_t fours = step == pixel ? w->pixels / 4 : 0, ones = w->pixels - 4 * fours;
    for (int32_t line = w->lines; line > 0; line--) {
        const float *x = from;
        float *to = out;
        for (int32_t n = fours; n > 0; n--) {
            pixels_of(4, to, x, quad, w, out_pixel, columns, from_column, pixel);
            to += 4 * out_pixel;
            x += 4 * pixel;
        }
        for (int32_t n = ones; n > 0; n--) {
            pixels_of(1, to, x, quad, w, out_pixel, columns, from_column, pixel);
            to += out_pixel;
            x += step;
        }
        out += w->out_line;
        from += w->line;
    }
}

typedef void region(float *out, const float *from, const struct quad *quad,
                    const struct poet_walk *w);

#define REGION(name, columns, from_column, pixel)                                                  \
    static void name(float *out, const float *from, const struct quad *quad,                       \
                     const struct poet_walk *w)                                                    \
    {                                                                                              \
        lines(out, from, quad, w, columns, from_column, pixel);                                    \
    }
REGION(one, 1, 1, 1)
REGION(two, 2, 1, 1)
REGION(three, 3, 1, 1)
REGION(two_back, 2, -1, 1)
REGION(three_back, 3, -1, 1)
REGION(one_wide, 1, 1, 2)
REGION(two_wide, 2, 1, 2)
REGION(three_wide, 3, 1, 2)

static region *region_for(const struct poet_walk *w)
{
    static region *const forward[] = {one, two, three}, *const wide[] = {one_wide, two_wide,
                                                                         three_wide};
    static region *const back[] = {one, two_back, three_back};
    if (w->rows < 1 || w->columns < 1 || w->columns > 3 || w->rows * w->columns > MOST_TAPS)
        return NULL;
    if (w->columns == 1 || w->from_column == 1)
        return (w->pixel == 2 ? wide : forward)[w->columns - 1];
    return w->from_column == -1 ? back[w->columns - 1] : NULL;
}

int32_t poet_helium_plane(float *out, const float *from, const float *weight,
                          const struct poet_walk *walk)
{
    const struct poet_walk *w = walk;
    region *found = region_for(w);
    struct quad quad;
    uint32x4_t lanes = vidupq_n_u32(0, 4), apart = vmulq_n_u32(lanes, (uint32_t)w->channel);
    int32_t channel = 0;
    if (found == NULL)
        return 0;
    quad.from = vmulq_n_u32(lanes, (uint32_t)w->from_channel);
    quad.out = vmulq_n_u32(lanes, (uint32_t)w->out_plane);
    poet_forget();
    for (; channel + LANES <= w->channels; channel += LANES) {
        for (int32_t row = 0; row < w->rows; row++)
            for (int32_t column = 0; column < w->columns; column++)
                quad.weight[row * w->columns + column] = vldrwq_gather_offset_f32(
                    weight + row * w->weight_row + column * w->weight_column, apart);
        found(out, from, &quad, w);
        if (poet_has_flushed()) {
            struct poet_walk four = *w;
            four.channels = LANES;
            poet_conv_plain(out, from, weight, &four);
        }
        out += LANES * w->out_plane;
        from += LANES * w->from_channel;
        weight += LANES * w->channel;
    }
    return channel;
}

#endif
