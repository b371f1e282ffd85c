/* Images made larger or smaller: the nearest pixel, or what lies between two in each direction. */
#include "layers.h"

/* Which pixel an output pixel is: that at `scale` times its place, `offset` further. */
static int32_t nearest(int32_t out, float scale, float offset, int32_t size)
{
    int32_t found = (int32_t)(((float)out + offset) * scale);
    return found < size ? found : size - 1;
}

void poet_nearest(float *out, const float *in, const struct poet_resize *shape)
{
    const struct poet_resize *s = shape;
    for (int32_t plane = 0; plane < s->planes; plane++, in += s->height * s->width)
        for (int32_t y = 0; y < s->out_height; y++) {
            const float *row = in + nearest(y, s->scale_y, s->offset, s->height) * s->width;
            for (int32_t x = 0; x < s->out_width; x++)
                *out++ = row[nearest(x, s->scale_x, s->offset, s->width)];
        }
}

void poet_nearest_gradient(float *in_gradient, const float *gradient,
                           const struct poet_resize *shape)
{
    const struct poet_resize *s = shape;
    poet_fill(in_gradient, 0.0f, s->planes * s->height * s->width);
    for (int32_t plane = 0; plane < s->planes; plane++, in_gradient += s->height * s->width)
        for (int32_t y = 0; y < s->out_height; y++) {
            float *row = in_gradient + nearest(y, s->scale_y, s->offset, s->height) * s->width;
            for (int32_t x = 0; x < s->out_width; x++)
                row[nearest(x, s->scale_x, s->offset, s->width)] += *gradient++;
        }
}

/* Two neighbouring pixels, and how much of each. */
struct between {
    int32_t first, second;
    float of_first, of_second;
};

static struct between between(int32_t out, float scale, int32_t is_at_corners, int32_t size)
{
    float place = is_at_corners ? scale * (float)out : scale * ((float)out + 0.5f) - 0.5f;
    if (place < 0.0f)
        place = 0.0f;
    struct between found;
    found.first = (int32_t)place < size ? (int32_t)place : size - 1;
    found.second = found.first + (found.first < size - 1);
    found.of_second = place - (float)found.first;
    if (found.of_second > 1.0f)
        found.of_second = 1.0f;
    found.of_first = 1.0f - found.of_second;
    return found;
}

void poet_bilinear(float *out, const float *in, const struct poet_resize *shape)
{
    const struct poet_resize *s = shape;
    for (int32_t plane = 0; plane < s->planes; plane++, in += s->height * s->width)
        for (int32_t y = 0; y < s->out_height; y++) {
            struct between v = between(y, s->scale_y, s->is_at_corners, s->height);
            const float *above = in + v.first * s->width, *below = in + v.second * s->width;
            for (int32_t x = 0; x < s->out_width; x++) {
                struct between h = between(x, s->scale_x, s->is_at_corners, s->width);
                *out++ = v.of_first * (h.of_first * above[h.first] + h.of_second * above[h.second]) +
                         v.of_second * (h.of_first * below[h.first] + h.of_second * below[h.second]);
            }
        }
}

void poet_bilinear_gradient(float *in_gradient, const float *gradient,
                            const struct poet_resize *shape)
{
    const struct poet_resize *s = shape;
    poet_fill(in_gradient, 0.0f, s->planes * s->height * s->width);
    for (int32_t plane = 0; plane < s->planes; plane++, in_gradient += s->height * s->width)
        for (int32_t y = 0; y < s->out_height; y++) {
            struct between v = between(y, s->scale_y, s->is_at_corners, s->height);
            float *above = in_gradient + v.first * s->width;
            float *below = in_gradient + v.second * s->width;
            for (int32_t x = 0; x < s->out_width; x++, gradient++) {
                struct between h = between(x, s->scale_x, s->is_at_corners, s->width);
                above[h.first] += v.of_first * h.of_first * *gradient;
                above[h.second] += v.of_first * h.of_second * *gradient;
                below[h.first] += v.of_second * h.of_first * *gradient;
                below[h.second] += v.of_second * h.of_second * *gradient;
            }
        }
}
