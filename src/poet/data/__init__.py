"""Small real data for every model of the zoo, so that `poet train` shows a loss that falls.

`batches` is an endless stream for training, `evaluation` some batches that training never sees,
`describe` one line about them. A batch has the structure, shapes and dtypes of the model's own
example, and lies on the CPU. What is asked of the model follows from what it is:

- image classifiers: which digit is this (`digits.py`),
- U-Net: which pixels are ink (`digits.py`),
- language models: the next byte of a book (`text.py`),
- text classifiers: is this passage of the book plain or enciphered (`text.py`).

The last fifth of the data is held out. The rest is shuffled anew each epoch, by the seed; batches
are cut from the epochs end to end, so that each is full, and a stream can begin at any batch.

This is not a library of data sets: nothing is downloaded, and nobody's own data is read. Where the
files are from, and whose they are, is in the README beside them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from poet.errors import MissingPackage, PoetError
from poet.zoo import MODELS, Spec, parse

if TYPE_CHECKING:
    from poet.data.parts import Example

__all__ = ["batches", "describe", "evaluation"]

_DIGITS = 10
_HIGHEST_BYTE = ord("z")


def batches(spec: Spec | str, seed: int = 0, *, start: int = 0) -> Iterator[Example]:
    """Training batches without end, from number `start` on; the same for the same seed."""
    if start < 0:
        raise PoetError(f"start is {start}, but batches are counted from 0. Try start=0.")
    return _stream(spec, held_out=False, seed=seed, start=start)


def evaluation(spec: Spec | str, count: int) -> Iterator[Example]:
    """`count` batches of held-out data, always the same; past the last sample it goes round."""
    if count < 0:
        raise PoetError(f"count is {count}, but one cannot take fewer than 0 batches.")
    return itertools.islice(_stream(spec, held_out=True, seed=0, start=0), count)


def describe(spec: Spec | str) -> str:
    """What the data is and what is asked of the model, in one line."""
    spec = parse(spec) if isinstance(spec, str) else spec
    if "seq" in spec.options:
        seq, vocab = spec.whole("seq"), spec.whole("vocab")
        folded = f" folded into {vocab - 1} tokens" if vocab <= _HIGHEST_BYTE else ""
        task = "plain or in ROT13" if "classes" in spec.options else "the next byte"
        return f"Alice's Adventures in Wonderland, {seq} bytes a sample{folded}: {task}"
    size, classes = spec.whole("size"), spec.whole("classes")
    which = "which digit" if classes >= _DIGITS else f"which digit, modulo {classes}"
    task = "which pixels are ink" if MODELS[spec.name].file == "unet" else which
    return f"handwritten digits (UCI) at {size}×{size} pixels: {task}"


def _stream(spec: Spec | str, *, held_out: bool, seed: int, start: int) -> Iterator[Example]:
    """Checks at once, and makes a batch when it is asked for."""
    spec = parse(spec) if isinstance(spec, str) else spec
    try:
        import torch

        from poet.data import digits, text
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingPackage(f"data for {spec.name}", "torch") from None
    source = text if "seq" in spec.options else digits
    batch = spec.whole("batch")

    def epoch(number: int) -> list[Any]:
        samples: list[Any] = source.epoch(spec, held_out, Random(f"{seed} {number}"))
        return samples

    def generate() -> Iterator[Example]:
        # Every epoch has as many samples, so that those before `start` need not be made.
        first, skipped = divmod(start * batch, len(epoch(0)))
        endless = itertools.chain.from_iterable(map(epoch, itertools.count(first)))
        samples = itertools.islice(endless, skipped, None)
        while True:
            taken = list(itertools.islice(samples, batch))
            with torch.device("cpu"):
                example: Example = source.collate(spec, taken)
            yield example

    return generate()
