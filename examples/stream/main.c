/* Learns from a stream while it is used: each sample of a sensor is first answered, then learned.
 *
 * The "sensor" draws an image of eight rows of eight pixels, of which one row is bright; which one is
 * to be told. Built with a folder that `poet emit` wrote: make MAIN=../examples/stream/main.c run
 */
#include <stddef.h>

#include "board.h"
#include "network.h"
#include "poet.h"

enum { ROWS = 8, COLUMNS = 8, CLASSES = 10, STEPS = 240, LAST = 60 };

_Static_assert(POET_INPUTS == 2 && POET_OUTPUTS == 1, "a picture and a label in, scores out");
_Static_assert(POET_INPUT_0_BYTES == ROWS * COLUMNS * sizeof(float), "the size of a picture");
_Static_assert(POET_OUTPUT_0_BYTES == CLASSES * sizeof(float), "a score for each class");

static struct poet net;

/* ---- the sensor: the same sample for the same number, so that a power cut changes nothing ---- */

static uint32_t mixed(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static int64_t label_of(uint32_t number)
{
    return mixed(number) % ROWS;
}

static float pixel_of(uint32_t number, uint32_t at)
{
    float noise = (float)(mixed(number * 64u + at + 7u) >> 8) / 16777216.0f - 0.5f;
    return noise + (at / COLUMNS == (uint32_t)label_of(number) ? 1.0f : 0.0f);
}

static int sample(void *user, uint32_t step, uint32_t input, uint32_t first, void *to,
                  uint32_t count)
{
    (void)user;
    if (input == 1) {
        *(int64_t *)to = label_of(step);
        return first != 0 || count != sizeof(int64_t);
    }
    float *pixels = to;
    for (uint32_t i = 0; i < count / sizeof *pixels; i++)
        pixels[i] = pixel_of(step, first / (uint32_t)sizeof *pixels + i);
    return 0;
}

/* ---- the card, through what the board has for it ---- */

static int read_card(void *user, uint32_t offset, void *to, uint32_t count)
{
    (void)user;
    return board_read(offset, to, count);
}

static int write_card(void *user, uint32_t offset, const void *from, uint32_t count)
{
    (void)user;
    return board_write(offset, from, count);
}

static void put_number(const char *before, uint32_t number, const char *after)
{
    char digits[11];
    int at = 10;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    board_log(before);
    board_log(digits + at);
    board_log(after);
}

/* Whether the network says of this sample what it is. */
static enum poet_error ask(uint32_t number, uint32_t *is_right)
{
    static float pixels[ROWS * COLUMNS], scores[CLASSES];
    const void *inputs[POET_INPUTS] = {pixels, NULL};
    void *outputs[POET_OUTPUTS] = {scores};
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
        pixels[i] = pixel_of(number, i);
    enum poet_error error = poet_infer(&net, inputs, outputs);
    int best = 0;
    for (int i = 1; i < CLASSES; i++)
        if (scores[i] > scores[best])
            best = i;
    *is_right = best == label_of(number);
    return error;
}

int main(void)
{
    static const struct poet_io io = {.read = read_card, .write = write_card, .sample = sample};
    uint32_t step = 0, is_right, early = 0, late = 0;
    enum poet_error error = poet_init(&net, &io);
    if (error == POET_OK)
        error = poet_get_steps(&net, &step);
    for (; error == POET_OK && step < STEPS; step++) {
        error = ask(step, &is_right);
        early += step < LAST && is_right;
        late += step >= STEPS - LAST && is_right;
        if (error == POET_OK)
            error = poet_train_next(&net, NULL);
    }
    if (error == POET_OK)
        error = poet_save(&net);
    if (error != POET_OK) {
        board_log("error: ");
        board_log(poet_error_text(error));
        board_log("\n");
        board_exit(1);
    }
    put_number("right of the first 60: ", early, "\n");
    put_number("right of the last 60: ", late, "\n");
    board_exit(0);
    return 0;
}
