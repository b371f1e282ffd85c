"""A book, byte by byte: the first five chapters of "Alice's Adventures in Wonderland".

1. An epoch cuts the text, from a random place near its start, into passages of `seq` bytes.
2. A language model gets passages as they are, with themselves as labels: it shifts them itself.
   A classifier gets half of them in ROT13 (each letter replaced by the one 13 further round the
   alphabet) and is asked which: class 0 is plain, 1 enciphered, others do not occur. Letters are
   as frequent in one as others are in the other, so that a small model learns it in tens of steps,
   which it does not with questions about the order of letters.
3. A byte is its own token. Where the vocabulary is too small the bytes go round it, past 0, which
   is BERT's padding; some tokens then stand for several bytes.
"""

import gzip
from functools import cache
from pathlib import Path
from random import Random
from string import ascii_lowercase as lower
from string import ascii_uppercase as upper
from typing import NamedTuple

from poet.data.parts import Example, numbers, part, shuffled
from poet.zoo import Spec

_FILE = Path(__file__).with_name("alice.txt.gz")
_ROT13 = bytes.maketrans(
    (lower + upper).encode(), (lower[13:] + lower[:13] + upper[13:] + upper[:13]).encode()
)


class Passage(NamedTuple):
    """Where it starts, and whether it is enciphered."""

    start: int
    enciphered: bool


def epoch(spec: Spec, held_out: bool, draw: Random) -> list[Passage]:
    """The passages, in the order in which they are taken."""
    places, seq = part(len(_read()), held_out), spec.whole("seq")
    first = places.start + int(seq * draw.random())
    count = (len(places) + 1) // seq - 1  # as many fit from the last first place
    starts = range(first, first + count * seq, seq)
    if "classes" not in spec.options:
        return shuffled((Passage(start, False) for start in starts), draw)
    return shuffled([Passage(start, draw.random() < 0.5) for start in starts], draw)


def collate(spec: Spec, samples: list[Passage]) -> Example:
    text, seq = _read(), spec.whole("seq")
    passages = [text[one.start : one.start + seq] for one in samples]
    written = b"".join(
        passage.translate(_ROT13) if one.enciphered else passage
        for one, passage in zip(samples, passages, strict=True)
    )
    tokens = 1 + (numbers(written).view(-1, seq) - 1) % (spec.whole("vocab") - 1)
    if "classes" not in spec.options:
        return {"input_ids": tokens, "labels": tokens.clone()}
    return {"input_ids": tokens, "labels": numbers(bytes(one.enciphered for one in samples))}


@cache
def _read() -> bytes:
    return gzip.decompress(_FILE.read_bytes())
