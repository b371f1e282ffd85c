"""The program that every example is: the steps that were asked for, on the samples of the card.

C and C++ alike. What is around it, `read_store`, `write_store` and `say`, is the ecosystem's.
"""

from poet.firmware.packages.contents import Contents, filled


def training(contents: Contents) -> str:
    return filled(_TRAINING, samples=contents.samples, steps=contents.steps)


_TRAINING = """\
static const uint32_t SAMPLES = @samples@u, STEPS = @steps@u; /* of card.img */

static struct poet net;
static struct poet_io io;

/* Trains from where the store has the network until STEPS steps are done, and saves it. */
static enum poet_error train(void)
{
    uint32_t step = 0;
    io.read = read_store;
    io.write = write_store;
    enum poet_error error = poet_init(&net, &io);
    if (error == POET_OK)
        error = poet_get_steps(&net, &step);
    for (; error == POET_OK && step < STEPS; step++) {
        float loss = 0.0f;
        error = poet_train_stored(&net, step % SAMPLES, &loss);
        if (error == POET_OK)
            say(step + 1, loss);
    }
    return error == POET_OK ? poet_save(&net) : error;
}
"""
