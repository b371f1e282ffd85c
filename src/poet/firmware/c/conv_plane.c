/* Sums of a convolution over a single plane, as depthwise ones have: the weights stay in registers
 * while the pixels of a region pass by, four at a time. */
#include "conv.h"
#include "helium.h"

/* One pixel, or some that share what they read. */
POET_INLINE void pixels_of(const int pixels, float *out, const float *from, const float *weight,
                           const int32_t from_row, const int32_t out_pixel,
                           const int rows, const int columns, const int from_column,
                           const int pixel)
{
    float part[4] = {0.0f};
#pragma GCC unroll 3
    for (int row = 0; row < rows; row++) {
#pragma GCC unroll 3
        for (int column = 0; column < columns; column++)
#pragma GCC unroll 4
            for (int j = 0; j < pixels; j++) {
                float product =
                    weight[row * columns + column] * from[column * from_column + j * pixel];
                part[j] = row + column == 0 ? product : part[j] + product;
            }
        from += from_row;
    }
#pragma GCC unroll 4
    for (int j = 0; j < pixels; j++) {
        *out = 0.0f + part[j]; /* as sums of many planes begin */
        out += out_pixel;
    }
}

POET_INLINE void plane(float *out, const float *from, const float *weight,
                       const struct poet_walk *w, const int rows, const int columns,
                       const int from_column, const int pixel, const int apart)
{
    int32_t from_row = w->from_row, out_pixel = w->out_pixel;
    int32_t lines = w->lines, pixels = w->pixels, step = w->pixel, line = w->line;
    int32_t out_line = w->out_line;
    if (pixels == 1) { /* a column is a line */
        pixels = lines;
        lines = 1;
        step = line;
        out_pixel = out_line;
    }
    int32_t is_known = step == pixel && out_pixel == apart;
    int32_t fours = is_known ? pixels / 4 : 0, rest_of = pixels - 4 * fours;
    int32_t twos = is_known ? rest_of / 2 : 0, ones = rest_of - 2 * twos;
    int32_t out_rest = out_line - pixels * out_pixel, rest = line - pixels * step;
    int32_t weight_row = w->weight_row, weight_column = w->weight_column;
    int32_t next = w->from_channel - lines * line, out_next = w->out_plane - lines * out_line;
    for (int32_t channel = w->channels; channel > 0; channel--) {
        float y[9];
#pragma GCC unroll 3
        for (int row = 0; row < rows; row++)
#pragma GCC unroll 3
            for (int column = 0; column < columns; column++)
                y[row * columns + column] = weight[row * weight_row + column * weight_column];
        for (int32_t at = lines; at > 0; at--) {
            for (int32_t n = fours; n > 0; n--) {
                pixels_of(4, out, from, y, from_row, apart, rows, columns, from_column, pixel);
                out += 4 * apart;
                from += 4 * pixel;
            }
            if (twos) {
                pixels_of(2, out, from, y, from_row, apart, rows, columns, from_column, pixel);
                out += 2 * apart;
                from += 2 * pixel;
            }
            for (int32_t n = ones; n > 0; n--) {
                pixels_of(1, out, from, y, from_row, out_pixel, rows, columns, from_column, pixel);
                out += out_pixel;
                from += step;
            }
            out += out_rest;
            from += rest;
        }
        out += out_next;
        from += next;
        weight += w->channel;
    }
}

#define PLANE(name, rows, columns, from_column, pixel, apart)                                             \
    static void name(float *out, const float *from, const float *weight,                           \
                     const struct poet_walk *w)                                                    \
    {                                                                                              \
        plane(out, from, weight, w, rows, columns, from_column, pixel, apart);                     \
    }
PLANE(taps_1x1, 1, 1, 1, 1, 1)
PLANE(taps_1x2, 1, 2, 1, 1, 1)
PLANE(taps_1x3, 1, 3, 1, 1, 1)
PLANE(taps_2x1, 2, 1, 1, 1, 1)
PLANE(taps_2x2, 2, 2, 1, 1, 1)
PLANE(taps_2x3, 2, 3, 1, 1, 1)
PLANE(taps_3x1, 3, 1, 1, 1, 1)
PLANE(taps_3x2, 3, 2, 1, 1, 1)
PLANE(taps_3x3, 3, 3, 1, 1, 1)
/* Gradients: what is read goes back. */
PLANE(back_1x2, 1, 2, -1, 1, 1)
PLANE(back_1x3, 1, 3, -1, 1, 1)
PLANE(back_2x2, 2, 2, -1, 1, 1)
PLANE(back_2x3, 2, 3, -1, 1, 1)
PLANE(back_3x2, 3, 2, -1, 1, 1)
PLANE(back_3x3, 3, 3, -1, 1, 1)
/* Gradients of stride 2: every other pixel. */
PLANE(apart_1x1, 1, 1, 1, 1, 2)
PLANE(apart_1x2, 1, 2, -1, 1, 2)
PLANE(apart_2x1, 2, 1, 1, 1, 2)
PLANE(apart_2x2, 2, 2, -1, 1, 2)
/* Stride 2. */
PLANE(wide_1x3, 1, 3, 1, 2, 1)
PLANE(wide_2x3, 2, 3, 1, 2, 1)
PLANE(wide_3x3, 3, 3, 1, 2, 1)

typedef void region(float *out, const float *from, const float *weight,
                    const struct poet_walk *w);

static region *region_for(const struct poet_walk *w)
{
    static region *const forward[] = {taps_1x1, taps_1x2, taps_1x3, taps_2x1, taps_2x2,
                                      taps_2x3, taps_3x1, taps_3x2, taps_3x3};
    static region *const back[] = {taps_1x1, back_1x2, back_1x3, taps_2x1, back_2x2,
                                   back_2x3, taps_3x1, back_3x2, back_3x3};
    static region *const apart[] = {apart_1x1, apart_1x2, NULL, apart_2x1, apart_2x2};
    static region *const wide[] = {NULL, NULL, wide_1x3, NULL, NULL,
                                   wide_2x3, NULL, NULL, wide_3x3};
    if (w->rows < 1 || w->columns < 1 || w->rows > 3 || w->columns > 3)
        return NULL;
    int32_t at = (w->rows - 1) * 3 + w->columns - 1;
    int32_t step = w->columns == 1 ? 1 : w->from_column;
    int32_t pixel = w->pixels == 1 ? 1 : w->pixel;
    if (w->out_pixel == 2 && pixel == 1 && w->rows < 3 && w->columns < 3 &&
        (step == -1 || w->columns == 1))
        return apart[at];
    if (step == 1)
        return pixel == 1 ? forward[at] : pixel == 2 ? wide[at] : NULL;
    return step == -1 && pixel == 1 ? back[at] : NULL;
}

int32_t poet_conv_plane(float *out, const float *from, const float *weight,
                        const struct poet_walk *walk)
{
    region *found = region_for(walk);
    if (found == NULL)
        return 0;
    struct poet_walk rest = *walk;
    if (POET_HELIUM && walk->channels >= 4) {
        int32_t done = poet_helium_plane(out, from, weight, walk);
        out += done * walk->out_plane;
        from += done * walk->from_channel;
        weight += done * walk->channel;
        rest.channels -= done;
    }
    found(out, from, weight, &rest);
    return 1;
}
