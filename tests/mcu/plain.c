/* Kernels against loops that say what they compute, in the order in which it is summed: the same
 * bits, for random shapes. Ends with 0, or with the number of what differs. */
#include "kernels.h"

#if __STDC_HOSTED__
#include <stdio.h>
#include <stdlib.h>
#define SAY(...) printf(__VA_ARGS__)
/* Each tensor by itself, so that a sanitizer sees what lies beside it. */
static float *room(int32_t count)
{
    float *made = malloc((size_t)(count > 0 ? count : 1) * sizeof(float));
    if (made == NULL)
        abort();
    return made;
}
static void leave(float *numbers)
{
    free(numbers);
}
#else
#define SAY(...) ((void)0)
static float memory[40000];
static int32_t used;
static float *room(int32_t count)
{
    float *made = memory + used;
    used += count;
    return used <= (int32_t)(sizeof memory / sizeof memory[0]) ? made : NULL;
}
static void leave(float *numbers)
{
    (void)numbers;
    used = 0; /* all of a case at once */
}
#endif

#ifndef CASES
#define CASES 400
#endif

static uint32_t state = 1;
static int32_t pick(int32_t least, int32_t most)
{
    state = state * 1664525u + 1013904223u;
    return least + (int32_t)((state >> 8) % (uint32_t)(most - least + 1));
}

/* Numbers of all sizes: in some cases products of them underflow. One in sixteen is a zero, of
 * either sign. */
static void draw(float *to, int32_t count, float scale)
{
    for (int32_t i = 0; i < count; i++) {
        float number = (float)pick(-9999, 9999) / 3777.0f;
        to[i] = pick(0, 15) == 0 ? 0.0f * number : number * scale;
    }
}

/* Something infinite among them: times the zeros of a padding it would be no number. */
static void spoil(float *to, int32_t count)
{
    if (pick(0, 5) == 0)
        to[pick(0, count - 1)] = pick(0, 1) ? __builtin_inff() : -__builtin_inff();
}

/* What is no number has many bits, of which processors choose some. */
static int differ(const float *a, const float *b, int32_t count)
{
    const uint32_t *x = (const void *)a, *y = (const void *)b;
    for (int32_t i = 0; i < count; i++)
        if (x[i] != y[i] && (a[i] == a[i] || b[i] == b[i]))
            return 1;
    return 0;
}

static void plain_conv(float *out, const float *in, const float *weight, const float *bias,
                       const struct poet_conv *s, int32_t is_more)
{
    int32_t ins = s->channels / s->groups, outs = s->out_channels / s->groups;
    for (int32_t n = 0; n < s->batch; n++)
        for (int32_t o = 0; o < s->out_channels; o++)
            for (int32_t y = 0; y < s->out_height; y++)
                for (int32_t x = 0; x < s->out_width; x++) {
                    float *to = out + ((n * s->out_planes + o) * s->out_height + y) * s->out_width + x;
                    float total = is_more ? *to : 0.0f;
                    for (int32_t i = 0; i < ins; i++) {
                        const float *from = in + (n * s->channels + o / outs * ins + i) * s->height * s->width;
                        const float *w = weight + (o * ins + i) * s->kernel_height * s->kernel_width;
                        float part = 0.0f;
                        for (int32_t ky = 0; ky < s->kernel_height; ky++)
                            for (int32_t kx = 0; kx < s->kernel_width; kx++) {
                                int32_t r = y * s->stride_y - s->pad_y + ky * s->dilation_y;
                                int32_t c = x * s->stride_x - s->pad_x + kx * s->dilation_x;
                                if (r >= 0 && r < s->height && c >= 0 && c < s->width)
                                    part += w[ky * s->kernel_width + kx] * from[r * s->width + c];
                            }
                        total += part;
                    }
                    *to = bias ? bias[o] + total : total;
                }
}

static void plain_gradient(float *to, const float *gradient, const float *weight,
                           const struct poet_conv *s, int32_t is_more)
{
    int32_t ins = s->channels / s->groups, outs = s->out_channels / s->groups;
    for (int32_t n = 0; n < s->batch; n++)
        for (int32_t i = 0; i < s->channels; i++)
            for (int32_t r = 0; r < s->height; r++)
                for (int32_t c = 0; c < s->width; c++) {
                    float *at = to + ((n * s->channels + i) * s->height + r) * s->width + c;
                    float total = is_more ? *at : 0.0f;
                    for (int32_t o = i / ins * outs; o < (i / ins + 1) * outs; o++) {
                        const float *from = gradient + (n * s->out_planes + o) * s->out_height * s->out_width;
                        const float *w = weight + (o * ins + i % ins) * s->kernel_height * s->kernel_width;
                        float part = 0.0f;
                        for (int32_t ky = 0; ky < s->kernel_height; ky++)
                            for (int32_t kx = 0; kx < s->kernel_width; kx++) {
                                int32_t y = r + s->pad_y - ky * s->dilation_y;
                                int32_t x = c + s->pad_x - kx * s->dilation_x;
                                if (y < 0 || x < 0 || y % s->stride_y || x % s->stride_x)
                                    continue;
                                y /= s->stride_y;
                                x /= s->stride_x;
                                if (y < s->out_height && x < s->out_width)
                                    part += w[ky * s->kernel_width + kx] * from[y * s->out_width + x];
                            }
                        total += part;
                    }
                    *at = total;
                }
}

/* In parts of whole rows, of 64 pixels or a little more. */
static void plain_weight_gradient(float *to, const float *gradient, const float *in,
                                  const struct poet_conv *s, int32_t is_more)
{
    int32_t ins = s->channels / s->groups, outs = s->out_channels / s->groups, apart = 1;
    while (apart * s->out_width < 64)
        apart++;
    for (int32_t o = 0; o < s->out_channels; o++)
        for (int32_t i = 0; i < ins; i++)
            for (int32_t ky = 0; ky < s->kernel_height; ky++)
                for (int32_t kx = 0; kx < s->kernel_width; kx++, to++) {
                    float total = is_more ? *to : 0.0f, part = 0.0f;
                    for (int32_t n = 0; n < s->batch; n++)
                        for (int32_t y = 0; y < s->out_height; y++) {
                            const float *g = gradient + ((n * s->out_planes + o) * s->out_height + y) * s->out_width;
                            int32_t r = y * s->stride_y - s->pad_y + ky * s->dilation_y;
                            const float *from = in + ((n * s->channels + o / outs * ins + i) * s->height + r) * s->width;
                            for (int32_t x = 0; x < s->out_width && r >= 0 && r < s->height; x++) {
                                int32_t c = x * s->stride_x - s->pad_x + kx * s->dilation_x;
                                if (c >= 0 && c < s->width)
                                    part += g[x] * from[c];
                            }
                            if ((y + 1) % apart == 0 || y + 1 == s->out_height) {
                                total += part;
                                part = 0.0f;
                            }
                        }
                    *to = total;
                }
}

static void plain_product(float *out, const float *a, const float *b, const float *row,
                          const struct poet_matmul *s, int32_t is_more)
{
    for (int32_t i = 0; i < s->m; i++)
        for (int32_t j = 0; j < s->n; j++)
            for (int32_t k = 0; k < s->k; k += s->block) {
                float sum = 0.0f, *to = out + i * s->out_row + j;
                for (int32_t at = k; at < s->k && at < k + s->block; at++)
                    sum += a[i * s->a_row + at * s->a_column] * b[at * s->b_row + j * s->b_column];
                if (k > 0 || is_more)
                    *to += sum;
                else
                    *to = row ? row[j] + sum : sum;
            }
}

/* A convolution, most of three by three; 0 if there is none of such a shape. A third are depthwise
 * ones of three by three, as most networks have them. */
static int shape_of(struct poet_conv *s)
{
    int32_t is_usual_wanted = pick(0, 2) == 0;
    int32_t ins = pick(1, 7), outs = pick(1, 9);
    *s = (struct poet_conv){.batch = pick(1, 2), .groups = pick(0, 2) ? 1 : pick(2, 3)};
    if (pick(0, 2) == 0) { /* depthwise */
        s->groups = pick(1, 5);
        ins = 1;
        outs = pick(0, 1) ? 1 : pick(1, 5);
    }
    s->channels = ins * s->groups;
    s->out_channels = outs * s->groups;
    s->out_planes = s->out_channels + (s->groups == 1 && pick(0, 3) == 0 ? pick(1, 3) : 0);
    s->height = pick(1, 11);
    s->width = pick(1, 19);
    s->kernel_height = pick(0, 2) ? 3 : pick(1, 4);
    s->kernel_width = pick(0, 2) ? 3 : pick(1, 4);
    s->stride_y = pick(0, 1) ? 1 : pick(1, 3);
    s->stride_x = pick(0, 1) ? s->stride_y : pick(1, 3);
    s->pad_y = pick(0, 2);
    s->pad_x = pick(0, 2);
    s->dilation_y = pick(0, 3) ? 1 : 2;
    s->dilation_x = pick(0, 3) ? 1 : pick(2, 3);
    if (is_usual_wanted) {
        s->groups = s->channels = s->out_channels = s->out_planes = pick(1, 5);
        s->kernel_height = s->kernel_width = 3;
        s->stride_x = s->stride_y = pick(1, 2);
        s->pad_x = s->pad_y = pick(0, 4) ? pick(0, 1) : pick(2, 4);
        s->dilation_x = s->dilation_y = 1;
        s->width = pick(1, 26);
    }
    s->block = 64;
    int32_t down = s->height + 2 * s->pad_y - s->dilation_y * (s->kernel_height - 1) - 1;
    int32_t across = s->width + 2 * s->pad_x - s->dilation_x * (s->kernel_width - 1) - 1;
    s->out_height = down / s->stride_y + 1;
    s->out_width = across / s->stride_x + 1;
    return down >= 0 && across >= 0;
}

static int convolutions(void)
{
    struct poet_conv s;
    while (!shape_of(&s))
        continue;
    int32_t image = s.batch * s.channels * s.height * s.width;
    int32_t result = s.batch * s.out_planes * s.out_height * s.out_width;
    int32_t weights = s.out_channels * (s.channels / s.groups) * s.kernel_height * s.kernel_width;
    float *x = room(image), *w = room(weights), *b = room(s.out_channels), *y = room(result);
    float *found = room(result), *gradient = room(image), *found_gradient = room(image);
    float *w_gradient = room(weights), *found_w_gradient = room(weights);
    float scale = pick(0, 3) ? 1.0f : 1e-19f;
    int32_t is_more = pick(0, 1), is_last = pick(0, 1), wrong = 0;
    draw(x, image, scale);
    draw(w, weights, scale);
    spoil(x, image);
    spoil(w, weights);
    draw(b, s.out_channels, scale * scale);
    draw(y, result, scale);
    for (int32_t i = 0; i < image; i++)
        gradient[i] = found_gradient[i] = (float)(i % 5) * scale * scale;
    plain_gradient(gradient, y, w, &s, is_more);
    poet_conv_input_gradient_part(found_gradient, y, w, &s, is_more);
    wrong |= differ(gradient, found_gradient, image) << 1;
    for (int32_t i = 0; i < weights; i++)
        w_gradient[i] = found_w_gradient[i] = (float)(i % 5) * scale * scale;
    plain_weight_gradient(w_gradient, y, x, &s, is_more);
    poet_conv_weight_gradient_part(found_w_gradient, y, x, &s, is_more);
    wrong |= differ(w_gradient, found_w_gradient, weights) << 3;
    for (int32_t i = 0; i < result; i++)
        found[i] = y[i] = (float)(i % 5) * scale * scale;
    plain_conv(y, x, w, is_last ? b : NULL, &s, is_more);
    poet_conv_part(found, x, w, b, &s, is_more, is_last);
    wrong |= differ(y, found, result);
    if (wrong)
        SAY("%d: batch %d groups %d, %d to %d, %dx%d, kernel %dx%d, stride %d %d, pad %d %d, "
            "dilation %d %d, more %d\n", wrong, s.batch, s.groups, s.channels, s.out_channels,
            s.height, s.width, s.kernel_height, s.kernel_width, s.stride_y, s.stride_x, s.pad_y,
            s.pad_x, s.dilation_y, s.dilation_x, is_more);
    leave(x), leave(w), leave(b), leave(y), leave(found), leave(gradient), leave(found_gradient);
    leave(w_gradient), leave(found_w_gradient);
    return wrong;
}

static int products(void)
{
    struct poet_matmul s = {.m = pick(0, 1) ? 1 : pick(1, 9), .n = pick(1, 30), .k = pick(1, 40)};
    int32_t a_turned = pick(0, 1), b_turned = pick(0, 1), wrong = 0;
    s.block = pick(0, 1) ? 64 : pick(1, 20);
    s.out_row = s.n + pick(0, 2);
    s.a_row = a_turned ? 1 : s.k;
    s.a_column = a_turned ? s.m : 1;
    s.b_row = b_turned ? 1 : s.n;
    s.b_column = b_turned ? s.k : 1;
    float *a = room(s.m * s.k), *b = room(s.k * s.n), *row = room(s.n);
    float *out = room(s.m * s.out_row), *found = room(s.m * s.out_row);
    float scale = pick(0, 3) ? 1.0f : 1e-19f;
    int32_t is_more = pick(0, 1), has_row = pick(0, 1);
    draw(a, s.m * s.k, scale);
    draw(b, s.k * s.n, scale);
    draw(row, s.n, scale * scale);
    for (int32_t i = 0; i < s.m * s.out_row; i++)
        out[i] = found[i] = (float)(i % 5) * scale * scale;
    plain_product(out, a, b, has_row ? row : NULL, &s, is_more);
    poet_matmul_part(found, a, b, has_row ? row : NULL, &s, is_more);
    wrong = differ(out, found, s.m * s.out_row) << 2;
    if (wrong)
        SAY("%d: %d %d %d, turned %d %d, block %d\n", wrong, s.m, s.n, s.k, a_turned, b_turned,
            s.block);
    leave(a), leave(b), leave(row), leave(out), leave(found);
    return wrong;
}

int main(void)
{
    int wrong = 0;
    for (int32_t n = 0; n < CASES && wrong == 0; n++)
        wrong = convolutions() | products();
    return wrong;
}
