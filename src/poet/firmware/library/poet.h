/* POET: a network that trains and infers on a device, in memory that was planned.
 *
 *     static struct poet net;
 *     static const struct poet_io io = {.read = sd_read, .write = sd_write};
 *
 *     enum poet_error error = poet_init(&net, &io);
 *     const void *batch[POET_INPUTS] = {image, label};
 *     float loss;
 *     error = poet_train_step(&net, batch, &loss);
 *
 * The network itself is in step.c; `network.h` says what goes into it and comes out of it.
 *
 * Every function gives an error code, and none ends the program. After an error from a step the
 * network in RAM may be half-way between two steps: `poet_load` takes it back to what was saved
 * last. Nothing is allocated. All state is in the `struct poet`, which is yours, and in objects of
 * the library: the arena, in which the tensors lie, the reports of a bad index and of a failed
 * check, and, of some networks, room for a sector. So there is one network in an image, one
 * `struct poet` is in use at a time, and one thread calls it.
 *
 * C11 without a library, or C++11.
 */
#ifndef POET_H
#define POET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef POET_COUNTERS
#define POET_COUNTERS 1 /* 0: what `struct poet_counts` counts is not counted, and costs nothing */
#endif

#define POET_SECTOR 512u /* bytes of the store that are read and written at once */

enum poet_error {
    POET_OK,
    POET_ERROR_ARGUMENT,      /* a pointer is NULL, or a number out of range */
    POET_ERROR_NOT_READY,     /* poet_init or poet_load has not ended well */
    POET_ERROR_READ,          /* the store cannot be read */
    POET_ERROR_WRITE,         /* the store cannot be written */
    POET_ERROR_NO_CARD,       /* this is not a card of POET */
    POET_ERROR_VERSION,       /* the card is of another version */
    POET_ERROR_DAMAGED,       /* what is on the card is not what was written there */
    POET_ERROR_OTHER_NETWORK, /* the card is of another network */
    POET_ERROR_INDEX,         /* the data has a label or an index that the network does not know */
    POET_ERROR_NO_SAMPLE,     /* the callback for samples says that there are no more */
    POET_ERROR_NO_INFERENCE,  /* this network has no inference: network.h says why */
    POET_ERROR_CHECK,         /* a check in the model or its loss fails for this batch */
    POET_ERROR_NO_WEIGHTS,    /* what a weight begins with is not known */
    POET_ERRORS
};

/* What the library asks of its surroundings. `read` and `write` must be there, the others may be
 * NULL. Whoever gives an int gives 0 if all went well. `user` is passed on as it is. */
struct poet_io {
    void *user;

    /* The store: a card, a flash chip, a file. Both return when it is done. `offset` and `count`
     * are multiples of POET_SECTOR, and `to` and `from` of 4. A sector whose writing a power cut
     * ends may hold anything; others must not. */
    int (*read)(void *user, uint32_t offset, void *to, uint32_t count);
    int (*write)(void *user, uint32_t offset, const void *from, uint32_t count);

    /* All that was written before is to be safe from a power cut when this returns. NULL: a write
     * is safe when it has returned. */
    int (*flush)(void *user);

    /* For `poet_train_next`: `count` bytes of an input of the next sample, from byte `first` on. It
     * is asked for each input in turn: at once, or, of an input that is kept on the card, piece by
     * piece. `step` is the number of the step, from 0: the same sample for the same number makes
     * training go on after a power cut as if there had been none. */
    int (*sample)(void *user, uint32_t step, uint32_t input, uint32_t first, void *to,
                  uint32_t count);

    /* Ticks since some moment, for POET_PROFILE. */
    uint64_t (*clock)(void *user);

    /* A piece of a line; lines end with "\n". For POET_PROFILE and POET_TRACE. */
    void (*log)(void *user, const char *text);

    /* Called after each op and each transfer: so often that no watchdog need bite. */
    void (*watchdog)(void *user);
};

/* What a step or an inference moved, in bytes, and the most bytes of tensors at once. */
struct poet_counts {
    uint32_t page_ins, page_outs, page_in_bytes, page_out_bytes;
    uint64_t streamed_in_bytes, streamed_out_bytes;
    uint32_t live_bytes, peak_bytes;
    uint32_t sectors_read, sectors_written; /* all that the store was asked for, commits included */
};

/* Everything but the counts is the library's own. */
struct poet {
    struct poet_io io;
    enum poet_error error;
    int is_ready;
    uint32_t steps, seed, save_every, record;
    uint32_t generation, saved_steps, stamp, journaled; /* of the card */
    uint32_t old, fresh;                                /* its two copies */
    double learning_rate;
    uint64_t began;
    struct poet_counts counts;
    uint32_t sector, state; /* what `buffer` holds */
    uint32_t held;          /* the sector that small tensors share and are being written to */
    uint32_t buffer[POET_SECTOR / 4];
};

/* Takes the network up where the store has it. `io` is copied. */
enum poet_error poet_init(struct poet *ctx, const struct poet_io *io);

/* What a new network begins with. `weight` gives `count` bytes of a parameter or buffer, from byte
 * `first` on, by its number in network.h, and 0 if all went well; it is asked for each that is on
 * the card, in pieces of at most 508 bytes, and its `user` is that of the `struct poet_io`. NULL:
 * they are as `poet emit --flash all` has put them into flash. Optimizer state begins as zero. */
struct poet_beginning {
    int (*weight)(void *user, uint32_t number, uint32_t first, void *to, uint32_t count);
    uint32_t seed; /* of dropout's masks */
    double learning_rate;
};

/* Makes the first POET_STORE_BYTES of the store the card of a new network, whatever is there, and
 * takes it up. A power cut meanwhile leaves what was there as it was, or no card, which `poet_init`
 * says (POET_ERROR_NO_CARD, or POET_ERROR_DAMAGED): then it is to be called again. */
enum poet_error poet_format(struct poet *ctx, const struct poet_io *io,
                            const struct poet_beginning *from);

/* A training step: forward, backward, update. `batch` has a pointer for each input of the step, in
 * the order of network.h; the inputs are row-major and copied before the step begins. `loss` may be
 * NULL. */
enum poet_error poet_train_step(struct poet *ctx, const void *const *batch, float *loss);

/* The same with a batch from the callback `sample`. */
enum poet_error poet_train_next(struct poet *ctx, float *loss);

/* The same with a sample that lies on the card, counted from 0. */
enum poet_error poet_train_stored(struct poet *ctx, uint32_t number, float *loss);

/* The forward pass alone, as the network is now: what the model returns, without its loss, and
 * without any change to the network. Dropout lets all through, and BatchNorm goes by its running
 * statistics, where it has any: as PyTorch's `model.eval()`. All else is as in the step. `inputs`
 * are those of a step; those that only training needs (POET_INPUT_n_INFERS is 0) may be NULL. Each
 * of `outputs`, POET_OUTPUTS of them, gets POET_OUTPUT_n_BYTES, row-major. */
enum poet_error poet_infer(struct poet *ctx, const void *const *inputs, void *const *outputs);

/* After it a power cut loses nothing until here. Networks whose parameters live on the card do this
 * at the end of each step by themselves; others every so many steps (poet_set_save_every). */
enum poet_error poet_save(struct poet *ctx);

/* For networks whose parameters live in RAM: saved after each step whose number is a multiple of
 * `steps`; 0: only by poet_save. It begins as `poet emit` was told. */
enum poet_error poet_set_save_every(struct poet *ctx, uint32_t steps);

/* Takes the network back to what was saved last. */
enum poet_error poet_load(struct poet *ctx);

/* The steps that the network has done, since it was new. */
enum poet_error poet_get_steps(const struct poet *ctx, uint32_t *steps);

/* For the steps to come. It is saved with the network. */
enum poet_error poet_set_learning_rate(struct poet *ctx, double learning_rate);
enum poet_error poet_get_learning_rate(const struct poet *ctx, double *learning_rate);

/* A parameter, buffer or piece of optimizer state, by its number in network.h. */
struct poet_weights {
    const char *name;
    uint32_t bytes, card, arena;
    int is_twin, is_state;       /* whether it lies in two copies; whether it is the optimizer's */
    uint32_t first, filled_with; /* of a new network: in flash, or a word everywhere */
};
extern const struct poet_weights poet_weights[];

/* `count` bytes of it, from byte `first` on, as they are after the last step. */
enum poet_error poet_get_weights(struct poet *ctx, uint32_t number, uint32_t first, void *to,
                                 uint32_t count);

/* What an error code says, in a few words. */
const char *poet_error_text(enum poet_error error);

/* The first bad index since poet_init or poet_load, and what the network knows: 0 to extent - 1;
 * extent is 0 where there was none. */
enum poet_error poet_bad_index(const struct poet *ctx, int64_t *index, int32_t *extent);

/* The op whose check was the first to fail since poet_init or poet_load, numbered as in step.c;
 * UINT32_MAX where none was. */
enum poet_error poet_failed_check(const struct poet *ctx, uint32_t *op);

#ifdef __cplusplus
}
#endif

#endif
