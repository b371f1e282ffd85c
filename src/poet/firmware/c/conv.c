/* Convolution and the gradient of its input.
 *
 * Padding is never stored: for each pixel the taps of the kernel that fall inside the image are
 * found first, and the inner loops run over those alone. Four channels and up to four pixels with
 * the same taps are computed together.
 */
#include "kernels.h"

enum { PRODUCTS = 64 }; /* summed before they are added to the result, where a sum is a product's */

/* The taps first, first + step, ... of a kernel that meet a pixel, and where they meet it. */
struct taps {
    int32_t first, count; /* of the kernel's row or column */
    int32_t at;           /* index in the image for the first tap */
};

/* Forward: tap t of output pixel `out` reads input pixel out * stride - pad + t * dilation. */
static struct taps reading(int32_t out, int32_t stride, int32_t pad, int32_t dilation,
                           int32_t kernel, int32_t size)
{
    int32_t origin = out * stride - pad;
    int32_t first = origin < 0 ? at_least(-origin, dilation) : 0;
    int32_t beyond = size > origin ? at_least(size - origin, dilation) : 0;
    if (beyond > kernel)
        beyond = kernel;
    struct taps found = {first, beyond > first ? beyond - first : 0, origin + first * dilation};
    return found;
}

/* How the taps of an input pixel and the output pixels they come from follow each other. */
struct pace {
    int32_t tap, out;
};

static struct pace pace_of(int32_t stride, int32_t dilation)
{
    int32_t a = stride, b = dilation;
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    struct pace found = {stride / a, dilation / a};
    return found;
}

/* Backward: input pixel `in` is read by tap t of output pixel (in + pad - t * dilation) / stride. */
static struct taps read_by(int32_t in, int32_t stride, int32_t pad, int32_t dilation,
                           int32_t kernel, int32_t size, struct pace pace)
{
    struct taps found = {0, 0, 0};
    int32_t tap = 0;
    while (tap < pace.tap && (in + pad - tap * dilation) % stride != 0)
        tap++;
    if (tap == pace.tap)
        return found;
    for (; tap < kernel; tap += pace.tap) {
        int32_t out = (in + pad - tap * dilation) / stride;
        if (in + pad < tap * dilation)
            break;
        if (out >= size)
            continue;
        if (found.count == 0) {
            found.first = tap;
            found.at = out;
        }
        found.count++;
    }
    return found;
}

static int same_taps(struct taps a, struct taps b)
{
    return a.first == b.first && a.count == b.count;
}

/* Adds to the sums of some channels at some pixels of one row.
 *
 * `from` and `weight` stand at the first tap of the first plane. Planes, rows and taps are walked in
 * this order, whatever the tile: a sum has the same bits in each.
 */
struct walk {
    int32_t planes, rows, columns;                    /* of taps */
    int32_t from_plane, from_row, from_column;        /* strides of what is read ... */
    int32_t weight_plane, weight_row, weight_column;  /* ... and of the weights */
    int32_t pixel, channel;                           /* from one pixel, one channel to the next */
    int32_t is_more;                                  /* added to what is there */
};

/* `side`, `from_column`, `weight_column` and `pixel` are constants where the caller knows them: a
 * side of 3 is a kernel of 3×3 whose taps are all inside, 0 any other. */
INLINE void sums(const int channels, const int pixels, float *total, const float *from,
                 const float *weight, const struct walk *w, const int side,
                 const int32_t from_column, const int32_t weight_column, const int32_t pixel)
{
    for (int32_t plane = 0; plane < w->planes; plane++) {
        float part[8];
#pragma GCC unroll 8
        for (int i = 0; i < channels * pixels; i++)
            part[i] = 0.0f;
        const float *x = from, *y[4];
#pragma GCC unroll 4
        for (int i = 0; i < channels; i++)
            y[i] = weight + i * w->channel;
#pragma GCC unroll 3
        for (int row = 0; row < side; row++) {
#pragma GCC unroll 3
            for (int column = 0; column < side; column++)
#pragma GCC unroll 4
                for (int i = 0; i < channels; i++)
#pragma GCC unroll 4
                    for (int j = 0; j < pixels; j++)
                        part[i * pixels + j] += y[i][row * side + column * weight_column] *
                                                x[column * from_column + j * pixel];
            x += w->from_row;
        }
        for (int32_t row = side > 0 ? 0 : w->rows; row > 0; row--) {
            const float *at[4], *with[4];
#pragma GCC unroll 4
            for (int j = 0; j < pixels; j++)
                at[j] = x + j * pixel;
#pragma GCC unroll 4
            for (int i = 0; i < channels; i++)
                with[i] = y[i];
            for (int32_t column = w->columns; column > 0; column--) {
                float left[4], right[4];
#pragma GCC unroll 4
                for (int j = 0; j < pixels; j++) {
                    left[j] = *at[j];
                    at[j] += from_column;
                }
#pragma GCC unroll 4
                for (int i = 0; i < channels; i++) {
                    right[i] = *with[i];
                    with[i] += weight_column;
                }
#pragma GCC unroll 4
                for (int i = 0; i < channels; i++)
#pragma GCC unroll 4
                    for (int j = 0; j < pixels; j++)
                        part[i * pixels + j] += right[i] * left[j];
            }
            x += w->from_row;
#pragma GCC unroll 4
            for (int i = 0; i < channels; i++)
                y[i] += w->weight_row;
        }
#pragma GCC unroll 8
        for (int i = 0; i < channels * pixels; i++)
            total[i] += part[i];
        from += w->from_plane;
        weight += w->weight_plane;
    }
}

/* Writes `channels` planes of `out` at `pixels` pixels, `out_pixel` apart; adds `bias`, if any. */
INLINE void tile(const int channels, const int pixels, float *out, int32_t out_plane,
                 int32_t out_pixel, const float *bias, const float *from, const float *weight,
                 const struct walk *w)
{
    float total[8];
#pragma GCC unroll 4
    for (int i = 0; i < channels; i++)
#pragma GCC unroll 4
        for (int j = 0; j < pixels; j++)
            total[i * pixels + j] = w->is_more ? out[i * out_plane + j * out_pixel] : 0.0f;
    int is_usual = w->rows == 3 && w->columns == 3 && w->weight_row == 3 && w->weight_column == 1;
    if (is_usual && w->from_column == 1 && w->pixel == 1) /* a convolution of stride 1, ... */
        sums(channels, pixels, total, from, weight, w, 3, 1, 1, 1);
    else if (is_usual && w->from_column == 1 && w->pixel == 2) /* ... of stride 2 ... */
        sums(channels, pixels, total, from, weight, w, 3, 1, 1, 2);
    else if (is_usual && w->from_column == -1 && w->pixel == 1) /* ... and a gradient */
        sums(channels, pixels, total, from, weight, w, 3, -1, 1, 1);
    else if (w->weight_column == 1)
        sums(channels, pixels, total, from, weight, w, 0, w->from_column, 1, w->pixel);
    else
        sums(channels, pixels, total, from, weight, w, 0, w->from_column, w->weight_column,
             w->pixel);
#pragma GCC unroll 4
    for (int i = 0; i < channels; i++)
#pragma GCC unroll 4
        for (int j = 0; j < pixels; j++)
            out[i * out_plane + j * out_pixel] =
                bias ? bias[i] + total[i * pixels + j] : total[i * pixels + j];
}

static void tile_4x2(float *out, int32_t out_plane, int32_t out_pixel, const float *bias,
                     const float *from, const float *weight, const struct walk *w)
{
    tile(4, 2, out, out_plane, out_pixel, bias, from, weight, w);
}

static void tile_4x1(float *out, int32_t out_plane, int32_t out_pixel, const float *bias,
                     const float *from, const float *weight, const struct walk *w)
{
    tile(4, 1, out, out_plane, out_pixel, bias, from, weight, w);
}

static void tile_1x4(float *out, int32_t out_plane, int32_t out_pixel, const float *bias,
                     const float *from, const float *weight, const struct walk *w)
{
    tile(1, 4, out, out_plane, out_pixel, bias, from, weight, w);
}

static void tile_1x1(float *out, int32_t out_plane, int32_t out_pixel, const float *bias,
                     const float *from, const float *weight, const struct walk *w)
{
    tile(1, 1, out, out_plane, out_pixel, bias, from, weight, w);
}

/* All of `channels` planes at `pixels` pixels with the same taps. */
static void pixels_of(float *out, int32_t channels, int32_t pixels, int32_t out_plane,
                      int32_t out_pixel, const float *bias, const float *from, const float *weight,
                      const struct walk *w)
{
    int32_t i = 0;
    for (; i + 4 <= channels; i += 4) {
        const float *b = bias ? bias + i : NULL;
        const float *y = weight + i * w->channel;
        float *to = out + i * out_plane;
        int32_t j = 0;
        for (; j + 2 <= pixels; j += 2)
            tile_4x2(to + j * out_pixel, out_plane, out_pixel, b, from + j * w->pixel, y, w);
        if (j < pixels)
            tile_4x1(to + j * out_pixel, out_plane, out_pixel, b, from + j * w->pixel, y, w);
    }
    for (; i < channels; i++) {
        const float *b = bias ? bias + i : NULL;
        const float *y = weight + i * w->channel;
        float *to = out + i * out_plane;
        int32_t j = 0;
        for (; j + 4 <= pixels; j += 4)
            tile_1x4(to + j * out_pixel, out_plane, out_pixel, b, from + j * w->pixel, y, w);
        for (; j < pixels; j++)
            tile_1x1(to + j * out_pixel, out_plane, out_pixel, b, from + j * w->pixel, y, w);
    }
}

void conv(float *out, const float *in, const float *weight, const float *bias,
          const struct conv *shape)
{
    conv_part(out, in, weight, bias, shape, 0, 1);
}

void conv_part(float *out, const float *in, const float *weight, const float *bias,
               const struct conv *shape, int32_t is_more, int32_t is_last)
{
    if (!is_last)
        bias = NULL;
    const struct conv *s = shape;
    int32_t channels = s->channels / s->groups, out_channels = s->out_channels / s->groups;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    int32_t taps = s->kernel_height * s->kernel_width;
    if (s->is_product) {
        struct matmul product = {.m = out_channels, .n = area, .k = channels,
                                 .a_row = channels, .a_column = 1, .b_row = area, .b_column = 1,
                                 .out_row = area, .block = PRODUCTS};
        for (int32_t at = 0; at < s->batch * s->groups; at++) {
            int32_t group = at % s->groups;
            float *y = out + (at / s->groups * s->out_planes + group * out_channels) * area;
            matmul_part(y, weight + group * out_channels * channels, in + at * channels * area,
                        NULL, &product, is_more);
            if (bias)
                for (int32_t o = 0; o < out_channels; o++)
                    shift(y + o * area, y + o * area, bias[group * out_channels + o], area);
        }
        return;
    }
    struct walk w = {.planes = channels,
                     .from_plane = area,
                     .from_row = s->dilation_y * s->width,
                     .from_column = s->dilation_x,
                     .weight_plane = taps,
                     .weight_row = s->kernel_width,
                     .weight_column = 1,
                     .pixel = s->stride_x,
                     .channel = channels * taps,
                     .is_more = is_more};
    for (int32_t sample = 0; sample < s->batch; sample++)
        for (int32_t row = 0; row < s->out_height; row++) {
            struct taps v =
                reading(row, s->stride_y, s->pad_y, s->dilation_y, s->kernel_height, s->height);
            w.rows = v.count;
            int32_t column = 0;
            while (column < s->out_width) {
                struct taps h = reading(column, s->stride_x, s->pad_x, s->dilation_x,
                                        s->kernel_width, s->width);
                int32_t end = column + 1;
                while (end < s->out_width &&
                       same_taps(h, reading(end, s->stride_x, s->pad_x, s->dilation_x,
                                            s->kernel_width, s->width)))
                    end++;
                w.columns = h.count;
                for (int32_t group = 0; group < s->groups; group++) {
                    int32_t at = sample * s->groups + group;
                    int32_t plane = sample * s->out_planes + group * out_channels;
                    pixels_of(out + plane * out_area + row * s->out_width + column,
                              out_channels, end - column, out_area, 1,
                              bias ? bias + group * out_channels : NULL,
                              in + at * channels * area + v.at * s->width + h.at,
                              weight + group * out_channels * channels * taps +
                                  v.first * s->kernel_width + h.first,
                              &w);
                }
                column = end;
            }
        }
}

static void input_gradient(float *in_gradient, const float *gradient, const float *weight,
                           const struct conv *s, int32_t is_more)
{
    int32_t channels = s->channels / s->groups, out_channels = s->out_channels / s->groups;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    int32_t taps = s->kernel_height * s->kernel_width;
    if (s->is_product) {
        struct matmul product = {.m = channels, .n = area, .k = out_channels,
                                 .a_row = 1, .a_column = channels, .b_row = area, .b_column = 1,
                                 .out_row = area, .block = s->block};
        for (int32_t at = 0; at < s->batch * s->groups; at++) {
            int32_t group = at % s->groups;
            float *to = in_gradient + at * channels * area;
            const float *y =
                gradient + (at / s->groups * s->out_planes + group * out_channels) * area;
            matmul_part(to, weight + group * out_channels * channels, y, NULL, &product, is_more);
        }
        return;
    }
    struct pace down = pace_of(s->stride_y, s->dilation_y);
    struct pace across = pace_of(s->stride_x, s->dilation_x);
    struct walk w = {.planes = out_channels,
                     .from_plane = out_area,
                     .from_row = -down.out * s->out_width,
                     .from_column = -across.out,
                     .weight_plane = channels * taps,
                     .weight_row = down.tap * s->kernel_width,
                     .weight_column = across.tap,
                     .pixel = 1,
                     .channel = taps,
                     .is_more = is_more};
    for (int32_t sample = 0; sample < s->batch; sample++)
        for (int32_t row = 0; row < s->height; row++) {
            struct taps v = read_by(row, s->stride_y, s->pad_y, s->dilation_y, s->kernel_height,
                                    s->out_height, down);
            w.rows = v.count;
            /* Pixels a stride apart are met by the same taps. */
            for (int32_t phase = 0; phase < s->stride_x && phase < s->width; phase++) {
                int32_t column = phase;
                while (column < s->width) {
                    struct taps h = read_by(column, s->stride_x, s->pad_x, s->dilation_x,
                                            s->kernel_width, s->out_width, across);
                    int32_t end = column + s->stride_x, pixels = 1;
                    while (end < s->width &&
                           same_taps(h, read_by(end, s->stride_x, s->pad_x, s->dilation_x,
                                                s->kernel_width, s->out_width, across))) {
                        end += s->stride_x;
                        pixels++;
                    }
                    w.columns = h.count;
                    for (int32_t group = 0; group < s->groups; group++) {
                        int32_t at = sample * s->groups + group;
                        int32_t plane = sample * s->out_planes + group * out_channels;
                        pixels_of(in_gradient + at * channels * area + row * s->width + column,
                                  channels, pixels, area, s->stride_x, NULL,
                                  gradient + plane * out_area + v.at * s->out_width + h.at,
                                  weight + group * out_channels * channels * taps +
                                      v.first * s->kernel_width + h.first,
                                  &w);
                    }
                    column = end;
                }
            }
        }
}

void conv_input_gradient(float *in_gradient, const float *gradient, const float *weight,
                         const struct conv *shape)
{
    input_gradient(in_gradient, gradient, weight, shape, 0);
}

void conv_input_gradient_part(float *in_gradient, const float *gradient, const float *weight,
                              const struct conv *shape, int32_t is_more)
{
    input_gradient(in_gradient, gradient, weight, shape, is_more);
}
