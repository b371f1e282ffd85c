"""Space: what a call goes over, and which part of each operand a block of it needs.

An axis is something that a call repeats itself along: rows, columns, channels, products of a sum.
Each dimension of an operand follows an axis, or is needed whole. A block is a stretch of each axis;
of an operand it needs the `Piece` that follows from it. A result that does not follow an axis is a
sum over it, and blocks add to it one after the other.
"""

from collections.abc import Iterator
from itertools import product
from math import prod
from operator import mul
from typing import Any

import msgspec

from poet.calls.operands import Operand, row_major
from poet.calls.sizes import ITEM_BYTES


class Axis(msgspec.Struct, frozen=True):
    """So many places, in blocks of a multiple of `granule`, or of all that are left.

    `is_single`: in blocks of one place each. One that goes `within` another axis is summed over
    place by place of that one: if it has several blocks, that one has blocks of one place.
    """

    extent: int
    granule: int = 1
    is_single: bool = False
    within: int | None = None


class Along(msgspec.Struct, frozen=True):
    """A dimension that follows an axis: place p needs `width` elements from `p * step - before`."""

    axis: int
    step: int = 1
    before: int = 0
    width: int = 1


Reach = tuple[Along | None, ...]
"""What each dimension of an operand follows; None: it is needed whole."""


class Side(msgspec.Struct, frozen=True):
    """An operand as a call goes through it.

    `is_dense` says that the kernel takes it without gaps only; `is_unread` that of a tensor only
    the shape matters. Of one that is `named_by` an argument, its first dimension is not followed in
    order: each place of the axis has an index there.
    """

    operand: Operand
    reach: Reach
    is_dense: bool = True
    is_unread: bool = False
    named_by: str | None = None

    @property
    def axes(self) -> frozenset[int]:
        return frozenset(along.axis for along in self.reach if along is not None)


class Stretch(msgspec.Struct, frozen=True):
    """A part of an axis, or of a dimension."""

    start: int
    size: int


class Piece(msgspec.Struct, frozen=True):
    """A block of an operand: where it begins, its extents, and what of it lies outside."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    outside: tuple[int, ...]
    """For each dimension how many places before the first there are none of (padding)."""


class Space(msgspec.Struct, frozen=True):
    """Axes, and the sides of a call: what it reads, by the argument's name, and what it makes."""

    axes: tuple[Axis, ...]
    reads: dict[str, Side]
    writes: tuple[Side | None, ...]
    arguments: dict[str, Any] = {}
    """Arguments that are others for a block than for the whole."""
    rooms: dict[str, Side] = {}
    """Memory in which blocks of a sum leave something for the next."""


def room(dtype: str, shape: tuple[int, ...], reach: Reach) -> Side:
    """Memory for what blocks of a sum leave for the next."""
    return Side(Operand(("room", 0), 0, shape, row_major(shape), dtype), reach)


def piece(side: Side, block: tuple[Stretch, ...]) -> Piece:
    """What a block of the axes needs of an operand."""
    start, shape, outside = [], [], []
    for extent, along in zip(side.operand.shape, side.reach, strict=True):
        first, size, missing = 0, extent, 0
        if along is not None:
            at = block[along.axis]
            first = at.start * along.step - along.before
            beyond = (at.start + at.size - 1) * along.step - along.before + along.width
            missing = max(0, -first)
            first = min(max(0, first), extent)
            size = max(0, min(beyond, extent) - first)
        start.append(first)
        shape.append(size)
        outside.append(missing)
    return Piece(tuple(start), tuple(shape), tuple(outside))


def dims_in_memory(operand: Operand) -> list[int]:
    """Dimensions from the widest apart to the closest; those of one place or repeated left out."""
    pairs = zip(operand.shape, operand.strides, strict=True)
    moving = [d for d, (extent, stride) in enumerate(pairs) if extent != 1 and stride != 0]
    return sorted(moving, key=lambda d: (-operand.strides[d], d))


def packed_strides(operand: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a block of an operand that lies without gaps, in the operand's own order."""
    strides, step = [0] * len(shape), 1
    for d in reversed(dims_in_memory(operand)):
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


def piece_bytes(operand: Operand, shape: tuple[int, ...]) -> int:
    """What a block takes when it lies without gaps; repeated elements lie there once."""
    return prod(shape[d] for d in dims_in_memory(operand)) * ITEM_BYTES[operand.dtype]


def runs(operand: Operand, shape: tuple[int, ...]) -> tuple[int, int]:
    """How many stretches of memory a block of an operand is, and the elements of each."""
    length, count, expected = 1, 1, 1
    for d in reversed(dims_in_memory(operand)):
        if operand.strides[d] == expected and count == 1:
            length *= shape[d]
            expected = operand.strides[d] * shape[d]
            if shape[d] != operand.shape[d]:
                expected = -1  # what follows is beyond a gap
        else:
            count *= shape[d]
            expected = -1
    return count, length


def in_memory(
    operand: Operand, start: tuple[int, ...], shape: tuple[int, ...]
) -> Iterator[tuple[int, int, int]]:
    """The stretches of memory that a block is, in bytes: where in the operand's tensor, how many,
    and where in a tile without gaps."""
    item = ITEM_BYTES[operand.dtype]
    begin = operand.offset + sum(map(mul, start, operand.strides))
    count, length = runs(operand, shape)
    if count == 1:
        yield begin * item, length * item, 0
        return
    dims = dims_in_memory(operand)
    while prod(shape[d] for d in dims) > count:
        dims.pop()
    for n, at in enumerate(product(*(range(shape[d]) for d in dims))):
        further = sum(place * operand.strides[d] for place, d in zip(at, dims, strict=True))
        yield (begin + further) * item, length * item, n * length * item
