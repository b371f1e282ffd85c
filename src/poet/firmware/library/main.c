/* An example of the library: trains on the samples of the card, as many steps as it asks for, and
 * says what happened. A board is four functions and a counter of instructions (board.h). */
#include <stddef.h>

#include "board.h"
#include "poet.h"

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

static uint64_t count_instructions(void *user)
{
    (void)user;
    return board_instructions();
}

static void put(const char *text)
{
    board_log(text);
}

static void log_text(void *user, const char *text)
{
    (void)user;
    put(text);
}

static void put_number(uint64_t number)
{
    char digits[21];
    int at = 20;
    digits[at] = 0;
    do {
        digits[--at] = (char)('0' + (int)(number % 10));
        number /= 10;
    } while (number != 0);
    put(digits + at);
}

static void put_bits(uint32_t bits)
{
    char digits[9];
    for (int i = 7; i >= 0; i--, bits >>= 4)
        digits[i] = "0123456789abcdef"[bits & 15];
    digits[8] = 0;
    put(digits);
}

static void put_pair(const char *name, uint64_t number)
{
    put(name);
    put_number(number);
}

/* What main calls between steps: inside of it, it would lie on the stack during them. */
#define APART __attribute__((noinline))

static APART int fail(const struct poet *net, enum poet_error error)
{
    put("error: ");
    put(poet_error_text(error));
    int64_t index;
    int32_t extent;
    if (error == POET_ERROR_INDEX && poet_bad_index(net, &index, &extent) == POET_OK) {
        put(index < 0 ? ": -" : ": ");
        put_number(index < 0 ? 0u - (uint64_t)index : (uint64_t)index);
        put_pair("; it knows 0 to ", (uint64_t)(extent - 1));
    }
    uint32_t op;
    if (error == POET_ERROR_CHECK && poet_failed_check(net, &op) == POET_OK)
        put_pair(": that of op ", op);
    put("\n");
    return 1;
}

static APART void report(const struct poet *net, uint32_t number, float loss, uint64_t instructions)
{
    const struct poet_counts *counts = &net->counts;
    union {
        float value;
        uint32_t bits;
    } said = {.value = loss};
    put_pair("step ", number);
    put(" loss ");
    put_bits(said.bits);
    put_pair(" instructions ", instructions);
    put_pair(" page_ins ", counts->page_ins);
    put_pair(" ", counts->page_in_bytes);
    put_pair(" page_outs ", counts->page_outs);
    put_pair(" ", counts->page_out_bytes);
    put_pair(" streamed_in ", counts->streamed_in_bytes);
    put_pair(" streamed_out ", counts->streamed_out_bytes);
    put_pair(" peak ", counts->peak_bytes);
    put_pair(" stack ", board_stack_used());
    put_pair(" sectors_read ", counts->sectors_read);
    put_pair(" sectors_written ", counts->sectors_written);
    put("\n");
}

/* The third sector of the card, which is this program's own: when to stop, and the samples there
 * are. */
struct order {
    char magic[8];
    uint32_t stop_at, samples;
};
enum { ORDER_AT = 1024 };

int main(void)
{
    static struct poet net;
    static const struct poet_io io = {.read = read_card,
                                      .write = write_card,
                                      .clock = count_instructions,
                                      .log = log_text};
    struct order order;
    uint32_t number = 0;
    enum poet_error error = poet_init(&net, &io);
    if (error == POET_OK && board_read(ORDER_AT, &order, sizeof order) != 0)
        error = POET_ERROR_READ;
    if (error == POET_OK && order.samples == 0)
        error = POET_ERROR_NO_SAMPLE;
    if (error == POET_OK)
        error = poet_get_steps(&net, &number);
    for (; error == POET_OK && number < order.stop_at; number++) {
        float loss = 0.0f;
        uint64_t began = board_instructions();
        error = poet_train_stored(&net, number % order.samples, &loss);
        if (error == POET_OK)
            report(&net, number + 1, loss, board_instructions() - began);
    }
    if (error == POET_OK)
        error = poet_save(&net);
    int code = error == POET_OK ? 0 : fail(&net, error);
    if (code == 0)
        put("done\n");
    board_exit(code);
    return code;
}
