/* Sums of convolutions by vectors: lanes are four pixels, two channels at a time.
 *
 * Pixels of a line are a run, where none are passed over; what is left of the lines, and other
 * pixels, are gathered, four of a region at a time.
 */
#include "conv.h"
#include "helium.h"
#include "lanes.h"

#if POET_HELIUM

/* Four pixels: where the first taps of each read, and where each is written. */
struct lanes {
    const float *from; /* of a run */
    float *out;
    uint32x4_t from_each, out_each; /* addresses of others */
    int32_t count;
};

static void plain_pixel(float *out, const float *from, const float *weight,
                        const struct poet_walk *w)
{
    float total = w->is_more ? *out : 0.0f;
    for (int32_t plane = 0; plane < w->planes; plane++) {
        float part = 0.0f;
        for (int32_t row = 0; row < w->rows; row++)
            for (int32_t column = 0; column < w->columns; column++) {
                float product = weight[row * w->weight_row + column * w->weight_column] *
                                from[row * w->from_row + column * w->from_column];
                part = row + column == 0 ? product : part + product;
            }
        total += part;
        from += w->from_plane;
        weight += w->weight_plane;
    }
    *out = total;
}

static void plain_pixels(int32_t channels, const struct lanes *lanes, const int is_run,
                         const float *weight, const struct poet_walk *w)
{
    uint32_t from[LANES], out[LANES];
    vst1q_u32(from, lanes->from_each);
    vst1q_u32(out, lanes->out_each);
    for (int32_t i = 0; i < channels; i++)
        for (int32_t lane = 0; lane < lanes->count; lane++) {
            const float *x = is_run ? lanes->from + lane : (const float *)(uintptr_t)from[lane];
            float *to = is_run ? lanes->out + lane : (float *)(uintptr_t)out[lane];
            plain_pixel(to + i * w->out_plane, x, weight + i * w->channel, w);
        }
}

void poet_conv_plain(float *out, const float *from, const float *weight,
                     const struct poet_walk *w)
{
    for (int32_t i = 0; i < w->channels; i++)
        for (int32_t line = 0; line < w->lines; line++)
            for (int32_t pixel = 0; pixel < w->pixels; pixel++)
                plain_pixel(out + i * w->out_plane + line * w->out_line + pixel * w->out_pixel,
                            from + i * w->from_channel + line * w->line + pixel * w->pixel,
                            weight + i * w->channel, w);
}

/* Where the taps of a row read: `x` for a run, `each` for others. */
POET_INLINE float32x4_t reads(const int is_run, const float *x, uint32x4_t each, const int column,
                              const int from_column)
{
    if (is_run)
        return vld1q_f32(x + column * from_column);
    if (column == 0) /* the place itself may be a constant, and only that */
        return vldrwq_gather_base_f32(each, 0);
    if (column == 1)
        return from_column > 0 ? vldrwq_gather_base_f32(each, 4)
                               : vldrwq_gather_base_f32(each, -4);
    return from_column > 0 ? vldrwq_gather_base_f32(each, 8) : vldrwq_gather_base_f32(each, -8);
}

/* What was loaded is added before more is loaded: there are no registers to have it wait in. */
POET_INLINE void in_turn(const int channels, float32x4_t *part)
{
    if (channels == 2)
        __asm__ volatile("" : "+w"(part[0]), "+w"(part[1]) : : "memory");
    else
        __asm__ volatile("" : "+w"(part[0]) : : "memory");
}

POET_INLINE void pixels(const int channels, const struct lanes *lanes, const int is_run,
                        const float *weight, const struct poet_walk *w, const int columns,
                        const int from_column, const int is_whole)
{
    int32_t from_row = w->from_row, from_plane = w->from_plane, rows = w->rows;
    int32_t weight_row = w->weight_row, weight_column = w->weight_column;
    uint32x4_t each = lanes->from_each, out_each = lanes->out_each;
    const float *x = lanes->from, *y[2] = {weight, weight + w->channel};
    int32_t rest = w->weight_plane - (is_whole ? 8 : rows * weight_row);
    mve_pred16_t there = vctp32q((uint32_t)lanes->count);
    float32x4_t total[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        total[i] = vdupq_n_f32(0.0f);
#pragma GCC unroll 2
    for (int i = 0; i < channels; i++) {
        if (w->is_more && is_run)
            total[i] = vld1q_f32(lanes->out + i * w->out_plane);
        else if (w->is_more)
            total[i] = vldrwq_gather_base_f32(
                vaddq_n_u32(out_each, 4 * (uint32_t)(i * w->out_plane)), 0);
    }
    for (int32_t plane = w->planes; plane > 0; plane--) {
        float32x4_t part[2];
        const float *at = x;
        uint32x4_t at_each = each;
        if (is_whole) { /* three by three, whose weights are a run of nine */
            float left[2][2];
#pragma GCC unroll 9
            for (int tap = 0; tap < 9; tap++) {
                float32x4_t right = reads(is_run, at, at_each, tap % 3, from_column);
#pragma GCC unroll 2
                for (int i = 0; i < channels; i++) {
                    if (tap % 2 == 0 && tap < 8)
                        poet_take_two(left[i], &y[i]);
                    float with = tap == 8 ? *y[i] : left[i][tap % 2];
                    part[i] = tap == 0 ? vmulq_n_f32(right, with)
                                       : poet_plus(part[i], right, with);
                }
                in_turn(channels, part);
                if (tap % 3 == 2) {
                    at += from_row;
                    if (!is_run)
                        at_each = vaddq_n_u32(at_each, 4 * (uint32_t)from_row);
                    POET_KEEP(at);
                }
            }
        } else {
            for (int i = 0; i < 2; i++)
                part[i] = vdupq_n_f32(0.0f);
            for (int32_t row = rows; row > 0; row--) {
#pragma GCC unroll 3
                for (int column = 0; column < columns; column++) {
                    float32x4_t right = reads(is_run, at, at_each, column, from_column);
#pragma GCC unroll 2
                    for (int i = 0; i < channels; i++)
                        part[i] = poet_plus(part[i], right, y[i][column * weight_column]);
                    in_turn(channels, part);
                }
                at += from_row;
                if (!is_run)
                    at_each = vaddq_n_u32(at_each, 4 * (uint32_t)from_row);
#pragma GCC unroll 2
                for (int i = 0; i < channels; i++)
                    y[i] += weight_row;
            }
        }
#pragma GCC unroll 2
        for (int i = 0; i < channels; i++) {
            total[i] = vaddq_f32(total[i], part[i]);
            y[i] += rest;
            POET_KEEP(y[i]);
        }
        x += from_plane;
        if (!is_run)
            each = vaddq_n_u32(each, 4 * (uint32_t)from_plane);
    }
    if (poet_was_flushed(total)) {
        plain_pixels(channels, lanes, is_run, weight, w);
        return;
    }
#pragma GCC unroll 2
    for (int i = 0; i < channels; i++) {
        if (is_run)
            vst1q_f32(lanes->out + i * w->out_plane, total[i]);
        else
            vstrwq_scatter_base_p_f32(vaddq_n_u32(out_each, 4 * (uint32_t)(i * w->out_plane)), 0,
                                      total[i], there);
    }
}

typedef void kernel(const struct lanes *lanes, const float *weight, const struct poet_walk *w);

#define PAIR(name, columns, from_column)                                                           \
    static void name##_run(const struct lanes *lanes, const float *weight,                         \
                           const struct poet_walk *w)                                              \
    {                                                                                              \
        pixels(2, lanes, 1, weight, w, columns, from_column, 0);                                   \
    }
#define KERNELS(name, columns, from_column, is_whole)                                              \
    static void name##_each(const struct lanes *lanes, const float *weight,                        \
                            const struct poet_walk *w)                                             \
    {                                                                                              \
        pixels(2, lanes, 0, weight, w, columns, from_column, is_whole);                            \
    }                                                                                              \
    static void name##_one_run(const struct lanes *lanes, const float *weight,                     \
                               const struct poet_walk *w)                                          \
    {                                                                                              \
        pixels(1, lanes, 1, weight, w, columns, from_column, is_whole);                            \
    }                                                                                              \
    static void name##_one_each(const struct lanes *lanes, const float *weight,                    \
                                const struct poet_walk *w)                                         \
    {                                                                                              \
        pixels(1, lanes, 0, weight, w, columns, from_column, is_whole);                            \
    }
PAIR(one, 1, 1)
PAIR(two, 2, 1)
PAIR(three, 3, 1)
PAIR(two_back, 2, -1)
PAIR(three_back, 3, -1)
KERNELS(one, 1, 1, 0)
KERNELS(two, 2, 1, 0)
KERNELS(three, 3, 1, 0)
KERNELS(whole, 3, 1, 1)
KERNELS(two_back, 2, -1, 0)
KERNELS(three_back, 3, -1, 0)
KERNELS(whole_back, 3, -1, 1)

/* By channels and how pixels are read: two of a run, two of others, one of a run, one of others. */
#define OF(name, pair) {pair, name##_each, name##_one_run, name##_one_each}
static kernel *const kernels[7][4] = {
    OF(one, one_run),           OF(two, two_run),
    OF(three, three_run),       OF(whole, NULL), /* which helium_three.c has */
    OF(two_back, two_back_run), OF(three_back, three_back_run),
    OF(whole_back, NULL),
};

static kernel *const *kernels_for(const struct poet_walk *w)
{
    int32_t is_back = w->from_column == -1 && w->columns > 1;
    if (w->rows < 1 || w->rows > 3 || w->columns < 1 || w->columns > 3)
        return NULL;
    if (w->columns > 1 && w->from_column != 1 && !is_back)
        return NULL;
    int32_t is_whole = w->rows == 3 && w->columns == 3 && w->weight_row == 3 &&
                       w->weight_column == 1;
    return kernels[is_back ? w->columns + 2 + is_whole : w->columns - 1 + is_whole];
}

/* All channels from number `i` on at four pixels. */
static void channels_at(kernel *two, kernel *one, const struct lanes *lanes, const float *weight,
                        int32_t i, const struct poet_walk *w)
{
    struct lanes at = *lanes;
    uint32_t planes = 4 * (uint32_t)w->out_plane;
    for (; i + 2 <= w->channels; i += 2) {
        two(&at, weight + i * w->channel, w);
        at.out += 2 * w->out_plane;
        at.out_each = vaddq_n_u32(at.out_each, 2 * planes);
    }
    if (i < w->channels)
        one(&at, weight + i * w->channel, w);
}

/* Addresses of pixels of some columns of a region, from number `first` on; of the last one, where
 * there are no more. */
static void find_lanes(struct lanes *lanes, float *out, const float *from, int32_t first,
                       int32_t columns, const struct poet_walk *w)
{
    uint32_t of_from[LANES], of_out[LANES];
    int32_t last = w->lines * columns - 1;
    lanes->count = last - first + 1 < LANES ? last - first + 1 : LANES;
    for (int32_t lane = 0; lane < LANES; lane++) {
        int32_t at = first + lane < last ? first + lane : last;
        int32_t line = at / columns, pixel = at - line * columns;
        of_from[lane] = (uint32_t)(uintptr_t)(from + line * w->line + pixel * w->pixel);
        of_out[lane] = (uint32_t)(uintptr_t)(out + line * w->out_line + pixel * w->out_pixel);
    }
    lanes->from_each = vld1q_u32(of_from);
    lanes->out_each = vld1q_u32(of_out);
}

static void region(kernel *const *with, float *out, const float *from, const float *weight,
                   const struct poet_walk *w)
{
    int32_t runs = w->pixel == 1 && w->out_pixel == 1 ? w->pixels / LANES : 0;
    struct lanes lanes = {.from_each = vdupq_n_u32(0), .out_each = vdupq_n_u32(0), .count = LANES};
    poet_helium_line *three = NULL;
    int32_t has_pairs = poet_helium_three(&three, w);
    for (int32_t line = 0; runs > 0 && line < w->lines; line++) {
        int32_t first = 0; /* channel that is left */
        for (; has_pairs && first + 2 <= w->channels; first += 2)
            three(out + line * w->out_line + first * w->out_plane, from + line * w->line,
                  weight + first * w->channel, w, runs);
        for (int32_t n = 0; n < runs && first < w->channels; n++) {
            lanes.from = from + line * w->line + n * LANES;
            lanes.out = out + line * w->out_line + first * w->out_plane + n * LANES;
            channels_at(with[0], with[2], &lanes, weight, first, w);
        }
    }
    int32_t columns = w->pixels - runs * LANES;
    from += runs * LANES * w->pixel;
    out += runs * LANES * w->out_pixel;
    lanes.from = from;
    lanes.out = out;
    for (int32_t at = 0; at < w->lines * columns; at += LANES) {
        find_lanes(&lanes, out, from, at, columns, w);
        channels_at(with[1], with[3], &lanes, weight, 0, w);
    }
}

int32_t poet_helium_sums(float *out, const float *from, const float *weight,
                         const struct poet_walk *walk)
{
    kernel *const *with = kernels_for(walk);
    if (with == NULL)
        return 0;
    poet_forget();
    region(with, out, from, weight, walk);
    return 1;
}

#endif
