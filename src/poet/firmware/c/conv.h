/* What the files of convolutions share: sums over taps at the pixels of a region. */
#ifndef POET_CONV_H
#define POET_CONV_H

#include "kernels.h"

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

#endif
