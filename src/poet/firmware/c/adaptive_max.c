/* The largest of windows that cover an image as evenly as they can. */
#include "layers.h"

void poet_adaptive_max(float *out, int64_t *at, const float *in, const struct poet_pool *shape)
{
    const struct poet_pool *s = shape;
    for (int32_t plane = 0; plane < s->planes; plane++, in += s->height * s->width)
        for (int32_t oy = 0; oy < s->out_height; oy++) {
            int32_t top = oy * s->height / s->out_height;
            int32_t bottom = ((oy + 1) * s->height + s->out_height - 1) / s->out_height;
            for (int32_t ox = 0; ox < s->out_width; ox++) {
                int32_t left = ox * s->width / s->out_width;
                int32_t right = ((ox + 1) * s->width + s->out_width - 1) / s->out_width;
                int32_t best = top * s->width + left;
                for (int32_t y = top; y < bottom; y++)
                    for (int32_t x = left; x < right; x++) {
                        int32_t here = y * s->width + x;
                        if (in[here] > in[best] || in[here] != in[here])
                            best = here;
                    }
                *out++ = in[best];
                *at++ = best;
            }
        }
}
