/* Maximum and average over windows of an image. */
#include "kernels.h"

struct window {
    int32_t begin, end; /* inside the image */
    int32_t padded;     /* its extent, padding counted */
};

static struct window window_of(int32_t out, int32_t stride, int32_t pad, int32_t kernel,
                               int32_t size)
{
    int32_t begin = out * stride - pad, end = begin + kernel;
    if (end > size + pad)
        end = size + pad;
    struct window found = {begin < 0 ? 0 : begin, end > size ? size : end, end - begin};
    return found;
}

static struct poet_pool_rows all_rows(const struct poet_pool *s)
{
    struct poet_pool_rows all = {0, s->height, 0, s->out_height};
    return all;
}

void poet_max_pool(float *out, int64_t *at, const float *in, const struct poet_pool *shape)
{
    struct poet_pool_rows all = all_rows(shape);
    poet_max_pool_rows(out, at, in, shape, &all);
}

void poet_max_pool_rows(float *out, int64_t *at, const float *in, const struct poet_pool *shape,
                        const struct poet_pool_rows *part)
{
    const struct poet_pool *s = shape;
    int32_t before = part->first * s->width;
    for (int32_t plane = 0; plane < s->planes; plane++, in += part->rows * s->width)
        for (int32_t oy = part->out_first; oy < part->out_first + part->out_rows; oy++)
            for (int32_t ox = 0; ox < s->out_width; ox++) {
                int32_t best = -1;
                for (int32_t ky = 0; ky < s->kernel_height; ky++) {
                    int32_t y = oy * s->stride_y - s->pad_y + ky * s->dilation_y;
                    if (y < 0 || y >= s->height)
                        continue;
                    for (int32_t kx = 0; kx < s->kernel_width; kx++) {
                        int32_t x = ox * s->stride_x - s->pad_x + kx * s->dilation_x;
                        if (x < 0 || x >= s->width)
                            continue;
                        int32_t here = y * s->width + x - before;
                        if (best < 0 || in[here] > in[best] || in[here] != in[here])
                            best = here;
                    }
                }
                *out++ = in[best];
                *at++ = best + before;
            }
}

void poet_max_pool_gradient(float *in_gradient, const float *gradient, const int64_t *at,
                            const struct poet_pool *shape)
{
    struct poet_pool_rows all = all_rows(shape);
    poet_max_pool_gradient_rows(in_gradient, gradient, at, shape, &all);
}

void poet_max_pool_gradient_rows(float *in_gradient, const float *gradient, const int64_t *at,
                                 const struct poet_pool *shape, const struct poet_pool_rows *part)
{
    const struct poet_pool *s = shape;
    int32_t area = part->rows * s->width, out_area = part->out_rows * s->out_width;
    int32_t before = part->first * s->width;
    poet_fill(in_gradient, 0.0f, s->planes * area);
    for (int32_t plane = 0; plane < s->planes; plane++, in_gradient += area)
        for (int32_t i = 0; i < out_area; i++, at++, gradient++) {
            int32_t here = poet_index_of(*at, s->height * s->width) - before;
            if (here >= 0 && here < area)
                in_gradient[here] += *gradient;
        }
}

static float divisor_of(const struct poet_pool *s, struct window v, struct window h)
{
    if (s->divisor)
        return (float)s->divisor;
    return (float)(s->count_padding ? v.padded * h.padded
                                    : (v.end - v.begin) * (h.end - h.begin));
}

/* Window `out` of `count` windows that cover `size` pixels as evenly as they can. */
static struct window even(int32_t out, int32_t count, int32_t size)
{
    int32_t begin = out * size / count, end = ((out + 1) * size + count - 1) / count;
    struct window found = {begin, end, end - begin};
    return found;
}

static struct window rows_of(const struct poet_pool *s, int32_t out, int is_even)
{
    return is_even ? even(out, s->out_height, s->height)
                   : window_of(out, s->stride_y, s->pad_y, s->kernel_height, s->height);
}

static struct window columns_of(const struct poet_pool *s, int32_t out, int is_even)
{
    return is_even ? even(out, s->out_width, s->width)
                   : window_of(out, s->stride_x, s->pad_x, s->kernel_width, s->width);
}

static void average(float *out, const float *in, const struct poet_pool *s,
                    const struct poet_pool_rows *part, int is_even)
{
    for (int32_t plane = 0; plane < s->planes; plane++, in += part->rows * s->width)
        for (int32_t oy = part->out_first; oy < part->out_first + part->out_rows; oy++) {
            struct window v = rows_of(s, oy, is_even);
            for (int32_t ox = 0; ox < s->out_width; ox++) {
                struct window h = columns_of(s, ox, is_even);
                float total = 0.0f;
                for (int32_t y = v.begin; y < v.end; y++) {
                    float sum = 0.0f;
                    for (int32_t x = h.begin; x < h.end; x++)
                        sum += in[(y - part->first) * s->width + x];
                    total += sum;
                }
                *out++ = total / divisor_of(s, v, h);
            }
        }
}

static void average_gradient(float *in_gradient, const float *gradient, const struct poet_pool *s,
                             const struct poet_pool_rows *part, int is_even)
{
    int32_t area = part->rows * s->width;
    poet_fill(in_gradient, 0.0f, s->planes * area);
    for (int32_t plane = 0; plane < s->planes; plane++, in_gradient += area)
        for (int32_t oy = part->out_first; oy < part->out_first + part->out_rows; oy++) {
            struct window v = rows_of(s, oy, is_even);
            int32_t begin = v.begin > part->first ? v.begin : part->first;
            int32_t end = v.end < part->first + part->rows ? v.end : part->first + part->rows;
            for (int32_t ox = 0; ox < s->out_width; ox++) {
                struct window h = columns_of(s, ox, is_even);
                float share = *gradient++ / divisor_of(s, v, h);
                for (int32_t y = begin; y < end; y++)
                    for (int32_t x = h.begin; x < h.end; x++)
                        in_gradient[(y - part->first) * s->width + x] += share;
            }
        }
}

void poet_average_pool(float *out, const float *in, const struct poet_pool *shape)
{
    struct poet_pool_rows all = all_rows(shape);
    average(out, in, shape, &all, 0);
}

void poet_average_pool_rows(float *out, const float *in, const struct poet_pool *shape,
                            const struct poet_pool_rows *part)
{
    average(out, in, shape, part, 0);
}

void poet_average_pool_gradient(float *in_gradient, const float *gradient,
                                const struct poet_pool *shape)
{
    struct poet_pool_rows all = all_rows(shape);
    average_gradient(in_gradient, gradient, shape, &all, 0);
}

void poet_average_pool_gradient_rows(float *in_gradient, const float *gradient,
                                     const struct poet_pool *shape,
                                     const struct poet_pool_rows *part)
{
    average_gradient(in_gradient, gradient, shape, part, 0);
}

void poet_adaptive_pool(float *out, const float *in, const struct poet_pool *shape)
{
    struct poet_pool_rows all = all_rows(shape);
    average(out, in, shape, &all, 1);
}

void poet_adaptive_pool_gradient(float *in_gradient, const float *gradient,
                                 const struct poet_pool *shape)
{
    struct poet_pool_rows all = all_rows(shape);
    average_gradient(in_gradient, gradient, shape, &all, 1);
}
