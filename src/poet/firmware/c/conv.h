/* What the files of convolutions share: sums over taps at the pixels of a region. */
#ifndef POET_CONV_H
#define POET_CONV_H

#include "kernels.h"

/* A dimension of what is written, `extent` pixels, and of what is read, `size` pixels. */
struct poet_axis {
    int32_t is_backward, extent, size;
    int32_t stride, pad, dilation, kernel;
    int32_t tap, place; /* backward: from a tap that meets a pixel to the next, and where they read */
};

/* Pixels that the same taps of the kernel meet, in `lines` of `pixels` each, and the sums at them.
 *
 * What is read and the weights stand at the first tap of the first plane for the first pixel.
 * Planes, rows and columns of taps are walked in this order, whatever the tile: the products of a
 * plane are summed, then added to what the planes before it gave. Strides are in elements.
 */
struct poet_walk {
    int32_t planes, rows, columns;                   /* of taps */
    int32_t from_plane, from_row, from_column;       /* strides of what is read ... */
    int32_t weight_plane, weight_row, weight_column; /* ... and of the weights */
    int32_t channels;
    int32_t channel, from_channel, out_plane; /* from a channel to the next: of the weights, ... */
    int32_t lines, pixels;
    int32_t line, pixel;         /* from one to the next, of what is read ... */
    int32_t out_line, out_pixel; /* ... and of the result */
    int32_t is_more;             /* added to what is there */
};

/* Channels that all read the same planes. The walk is as it was afterwards. */
void poet_conv_sums(float *out, const float *from, const float *weight, struct poet_walk *walk);
/* Channels that read one plane each, or all the same one: returns 0, and does nothing, where the
 * kernel is larger than three by three. */
int32_t poet_conv_plane(float *out, const float *from, const float *weight,
                        const struct poet_walk *walk);
/* Channels that read one plane each, borders and all: of the walk, how channels lie. Returns 0, and
 * does nothing, where it is not made for such axes. */
int32_t poet_conv_planes(float *out, const float *from, const float *weight,
                         const struct poet_walk *walk, const struct poet_axis *down,
                         const struct poet_axis *across);

/* Output columns and rows for which a tap lies inside the image, and where it lies. Sums over pixels
 * go in parts of some rows each. Parts begin at rows that do not depend on the tap, so that blocks of
 * whole parts, one after the other, come to the same sum. */
struct poet_tap {
    int32_t begin, columns;
    int32_t first, beyond; /* rows */
    int32_t across, down;
    int32_t rows_a_part;
};
enum { POET_PART = 64 };

POET_INLINE struct poet_tap poet_tap_of(const struct poet_conv *s, int32_t ky, int32_t kx)
{
    int32_t across = kx * s->dilation_x - s->pad_x, down = ky * s->dilation_y - s->pad_y;
    int32_t begin = across < 0 ? poet_at_least(-across, s->stride_x) : 0;
    int32_t end = s->width > across ? poet_at_least(s->width - across, s->stride_x) : 0;
    int32_t first = down < 0 ? poet_at_least(-down, s->stride_y) : 0;
    int32_t beyond = s->height > down ? poet_at_least(s->height - down, s->stride_y) : 0;
    if (end > s->out_width)
        end = s->out_width;
    if (beyond > s->out_height)
        beyond = s->out_height;
    return (struct poet_tap){.begin = begin, .columns = end > begin ? end - begin : 0,
                             .first = first, .beyond = beyond, .across = across, .down = down,
                             .rows_a_part = (POET_PART + s->out_width - 1) / s->out_width};
}

/* The row after the part that this row is in. */
POET_INLINE int32_t poet_part_end(const struct poet_tap *tap, int32_t row)
{
    int32_t stop = (row / tap->rows_a_part + 1) * tap->rows_a_part;
    return stop < tap->beyond ? stop : tap->beyond;
}

#endif
