/* Sums of a convolution over many planes: four channels at two pixels at a time.
 *
 * Regions of kernels of three by three have code of their own for every number of taps that a
 * border or a stride leaves, without loops over taps; other kernels take loops.
 */
#include "conv.h"
#include "helium.h"

/* The taps of one plane, all known. `x` and `y`: pixels and channels. */
POET_INLINE void known_taps(const int channels, const int pixels, float *part, const float **from,
                            const float **y, const struct poet_walk *w, const int rows,
                            const int columns, const int weight_row, const int weight_column,
                            const int from_column)
{
    const float *x[4];
#pragma GCC unroll 4
    for (int j = 0; j < pixels; j++)
        x[j] = from[j];
#pragma GCC unroll 3
    for (int row = 0; row < rows; row++) {
#pragma GCC unroll 3
        for (int column = 0; column < columns; column++)
#pragma GCC unroll 4
            for (int i = 0; i < channels; i++)
#pragma GCC unroll 4
                for (int j = 0; j < pixels; j++) {
                    float product = y[i][row * weight_row + column * weight_column] *
                                    x[j][column * from_column];
                    float *to = part + i * pixels + j;
                    *to = row + column == 0 ? product : *to + product;
                }
#pragma GCC unroll 4
        for (int j = 0; j < pixels; j++)
            x[j] += w->from_row;
    }
}

POET_INLINE void any_taps(const int channels, const int pixels, float *part, const float **from,
                          const float **y, const struct poet_walk *w)
{
#pragma GCC unroll 4
    for (int i = 0; i < channels * pixels; i++)
        part[i] = 0.0f;
    int32_t start = 0, weight_start = 0;
    for (int32_t row = w->rows; row > 0; row--) {
        int32_t at = start, with = weight_start;
        for (int32_t column = w->columns; column > 0; column--) {
            float left[4], right[4];
#pragma GCC unroll 4
            for (int j = 0; j < pixels; j++)
                left[j] = from[j][at];
#pragma GCC unroll 4
            for (int i = 0; i < channels; i++)
                right[i] = y[i][with];
#pragma GCC unroll 4
            for (int i = 0; i < channels; i++)
#pragma GCC unroll 4
                for (int j = 0; j < pixels; j++)
                    part[i * pixels + j] += right[i] * left[j];
            at += w->from_column;
            with += w->weight_column;
        }
        start += w->from_row;
        weight_start += w->weight_row;
    }
}

/* `rows` of 0: as many taps as the walk says. */
POET_INLINE void tile(const int channels, const int pixels, float *out, const float *from,
                      const float *weight, const struct poet_walk *w, const int rows,
                      const int columns, const int weight_row,
                      const int weight_column, const int from_column)
{
    float total[8], part[8];
    const float *x[4], *y[4];
#pragma GCC unroll 4
    for (int j = 0; j < pixels; j++)
        x[j] = from + j * w->pixel;
#pragma GCC unroll 4
    for (int i = 0; i < channels; i++)
        y[i] = weight + i * w->channel;
#pragma GCC unroll 4
    for (int i = 0; i < channels; i++)
#pragma GCC unroll 4
        for (int j = 0; j < pixels; j++)
            total[i * pixels + j] = w->is_more ? out[i * w->out_plane + j * w->out_pixel] : 0.0f;
    for (int32_t plane = w->planes; plane > 0; plane--) {
        if (rows > 0)
            known_taps(channels, pixels, part, x, y, w, rows, columns, weight_row, weight_column,
                       from_column);
        else
            any_taps(channels, pixels, part, x, y, w);
#pragma GCC unroll 8
        for (int i = 0; i < channels * pixels; i++)
            total[i] += part[i];
#pragma GCC unroll 4
        for (int j = 0; j < pixels; j++)
            x[j] += w->from_plane;
#pragma GCC unroll 4
        for (int i = 0; i < channels; i++)
            y[i] += w->weight_plane;
    }
#pragma GCC unroll 4
    for (int i = 0; i < channels; i++)
#pragma GCC unroll 4
        for (int j = 0; j < pixels; j++)
            out[i * w->out_plane + j * w->out_pixel] = total[i * pixels + j];
}

/* Pixels at once. Where floats have no registers more of them would lie on the stack, for next to
 * nothing. Each sum is its own, so the bits are the same. */
#if POET_HAS_FLOATS
enum { PIXELS = 2 };
#else
enum { PIXELS = 1 };
#endif

/* Four channels at a line of pixels. */
typedef void line(float *out, const float *from, const float *weight, int32_t pixels,
                  const struct poet_walk *w);

#define LINE(name, rows, columns, weight_row, weight_column, from_column)                          \
    static void name(float *out, const float *from, const float *weight, int32_t pixels,           \
                     const struct poet_walk *w)                                                    \
    {                                                                                              \
        for (; PIXELS == 2 && pixels >= 2; pixels -= 2) {                                          \
            tile(4, 2, out, from, weight, w, rows, columns, weight_row, weight_column,             \
                 from_column);                                                                     \
            out += 2 * w->out_pixel;                                                               \
            from += 2 * w->pixel;                                                                  \
        }                                                                                          \
        for (; pixels > 0; pixels--) {                                                             \
            tile(4, 1, out, from, weight, w, rows, columns, weight_row, weight_column,             \
                 from_column);                                                                     \
            out += w->out_pixel;                                                                   \
            from += w->pixel;                                                                      \
        }                                                                                          \
    }
LINE(any, 0, 0, 0, 0, 0)
/* Of one column, where neighbouring taps lie does not matter; of one row, where rows lie. */
LINE(taps_1x1, 1, 1, 3, 1, 1)
LINE(taps_1x2, 1, 2, 3, 1, 1)
LINE(taps_1x3, 1, 3, 3, 1, 1)
LINE(taps_2x1, 2, 1, 3, 1, 1)
LINE(taps_2x2, 2, 2, 3, 1, 1)
LINE(taps_2x3, 2, 3, 3, 1, 1)
LINE(taps_3x1, 3, 1, 3, 1, 1)
LINE(taps_3x2, 3, 2, 3, 1, 1)
LINE(taps_3x3, 3, 3, 3, 1, 1)
/* Gradients: what is read goes back. */
LINE(back_1x2, 1, 2, 3, 1, -1)
LINE(back_1x3, 1, 3, 3, 1, -1)
LINE(back_2x2, 2, 2, 3, 1, -1)
LINE(back_2x3, 2, 3, 3, 1, -1)
LINE(back_3x2, 3, 2, 3, 1, -1)
LINE(back_3x3, 3, 3, 3, 1, -1)
/* Gradients of stride 2: every other tap. */
LINE(apart_1x2, 1, 2, 6, 2, -1)
LINE(apart_2x1, 2, 1, 6, 2, -1)
LINE(apart_2x2, 2, 2, 6, 2, -1)

static line *line_for(const struct poet_walk *w)
{
    static line *const forward[] = {taps_1x1, taps_1x2, taps_1x3, taps_2x1, taps_2x2,
                                    taps_2x3, taps_3x1, taps_3x2, taps_3x3};
    static line *const back[] = {taps_1x1, back_1x2, back_1x3, taps_2x1, back_2x2,
                                 back_2x3, taps_3x1, back_3x2, back_3x3};
    static line *const apart[] = {taps_1x1, apart_1x2, any, apart_2x1, apart_2x2};
    if (w->rows < 1 || w->columns < 1 || w->rows > 3 || w->columns > 3)
        return any;
    int32_t at = (w->rows - 1) * 3 + w->columns - 1;
    int32_t is_one_row = w->rows == 1, is_one_column = w->columns == 1;
    if ((is_one_row || w->weight_row == 3) && (is_one_column || w->weight_column == 1)) {
        if (is_one_column || w->from_column == 1)
            return forward[at];
        if (w->from_column == -1)
            return back[at];
    }
    if (w->rows < 3 && w->columns < 3 && (is_one_row || w->weight_row == 6) &&
        (is_one_column || (w->weight_column == 2 && w->from_column == -1)))
        return apart[at];
    return any;
}

/* Not inside of `lines`: its stack would be there for all lines. */
static __attribute__((noinline)) void line_of_one(float *out, const float *from, const float *weight,
                        const struct poet_walk *w)
{
    int32_t pixels = w->pixels;
    for (; PIXELS == 2 && pixels >= 4; pixels -= 4) {
        tile(1, 4, out, from, weight, w, 0, 0, 0, 0, 0);
        out += 4 * w->out_pixel;
        from += 4 * w->pixel;
    }
    for (; pixels > 0; pixels--) {
        tile(1, 1, out, from, weight, w, 0, 0, 0, 0, 0);
        out += w->out_pixel;
        from += w->pixel;
    }
}

static void lines(float *out, const float *from, const float *weight, const struct poet_walk *w)
{
    line *four = line_for(w);
    for (int32_t at = 0; at < w->lines; at++) {
        int32_t i = 0;
        for (; i + 4 <= w->channels; i += 4)
            four(out + i * w->out_plane, from, weight + i * w->channel, w->pixels, w);
        for (; i < w->channels; i++)
            line_of_one(out + i * w->out_plane, from, weight + i * w->channel, w);
        out += w->out_line;
        from += w->line;
    }
}

void poet_conv_sums(float *out, const float *from, const float *weight, struct poet_walk *walk)
{
    if (POET_HELIUM && poet_helium_sums(out, from, weight, walk))
        return;
    int32_t is_odd = walk->lines > 1 && walk->pixels % 2 == 1;
    if (is_odd) { /* the last column goes down */
        int32_t count = walk->lines, pixels = walk->pixels;
        int32_t pixel = walk->pixel, out_pixel = walk->out_pixel;
        walk->lines = 1;
        walk->pixels = count;
        walk->pixel = walk->line;
        walk->out_pixel = walk->out_line;
        lines(out + (pixels - 1) * out_pixel, from + (pixels - 1) * pixel, weight, walk);
        walk->lines = count;
        walk->pixels = pixels - 1;
        walk->pixel = pixel;
        walk->out_pixel = out_pixel;
    }
    if (walk->pixels > 0)
        lines(out, from, weight, walk);
    walk->pixels += is_odd;
}
