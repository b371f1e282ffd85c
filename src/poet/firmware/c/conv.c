/* Convolution and the gradient of its input.
 *
 * Padding is never stored: an image is cut into regions whose pixels meet the same taps of the
 * kernel, and the inner loops run over those taps alone. Most pixels are in the region in the
 * middle; with a stride, the gradient has one for each place within it. Some kernels of a
 * single plane know the borders themselves.
 */
#include "conv.h"

enum { PRODUCTS = 64 }; /* summed before they are added to the result, where a sum is a product's */

/* Pixels `step` apart with the same taps: the first, how many, and where the first pixel's first
 * tap reads. */
struct run {
    int32_t begin, step, pixels;
    int32_t first, taps, at;
};

static void set_pace(struct poet_axis *axis)
{
    int32_t a = axis->stride, b = axis->dilation;
    while (b != 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    axis->tap = axis->is_backward ? axis->stride / a : 1;
    axis->place = axis->is_backward ? -axis->dilation / a : axis->dilation;
}

/* Forward: tap t of output pixel p reads input pixel p * stride - pad + t * dilation. */
static void find_reading(struct run *run, const struct poet_axis *axis, int32_t pixel)
{
    int32_t origin = pixel * axis->stride - axis->pad, size = axis->size;
    int32_t first = origin < 0 ? poet_at_least(-origin, axis->dilation) : 0;
    int32_t beyond = size > origin ? poet_at_least(size - origin, axis->dilation) : 0;
    if (beyond > axis->kernel)
        beyond = axis->kernel;
    run->first = first;
    run->taps = beyond > first ? beyond - first : 0;
    run->at = origin + first * axis->dilation;
}

/* Backward: input pixel p is read by tap t of output pixel (p + pad - t * dilation) / stride. */
static void find_readers(struct run *run, const struct poet_axis *axis, int32_t pixel)
{
    int32_t tap = 0;
    run->first = run->taps = run->at = 0;
    while (tap < axis->tap && (pixel + axis->pad - tap * axis->dilation) % axis->stride != 0)
        tap++;
    if (tap == axis->tap)
        return;
    for (; tap < axis->kernel && pixel + axis->pad >= tap * axis->dilation; tap += axis->tap) {
        int32_t out = (pixel + axis->pad - tap * axis->dilation) / axis->stride;
        if (out >= axis->size)
            continue;
        if (run->taps == 0) {
            run->first = tap;
            run->at = out;
        }
        run->taps++;
    }
}

static void find(struct run *run, const struct poet_axis *axis, int32_t pixel)
{
    if (axis->is_backward)
        find_readers(run, axis, pixel);
    else
        find_reading(run, axis, pixel);
}

/* The run after this one; returns 0 after the last. Pixels a stride apart have their gradients
 * from the same taps. */
static int32_t next(struct run *run, const struct poet_axis *axis)
{
    int32_t step = axis->is_backward ? axis->stride : 1;
    int32_t begin = run->begin + run->pixels * step;
    if (begin >= axis->extent) {
        begin = run->begin % step + 1;
        if (begin >= step || begin >= axis->extent)
            return 0;
    }
    struct run other = {0};
    find(run, axis, begin);
    run->begin = begin;
    run->step = step;
    run->pixels = 0;
    do {
        run->pixels++;
        begin += step;
        if (begin < axis->extent)
            find(&other, axis, begin);
    } while (begin < axis->extent && other.first == run->first && other.taps == run->taps);
    return 1;
}

/* Sums for all samples and groups; strides from one to the next, in elements. */
struct sums {
    int32_t batch, groups;
    int32_t out_sample, out_group, from_sample, from_group, weight_group;
    int32_t kernel_width;
    struct poet_axis down, across;
};

/* Kernels of a single plane keep its weights in registers. Where floats have none they would lie on
 * the stack, for next to nothing. */
static void region(float *out, const float *from, const float *weight, const struct sums *s, struct poet_walk *w)
{
    int32_t channels = w->channels;
    for (int32_t sample = 0; sample < s->batch; sample++) {
        if (POET_HAS_FLOATS && w->planes == 1 && channels == 1 && s->groups > 1 && !w->is_more) {
            w->channels = s->groups;
            w->channel = s->weight_group;
            w->from_channel = s->from_group;
            w->out_plane = s->out_group;
            int32_t is_done = poet_conv_plane(out, from, weight, w);
            w->channels = channels;
            if (is_done) {
                out += s->out_sample;
                from += s->from_sample;
                continue;
            }
        }
        for (int32_t group = 0; group < s->groups; group++) {
            float *to = out + group * s->out_group;
            const float *x = from + group * s->from_group, *y = weight + group * s->weight_group;
            if (!POET_HAS_FLOATS || w->planes != 1 || w->is_more || !poet_conv_plane(to, x, y, w))
                poet_conv_sums(to, x, y, w);
        }
        out += s->out_sample;
        from += s->from_sample;
    }
}

/* Whole planes of all samples, where each channel has one of its own. */
static int32_t whole_planes(float *out, const float *from, const float *weight,
                            const struct sums *s, const struct poet_walk *walk)
{
    if (!POET_HAS_FLOATS || walk->planes != 1 || walk->channels != 1 || walk->is_more)
        return 0;
    struct poet_walk w = *walk;
    w.channels = s->groups;
    w.channel = s->weight_group;
    w.from_channel = s->from_group;
    w.out_plane = s->out_group;
    for (int32_t sample = 0; sample < s->batch; sample++) {
        if (!poet_conv_planes(out, from, weight, &w, &s->down, &s->across))
            return 0; /* the first already: they are all alike */
        out += s->out_sample;
        from += s->from_sample;
    }
    return 1;
}

static void everywhere(float *out, const float *from, const float *weight, struct sums *s, struct poet_walk *w)
{
    const struct poet_axis *down = &s->down, *across = &s->across;
    if (whole_planes(out, from, weight, s, w))
        return;
    set_pace(&s->down);
    set_pace(&s->across);
    w->from_row = down->place * across->size;
    w->from_column = across->place;
    w->weight_row = down->tap * s->kernel_width;
    w->weight_column = across->tap;
    w->pixel = across->is_backward ? 1 : across->stride;
    w->line = (down->is_backward ? 1 : down->stride) * across->size;
    struct run v = {0};
    while (next(&v, down)) {
        w->rows = v.taps;
        w->lines = v.pixels;
        w->out_line = v.step * across->extent;
        struct run h = {0};
        while (next(&h, across)) {
            w->columns = h.taps;
            w->pixels = h.pixels;
            w->out_pixel = h.step;
            region(out + v.begin * across->extent + h.begin, from + v.at * across->size + h.at,
                   weight + v.first * s->kernel_width + h.first, s, w);
        }
    }
}

void poet_conv(float *out, const float *in, const float *weight, const float *bias,
               const struct poet_conv *shape)
{
    poet_conv_part(out, in, weight, bias, shape, 0, 1);
}

static void product(float *out, const float *in, const float *weight,
                    const struct poet_conv *s, int32_t is_more)
{
    int32_t channels = s->channels / s->groups, out_channels = s->out_channels / s->groups;
    int32_t area = s->height * s->width;
    struct poet_matmul product = {.m = out_channels, .n = area, .k = channels,
                                  .a_row = channels, .a_column = 1, .b_row = area, .b_column = 1,
                                  .out_row = area, .block = PRODUCTS};
    for (int32_t at = 0; at < s->batch * s->groups; at++) {
        int32_t group = at % s->groups;
        float *y = out + (at / s->groups * s->out_planes + group * out_channels) * area;
        poet_matmul_part(y, weight + group * out_channels * channels, in + at * channels * area,
                         NULL, &product, is_more);
    }
}

static void forward(float *out, const float *in, const float *weight, const struct poet_conv *s,
                    int32_t is_more)
{
    int32_t channels = s->channels / s->groups, out_channels = s->out_channels / s->groups;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    int32_t taps = s->kernel_height * s->kernel_width;
    struct sums sums = {
        .batch = s->batch, .groups = s->groups,
        .out_sample = s->out_planes * out_area, .out_group = out_channels * out_area,
        .from_sample = s->groups * channels * area, .from_group = channels * area,
        .weight_group = out_channels * channels * taps, .kernel_width = s->kernel_width,
        .down = {.extent = s->out_height, .size = s->height, .stride = s->stride_y,
                 .pad = s->pad_y, .dilation = s->dilation_y, .kernel = s->kernel_height},
        .across = {.extent = s->out_width, .size = s->width, .stride = s->stride_x,
                   .pad = s->pad_x, .dilation = s->dilation_x, .kernel = s->kernel_width}};
    struct poet_walk w = {.planes = channels, .from_plane = area, .weight_plane = taps,
                          .channels = out_channels, .channel = channels * taps,
                          .out_plane = out_area, .is_more = is_more};
    everywhere(out, in, weight, &sums, &w);
}

void poet_conv_part(float *out, const float *in, const float *weight, const float *bias,
                    const struct poet_conv *shape, int32_t is_more, int32_t is_last)
{
    const struct poet_conv *s = shape;
    if (s->is_product)
        product(out, in, weight, s, is_more);
    else
        forward(out, in, weight, s, is_more);
    int32_t out_area = s->out_height * s->out_width;
    for (int32_t sample = 0; bias && is_last && sample < s->batch; sample++)
        for (int32_t o = 0; o < s->out_channels; o++) {
            float *y = out + (sample * s->out_planes + o) * out_area;
            poet_shift(y, y, bias[o], out_area);
        }
}
static void gradient_product(float *in_gradient, const float *gradient, const float *weight,
                             const struct poet_conv *s, int32_t is_more)
{
    int32_t channels = s->channels / s->groups, out_channels = s->out_channels / s->groups;
    int32_t area = s->height * s->width;
    struct poet_matmul product = {.m = channels, .n = area, .k = out_channels,
                                  .a_row = 1, .a_column = channels, .b_row = area, .b_column = 1,
                                  .out_row = area, .block = s->block};
    for (int32_t at = 0; at < s->batch * s->groups; at++) {
        int32_t group = at % s->groups;
        const float *y =
            gradient + (at / s->groups * s->out_planes + group * out_channels) * area;
        poet_matmul_part(in_gradient + at * channels * area,
                         weight + group * out_channels * channels, y, NULL, &product, is_more);
    }
}

void poet_conv_input_gradient_part(float *in_gradient, const float *gradient, const float *weight,
                                   const struct poet_conv *shape, int32_t is_more)
{
    const struct poet_conv *s = shape;
    if (s->is_product) {
        gradient_product(in_gradient, gradient, weight, s, is_more);
        return;
    }
    int32_t channels = s->channels / s->groups, out_channels = s->out_channels / s->groups;
    int32_t area = s->height * s->width, out_area = s->out_height * s->out_width;
    int32_t taps = s->kernel_height * s->kernel_width;
    struct sums sums = {
        .batch = s->batch, .groups = s->groups,
        .out_sample = s->groups * channels * area, .out_group = channels * area,
        .from_sample = s->out_planes * out_area, .from_group = out_channels * out_area,
        .weight_group = out_channels * channels * taps, .kernel_width = s->kernel_width,
        .down = {.is_backward = 1, .extent = s->height, .size = s->out_height,
                 .stride = s->stride_y, .pad = s->pad_y, .dilation = s->dilation_y,
                 .kernel = s->kernel_height},
        .across = {.is_backward = 1, .extent = s->width, .size = s->out_width,
                   .stride = s->stride_x, .pad = s->pad_x, .dilation = s->dilation_x,
                   .kernel = s->kernel_width}};
    struct poet_walk w = {.planes = out_channels, .from_plane = out_area,
                          .weight_plane = channels * taps, .channels = channels, .channel = taps,
                          .out_plane = area, .is_more = is_more};
    everywhere(in_gradient, gradient, weight, &sums, &w);
}

void poet_conv_input_gradient(float *in_gradient, const float *gradient, const float *weight,
                              const struct poet_conv *shape)
{
    poet_conv_input_gradient_part(in_gradient, gradient, weight, shape, 0);
}
