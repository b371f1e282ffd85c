/* The gradient of a depthwise convolution of three by three taps and stride 2.
 *
 * Pixel c stands at u = c + pad. Where u is odd, the middle tap alone read it; where it is even, the
 * first tap and the last did, for neighbouring results. So pixels go in pairs, at 2j - 1 and 2j,
 * which need results j - 1 and j, and lines as well: nine products make four pixels, by weights that
 * stay in registers, and two more results make the next four.
 */
#include "conv.h"
#include "helium.h"

/* What a line is made of, or a column, in this order. */
struct pairs {
    int32_t is_headed;      /* a pixel that the first tap alone meets */
    int32_t pairs;
    int32_t middles, lasts; /* a pixel after the pairs that its middle tap meets, and its last */
    int32_t zeros;          /* that no tap meets */
};

/* Returns 0 for an axis that is not of this kind, or has fewer than two pairs. */
static int32_t find(struct pairs *found, const struct poet_axis *axis)
{
    if (axis->stride != 2 || axis->kernel != 3 || axis->dilation != 1 || axis->pad < 0 ||
        axis->pad > 1)
        return 0;
    int32_t rest = axis->extent - (axis->pad == 0), pairs = axis->size - 1;
    if (rest / 2 < pairs)
        pairs = rest / 2;
    rest -= 2 * pairs;
    found->is_headed = axis->pad == 0;
    found->pairs = pairs;
    found->middles = rest > 0;
    found->lasts = rest > 1;
    found->zeros = rest > 2 ? rest - 2 : 0;
    return pairs >= 2;
}

/* Two pixels next to each other, by the middle row of taps (or the only one), and two below them.
 * `left` and `right` are two results each: of this line, and of the next one. Sums begin as those
 * of many planes do. */
POET_INLINE void middle(const int lines, float *out, float *under, const float *left, const float *y)
{
    *out = 0.0f + y[4] * left[0];
    if (lines == 2) {
        float part = y[1] * left[1];
        *under = 0.0f + (part + y[7] * left[0]);
    }
}

POET_INLINE void last(const int lines, float *out, float *under, const float *left, const float *y)
{
    *out = 0.0f + y[5] * left[0];
    if (lines == 2) {
        float part = y[2] * left[1];
        *under = 0.0f + (part + y[8] * left[0]);
    }
}

POET_INLINE void first(const int lines, float *out, float *under, const float *right, const float *y)
{
    *out = 0.0f + y[3] * right[0];
    if (lines == 2) {
        float part = y[0] * right[1];
        *under = 0.0f + (part + y[6] * right[0]);
    }
}

POET_INLINE void pair(const int lines, float *out, float *under, const float *left,
                      const float *right, const float *y)
{
    float part = y[3] * right[0];
    middle(lines, out, under, left, y);
    out[1] = 0.0f + (part + y[5] * left[0]);
    if (lines == 2) {
        part = y[0] * right[1];
        part += y[2] * left[1];
        part += y[6] * right[0];
        part += y[8] * left[0];
        under[1] = 0.0f + part;
    }
}

POET_INLINE void take(const int lines, float *to, const float **from, const float **next)
{
    to[0] = *(*from)++;
    if (lines == 2)
        to[1] = *(*next)++;
}

/* A line of pixels, or two. */
POET_INLINE void line(const int lines, float *out, int32_t out_line, const float *from,
                      const float *next, const float *y, const struct pairs *p)
{
    float one[2], other[2], *under = out + out_line;
    take(lines, one, &from, &next);
    if (p->is_headed)
        first(lines, out++, under++, one, y);
    const float *end = out + 4 * (p->pairs / 2);
    do {
        take(lines, other, &from, &next);
        pair(lines, out, under, one, other, y);
        take(lines, one, &from, &next);
        pair(lines, out + 2, under + 2, other, one, y);
        out += 4;
        under += 4;
        POET_KEEP(out);
        POET_KEEP(under);
        POET_KEEP(from);
        POET_KEEP(next);
    } while (out != end);
    if (p->pairs % 2) {
        take(lines, other, &from, &next);
        pair(lines, out, under, one, other, y);
        out += 2;
        under += 2;
        one[0] = other[0];
        if (lines == 2)
            one[1] = other[1];
    }
    if (p->middles)
        middle(lines, out++, under++, one, y);
    if (p->lasts)
        last(lines, out++, under++, one, y);
    for (int32_t zeros = p->zeros; zeros > 0; zeros--) {
        *out++ = 0.0f;
        if (lines == 2)
            *under++ = 0.0f;
    }
}

static void one_line(float *out, const float *from, const float *weight, const struct pairs *p)
{
    float y[6] = {0.0f, 0.0f, 0.0f, weight[0], weight[1], weight[2]};
    line(1, out, 0, from, from, y, p);
}

static void two_lines(float *out, const float *from, const float *weight, const struct pairs *p,
                      int32_t count, int32_t out_line, int32_t from_line)
{
    float y[9];
#pragma GCC unroll 9
    for (int i = 0; i < 9; i++)
        y[i] = weight[i];
    for (; count > 0; count--) {
        line(2, out, out_line, from, from + from_line, y, p);
        out += 2 * out_line;
        from += from_line;
    }
}

static void plane(float *out, const float *from, const float *weight, const struct pairs *v,
                  const struct pairs *h, int32_t out_line, int32_t from_line)
{
    if (v->is_headed) {
        one_line(out, from, weight, h);
        out += out_line;
    }
    two_lines(out, from, weight, h, v->pairs, out_line, from_line);
    out += 2 * v->pairs * out_line;
    from += v->pairs * from_line;
    if (v->middles) {
        one_line(out, from, weight + 3, h);
        out += out_line;
    }
    if (v->lasts) {
        one_line(out, from, weight + 6, h);
        out += out_line;
    }
    for (int32_t zeros = v->zeros * out_line; zeros > 0; zeros--)
        *out++ = 0.0f;
}

int32_t poet_conv_planes(float *out, const float *from, const float *weight,
                         const struct poet_walk *walk, const struct poet_axis *down,
                         const struct poet_axis *across)
{
    struct pairs v, h;
    if (POET_HELIUM && poet_helium_lines(out, from, weight, walk, down, across))
        return 1;
    if (!down->is_backward || !find(&v, down) || !find(&h, across))
        return 0;
    for (int32_t channel = walk->channels; channel > 0; channel--) {
        plane(out, from, weight, &v, &h, across->extent, across->size);
        out += walk->out_plane;
        from += walk->from_channel;
        weight += walk->channel;
    }
    return 1;
}
