"""A block of a call in PyTorch: what it may ask for, and the operator itself on pieces."""

from typing import Any, Protocol

import torch

from poet.calls.operands import Work
from poet.calls.pieces.space import Piece, Side, Space, Stretch
from poet.calls.pieces.ways import Part
from poet.tracer.arguments import target_of

Rates = dict[int, dict[str, float]]
"""Learning rate and step count of the updates, by the number of their calls."""
Block = dict[int, Stretch]


class Nest(Protocol):
    """The loops around a block, and the pieces that are there."""

    work: Work
    part: Part
    space: Space
    rates: Rates
    sums: dict[str, torch.Tensor]
    """What a sum has come to, until it is complete."""

    def piece(self, side: Side, at: Block) -> Piece: ...
    def read(self, name: str, at: Block) -> torch.Tensor: ...
    def write(self, number: int, at: Block) -> torch.Tensor | None: ...
    def argument(self, name: str) -> Any: ...
    def is_first(self, at: Block, *sums: int) -> bool: ...
    def is_last(self, at: Block, *sums: int) -> bool: ...
    def is_skipped(self, at: Block) -> bool: ...


def any_call(nest: Nest, at: Block) -> None:
    """The operator itself, on pieces."""
    work = nest.work
    given = {name: nest.read(name, at) for name in nest.space.reads}
    given |= {name: nest.argument(name) for name in work.arguments if name not in given}
    made: Any = target_of(work.kind)(**given)
    results = made if isinstance(made, tuple | list) else (made,)
    for number, result in enumerate(results):
        to = nest.write(number, at) if number < len(nest.space.writes) else None
        if to is not None:
            same = result.dim() == to.dim()
            to.copy_(result.expand(to.shape) if same else result.reshape(to.shape))


def put(to: torch.Tensor, made: torch.Tensor, is_more: bool) -> None:
    if is_more:
        to.add_(made)
    else:
        to.copy_(made)
