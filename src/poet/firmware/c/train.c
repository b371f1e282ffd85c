/* The loop around the step: opens the card, loads a sample, trains, and says what happened. */
#include "board.h"
#include "kernels.h"
#include "train.h"

/* The first sector of a card. Numbers are little-endian; the checksum is over all before it. */
struct header {
    char magic[8];
    uint32_t version, steps_to_do, steps_done, samples, data_at, seed;
    double learning_rate;
    char fingerprint[32];
    uint8_t unused[436];
    uint32_t checksum;
};

uint32_t poet_seed, poet_step, poet_record;
static uint32_t live, peak;
static uint32_t ins, outs, in_bytes, out_bytes;
static uint64_t streamed_in, streamed_out;

static void put(const char *text)
{
    board_log(text);
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

__attribute__((noreturn)) static void stop(void)
{
    board_exit(1);
    for (;;) {
    }
}

__attribute__((noreturn)) static void fail(const char *why)
{
    put("error: ");
    put(why);
    put("\n");
    stop();
}

void no_such_index(int64_t index, int32_t extent)
{
    put("error: the data has an index or a label of ");
    put(index < 0 ? "-" : "");
    put_number(index < 0 ? 0u - (uint64_t)index : (uint64_t)index);
    put("; the network knows 0 to ");
    put_number((uint64_t)(extent - 1));
    put("\n");
    stop();
}

static uint32_t checksum(const uint8_t *bytes, uint32_t count)
{
    uint32_t sum = 0xffffffffu;
    while (count-- > 0) {
        sum ^= *bytes++;
        for (int bit = 0; bit < 8; bit++)
            sum = (sum >> 1) ^ (0xedb88320u & (0u - (sum & 1)));
    }
    return ~sum;
}

static void load(uint32_t card, void *to, uint32_t count)
{
    if (count > 0 && board_read(card, to, count) != 0)
        fail("the card cannot be read");
}

static void save(uint32_t card, const void *from, uint32_t count)
{
    if (count > 0 && board_write(card, from, count) != 0)
        fail("the card cannot be written");
}

/* Built with -DPOET_TRACE, every transfer of a tile is said: where on the card, and how many bytes. */
static void trace(const char *verb, uint32_t card, uint32_t count)
{
#ifdef POET_TRACE
    put(verb);
    put_number(card);
    put(" ");
    put_number(count);
    put("\n");
#else
    (void)verb, (void)card, (void)count;
#endif
}

void page_in(void *to, uint32_t card, uint32_t count)
{
    take(count);
    load(card, to, count);
    ins++;
    in_bytes += count;
}

void page_out(const void *from, uint32_t card, uint32_t count)
{
    save(card, from, count);
    outs++;
    out_bytes += count;
}

void stream_in(void *to, uint32_t card, uint32_t count)
{
    load(card, to, count);
    trace("reads ", card, count);
    streamed_in += count;
}

void stream_out(const void *from, uint32_t card, uint32_t count)
{
    save(card, from, count);
    trace("writes ", card, count);
    streamed_out += count;
}

#define FOR_RUNS(s)                                                                                \
    for (uint32_t i = 0; i < (s)->count[0]; i++)                                                   \
        for (uint32_t j = 0; j < (s)->count[1]; j++)                                               \
            for (uint32_t k = 0; k < (s)->count[2]; k++)

#define RUN(s) (i * (s)->step[0] + j * (s)->step[1] + k * (s)->step[2])

void stream_in_runs(void *to, uint32_t card, const struct runs *shape)
{
    uint8_t *at = to;
    FOR_RUNS(shape)
    {
        stream_in(at, card + RUN(shape), shape->bytes);
        at += shape->bytes;
    }
}

void stream_out_runs(const void *from, uint32_t card, const struct runs *shape)
{
    const uint8_t *at = from;
    FOR_RUNS(shape)
    {
        stream_out(at, card + RUN(shape), shape->bytes);
        at += shape->bytes;
    }
}

void take(uint32_t count)
{
    live += count;
    if (live > peak)
        peak = live;
}

void give(uint32_t count)
{
    live -= count;
}

static void load_step(const struct header *card)
{
    poet_record = card->data_at + (card->steps_done % card->samples) * record_bytes;
    for (uint32_t i = 0; i < input_count; i++)
        load(poet_record + inputs[i].card, arena + inputs[i].arena, inputs[i].bytes);
    poet_step = card->steps_done + 1;
    if (rate_at != NOWHERE)
        *(double *)(void *)(arena + rate_at) = card->learning_rate;
    if (count_at != NOWHERE)
        *(int64_t *)(void *)(arena + count_at) = (int64_t)poet_step;
}

static void report_step(uint64_t instructions)
{
    put("step ");
    put_number(poet_step);
    put(" loss ");
    put_bits(loss_at == NOWHERE ? 0 : *(uint32_t *)(void *)(arena + loss_at));
    put(" instructions ");
    put_number(instructions);
    put(" page_ins ");
    put_number(ins);
    put(" ");
    put_number(in_bytes);
    put(" page_outs ");
    put_number(outs);
    put(" ");
    put_number(out_bytes);
    put(" streamed_in ");
    put_number(streamed_in);
    put(" streamed_out ");
    put_number(streamed_out);
    put(" peak ");
    put_number(peak);
    put(" stack ");
    put_number(board_stack_used());
    put("\n");
}

int main(void)
{
    static struct header card;
    load(0, &card, sizeof card);
    for (int i = 0; i < 8; i++)
        if (card.magic[i] != "POETCARD"[i])
            fail("this is not a card of POET");
    if (card.version != 1)
        fail("the card is of another version");
    if (card.checksum != checksum((const uint8_t *)&card, sizeof card - sizeof card.checksum))
        fail("the card's header is damaged");
    for (int i = 0; i < 32; i++)
        if (card.fingerprint[i] != fingerprint[i])
            fail("the card is of another network");
    if (card.samples == 0)
        fail("the card has no samples");
    poet_seed = card.seed;
    for (uint32_t i = 0; i < resident_count; i++)
        load(residents[i].card, arena + residents[i].arena, residents[i].bytes);
    for (uint32_t i = 0; i < card.steps_to_do; i++) {
        load_step(&card);
        live = peak = start_bytes;
        ins = outs = in_bytes = out_bytes = 0;
        streamed_in = streamed_out = 0;
        uint64_t began = board_instructions();
        step();
        uint64_t took = board_instructions() - began;
        card.steps_done++;
        report_step(took);
    }
    for (uint32_t i = 0; i < resident_count; i++)
        save(residents[i].card, arena + residents[i].arena, residents[i].bytes);
    card.checksum = checksum((const uint8_t *)&card, sizeof card - sizeof card.checksum);
    save(0, &card, sizeof card);
    put("done\n");
    board_exit(0);
    return 0;
}
