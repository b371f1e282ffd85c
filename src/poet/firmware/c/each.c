/* Functions of single elements over whole tensors of any layout, and sums of such: losses. */
#include "layers.h"

enum { PART = 32 }; /* terms that are summed before they are added to the sum */

/* An element of a row, or 1 where there is no tensor. */
POET_INLINE float element(const float *row, const struct poet_view *view, int32_t i)
{
    return row == NULL ? 1.0f : row[i * view->stride[3]];
}

POET_INLINE const float *row_of(const float *tensor, int32_t at)
{
    return tensor == NULL ? NULL : tensor + at;
}

void poet_each(float *out, poet_function *function, const float *x, const float *y, const float *z,
               const struct poet_numbers *numbers, const struct poet_view *out_view,
               const struct poet_view *x_view, const struct poet_view *y_view, const struct poet_view *z_view)
{
    POET_FOR_ROWS(out_view)
    {
        float *to = out + POET_ROW(out_view);
        const float *xs = row_of(x, POET_ROW(x_view)), *ys = row_of(y, POET_ROW(y_view));
        const float *zs = row_of(z, POET_ROW(z_view));
        for (int32_t i = 0; i < out_view->size[3]; i++)
            to[i * out_view->stride[3]] = function(element(xs, x_view, i), element(ys, y_view, i),
                                                   element(zs, z_view, i), numbers->value);
    }
}

void poet_loss(float *out, poet_function *term, const float *in, const float *target,
               const float *weight, const float *positive, const struct poet_loss *shape)
{
    float total = 0.0f, part = 0.0f;
    int32_t count = 0;
    POET_FOR_ROWS(&shape->in)
    {
        const float *xs = in + POET_ROW(&shape->in), *ys = target + POET_ROW(&shape->target);
        const float *ws = row_of(weight, POET_ROW(&shape->weight));
        const float *ps = row_of(positive, POET_ROW(&shape->positive));
        for (int32_t i = 0; i < shape->in.size[3]; i++) {
            part += element(ws, &shape->weight, i) *
                    term(element(xs, &shape->in, i), element(ys, &shape->target, i),
                         element(ps, &shape->positive, i), shape->numbers.value);
            if (++count % PART == 0) {
                total += part;
                part = 0.0f;
            }
        }
    }
    *out = (total + part) / shape->divisor;
}

void poet_loss_gradient(float *out, poet_function *slope, const float *gradient, const float *in,
                        const float *target, const float *weight, const struct poet_loss *shape,
                        const struct poet_view *out_view, const struct poet_view *gradient_view)
{
    POET_FOR_ROWS(out_view)
    {
        float *to = out + POET_ROW(out_view);
        const float *gs = gradient + POET_ROW(gradient_view);
        const float *xs = in + POET_ROW(&shape->in), *ys = target + POET_ROW(&shape->target);
        const float *ws = row_of(weight, POET_ROW(&shape->weight));
        for (int32_t i = 0; i < out_view->size[3]; i++)
            to[i * out_view->stride[3]] =
                element(gs, gradient_view, i) / shape->divisor * element(ws, &shape->weight, i) *
                slope(element(xs, &shape->in, i), element(ys, &shape->target, i), 1.0f,
                      shape->numbers.value);
    }
}
