"""What both kinds of data share: which part is held out, the order of an epoch, bytes to numbers.

Randomness is `Random.random()` alone, whose numbers Python promises to keep from version to
version: a run that is resumed under another Python goes on with the data it would have seen.
"""

from collections.abc import Iterable
from random import Random
from typing import TypeVar

import torch
from torch import Tensor

Sample = TypeVar("Sample")
Example = tuple[Tensor, ...] | dict[str, Tensor]


def part(count: int, held_out: bool) -> range:
    """Of `count` things in order the last fifth, which is held out, or those before it."""
    border = count - count // 5
    return range(border, count) if held_out else range(border)


def shuffled(samples: Iterable[Sample], draw: Random) -> list[Sample]:
    return sorted(samples, key=lambda _: draw.random())


def numbers(raw: bytes) -> Tensor:
    """Bytes as whole numbers. Copied first: torch would hand on a tensor that must not change."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
