"""Arena: an address for every block, so that no two that are alive at once overlap.

What is alive throughout lies lowest. The others must fit below a height: each is put where it is
free for all of its life, the largest and longest first, and what found no room is put where it
overlaps least, whatever lay there is taken out and looks for a place of its own, the largest first.
What was forced in weighs more from then on, so that the search goes on elsewhere. A search that
succeeds does so soon: one that has not begins anew with other random numbers. The height begins
with what is alive at most, which no arena is below, and rises until all have an address.

`check` trusts none of this: it goes through the ticks and compares all that is alive. So are the
addresses checked that a plan brings along.
"""

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from poet.errors import PoetError
from poet.firmware.place.lifetimes import Block, Lifetimes, lifetimes
from poet.native import COMPILERS, built
from poet.values.plan import Plan

WORK = 12_000_000
"""Rivals that are looked at, at the most, in one search. Counted, not timed: the same plan gives
the same addresses."""
_MOST_STEPS = 40_000
_HEIGHTS = (
    1.0,
    1.001,
    1.0025,
    1.005,
    1.01,
    1.015,
    1.02,
    1.03,
    1.05,
    1.08,
    1.12,
    1.2,
    1.3,
    1.5,
    2.0,
)
"""Of what is alive at most."""
_SEARCHES, _FEW = 16, 3
"""Searches below a height: as many where all that fits is as good, few elsewhere."""
Numbers = np.ndarray[Any, Any]
_SOURCE = Path(__file__).with_name("csrc") / "place.c"


class Placement(msgspec.Struct, frozen=True):
    """Addresses, one for each block, and the size of the whole."""

    offsets: tuple[int, ...]
    arena_bytes: int


class Placed(msgspec.Struct, frozen=True):
    """What a plan has in RAM, and when; and an address for all of it."""

    lives: Lifetimes
    placement: Placement


def placed(plan: Plan, limit: int | None) -> Placed:
    """Addresses for all that a plan has in RAM: its own, if it has them; else new ones, for which
    the arena may come out above the limit."""
    lives = lifetimes(plan)
    if plan.arena is None:
        return Placed(lives, place(lives.blocks, 2**62 if limit is None else limit))
    found = Placement(plan.arena.offsets, plan.arena.nbytes)
    try:
        check(lives.blocks, found, found.arena_bytes)
    except PoetError as error:
        raise PoetError(
            f"the plan's addresses are not those of its tensors: {error}. Plan again"
        ) from None
    return Placed(lives, found)


def least_bytes(blocks: Sequence[Block]) -> int:
    """The most that is alive at one tick, alignment counted: no arena is smaller."""
    change: dict[int, int] = {}
    for block in blocks:
        for first, last in block.spans:
            change[first] = change.get(first, 0) + block.padded
            change[last + 1] = change.get(last + 1, 0) - block.padded
    live = most = 0
    for tick in sorted(change):
        live += change[tick]
        most = max(most, live)
    return most


def place(blocks: Sequence[Block], limit: int, work: int = WORK, seed: int = 0) -> Placement:
    """The smallest arena found: within `limit` bytes if addresses are found for that."""
    rivals = _rivals(blocks)
    offsets, bottom = [0] * len(blocks), 0
    for n, block in enumerate(blocks):
        if block.nbytes and len(rivals[n]) == len(blocks) - 1:
            offsets[n] = -(-bottom // block.alignment) * block.alignment
            bottom = offsets[n] + block.padded
    rest = [n for n in range(len(blocks)) if len(rivals[n]) < len(blocks) - 1]
    if not rest:
        return Placement(tuple(offsets), bottom)
    alignment = max(blocks[n].alignment for n in rest)
    bottom = -(-bottom // alignment) * alignment
    number = {n: at for at, n in enumerate(rest)}
    search = _Search(
        [blocks[n] for n in rest],
        [[number[other] for other in rivals[n] if other in number] for n in rest], work, seed,
    )  # fmt: skip
    least = least_bytes([blocks[n] for n in rest])
    for height, searches in _heights(least, limit - bottom):
        found = search.below(height, searches)
        if found is not None:
            for n, offset in zip(rest, found, strict=True):
                offsets[n] = bottom + offset
            top = max(offsets[n] + blocks[n].padded for n in range(len(blocks)))
            return Placement(tuple(offsets), top)
    raise AssertionError("one on the other, all have a place")


def _heights(least: int, limit: int) -> Iterator[tuple[int, int]]:
    """Heights to try in turn, and how many searches each is worth."""
    tried = [int(factor * least) for factor in _HEIGHTS]
    yield from ((height, _FEW) for height in tried if height < limit)
    if tried[0] <= limit < tried[-1]:
        yield limit, _SEARCHES
    yield from ((height, _FEW) for height in tried if height > limit)
    yield 2**62, 1


class _Search:
    """The blocks as the search in C takes them."""

    def __init__(
        self, blocks: Sequence[Block], rivals: list[list[int]], work: int, seed: int
    ) -> None:
        library = built(_SOURCE)
        if library is None:
            known = ", ".join(COMPILERS)
            raise PoetError(f"no C compiler among {known} could build the search for addresses")
        self._search, self._count, self._seed = library.poet_place, len(blocks), seed
        self._search.restype = ctypes.c_int64
        met = sum(map(len, rivals))
        self._steps = min(_MOST_STEPS, work * len(blocks) // max(1, met))
        ranks = [(block.padded * _life(block), block.padded) for block in blocks]
        order = sorted(range(len(blocks)), key=ranks.__getitem__, reverse=True)
        self._arrays = [
            _array([block.padded for block in blocks]),
            _array([block.alignment for block in blocks]),
            _array([0, *np.cumsum([len(each) for each in rivals])], np.int32),
            _array([n for each in rivals for n in each], np.int32),
            _array(order, np.int32),
        ]

    def below(self, height: int, searches: int) -> list[int] | None:
        """Addresses below a height, if one of so many searches finds them."""
        offsets = _array([0] * self._count)
        for nth in range(searches):
            left = self._search(
                ctypes.c_int32(self._count), *map(_pointer, self._arrays), _pointer(offsets),
                ctypes.c_int64(height), ctypes.c_int64(self._steps),
                ctypes.c_uint64(self._seed * searches + nth),
            )  # fmt: skip
            if left < 0:
                raise PoetError("there is not enough memory to place the arena")
            if left == 0:
                return [int(offset) for offset in offsets]
        return None


def _array(values: Sequence[int], dtype: type = np.int64) -> Numbers:
    return np.array(values, dtype=dtype)


def _pointer(array: Numbers) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _rivals(blocks: Sequence[Block]) -> list[list[int]]:
    """For each block those that are alive at some tick together with it."""
    events = sorted(
        [(first, 1, n) for n, block in enumerate(blocks) for first, _ in block.spans]
        + [(last + 1, 0, n) for n, block in enumerate(blocks) for _, last in block.spans]
    )
    met: list[set[int]] = [set() for _ in blocks]
    alive: set[int] = set()
    for _, begins, n in events:
        if begins:
            for other in alive:
                met[other].add(n)
            met[n] |= alive
            alive.add(n)
        else:
            alive.discard(n)
    return [sorted(others - {n}) for n, others in enumerate(met)]


def _life(block: Block) -> int:
    return sum(last - first + 1 for first, last in block.spans)


def check(blocks: Sequence[Block], placement: Placement, limit: int) -> None:
    """Refuse a placement in which two live blocks overlap, or that is larger than `limit`."""
    if placement.arena_bytes > limit:
        raise PoetError(f"the arena takes {placement.arena_bytes:,} bytes; its limit is {limit:,}")
    if len(placement.offsets) != len(blocks):
        raise PoetError(
            f"there are {len(placement.offsets):,} addresses for {len(blocks):,} blocks of RAM"
        )
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for n, block in enumerate(blocks):
        offset = placement.offsets[n]
        if offset < 0 or offset % block.alignment:
            raise PoetError(f"{block.name} lies at {offset}, which is no multiple of its alignment")
        if offset + block.nbytes > placement.arena_bytes:
            raise PoetError(f"{block.name} reaches past the end of the arena")
        for first, last in block.spans:
            begins.setdefault(first, []).append(n)
            ends.setdefault(last + 1, []).append(n)
    alive: set[int] = set()
    for tick in sorted(begins.keys() | ends.keys()):
        alive -= set(ends.get(tick, ()))
        alive |= set(begins.get(tick, ()))
        reach, tallest = 0, None
        for n in sorted(alive, key=lambda n: placement.offsets[n]):
            if not blocks[n].nbytes:
                continue
            if tallest is not None and placement.offsets[n] < reach:
                raise PoetError(
                    f"{blocks[tallest].name} and {blocks[n].name} overlap in the arena "
                    f"at tick {tick}"
                )
            if placement.offsets[n] + blocks[n].nbytes > reach:
                reach, tallest = placement.offsets[n] + blocks[n].nbytes, n
