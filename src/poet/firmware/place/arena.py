"""Arena: an address for every block, so that no two that are alive at once overlap.

Blocks are placed one after the other at the lowest address that is free for all of their life.
The order decides how high the arena gets: a block that comes late has to take what is left. Orders
by size, by size times life and by life are tried first; then simulated annealing moves blocks
forward in the order, those first that reach above what is alive at most. It goes by the sum of all
that reaches above it, since the height alone would not tell a step in the right direction.

`check` trusts none of this: it goes through the ticks and compares all that is alive.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from poet.errors import PoetError
from poet.firmware.place.lifetimes import Block, Lifetimes, lifetimes
from poet.native import COMPILERS, built
from poet.values.plan import Plan

TRIES = 120_000
"""Orders that are tried at most. Counted, not timed: the same plan gives the same addresses."""
_PAIRS = 20_000
"""So many pairs of blocks that meet are tried so often; where there are more, it is less."""
_GOOD = 0.02
"""How far above the least an arena may be that is within its limit, and is not searched further."""
_ENOUGH = 12_000
"""Orders that are tried where the arena is small enough already."""
_WARMTH = 0.02
"""How much worse an order may be at first and still be taken, as a share of the first excess."""
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
    """Addresses for all that a plan has in RAM; the arena may come out above the limit."""
    lives = lifetimes(plan)
    return Placed(lives, place(lives.blocks, 2**62 if limit is None else limit))


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


def place(blocks: Sequence[Block], limit: int, tries: int = TRIES, seed: int = 0) -> Placement:
    """The smallest arena found; the search ends early once it is within `limit` bytes."""
    library = built(_SOURCE)
    if library is None:
        known = ", ".join(COMPILERS)
        raise PoetError(f"no C compiler among {known} could build the search for addresses")
    search = library.poet_place
    search.restype = ctypes.c_int64
    rivals = _rivals(blocks)
    count, least = len(blocks), least_bytes(blocks)
    tries = min(tries, tries * _PAIRS // max(1, sum(map(len, rivals)) // 2))
    good = min(limit, int((1 + _GOOD) * least))
    sizes = _array([block.padded for block in blocks])
    alignments = _array([block.alignment for block in blocks])
    starts = _array([0, *np.cumsum([len(each) for each in rivals])], np.int32)
    flat = _array([n for each in rivals for n in each], np.int32)
    best: Placement | None = None
    for key in _KEYS:
        ranks = [key(block) for block in blocks]
        order = _array(sorted(range(count), key=ranks.__getitem__, reverse=True), np.int32)
        offsets = _array([0] * count)
        top = search(
            ctypes.c_int32(count), _pointer(sizes), _pointer(alignments), _pointer(starts),
            _pointer(flat), ctypes.c_int64(least), ctypes.c_int64(limit), ctypes.c_int64(good),
            _pointer(order), _pointer(offsets), ctypes.c_int64(tries // len(_KEYS)),
            ctypes.c_int64(_ENOUGH // len(_KEYS)), ctypes.c_double(_WARMTH), ctypes.c_uint64(seed),
        )  # fmt: skip
        if top < 0:
            raise PoetError("there is not enough memory to place the arena")
        if best is None or top < best.arena_bytes:
            best = Placement(tuple(map(int, offsets)), top)
        if best.arena_bytes == least or best.arena_bytes <= good:
            break
    assert best is not None
    return best


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


_KEYS: tuple[Callable[[Block], tuple[int, ...]], ...] = (
    lambda block: (block.padded, _life(block)),
    lambda block: (block.padded * _life(block), block.padded),
    lambda block: (_life(block), block.padded),
)


def check(blocks: Sequence[Block], placement: Placement, limit: int) -> None:
    """Refuse a placement in which two live blocks overlap, or that is larger than `limit`."""
    if placement.arena_bytes > limit:
        raise PoetError(f"the arena takes {placement.arena_bytes:,} bytes; its limit is {limit:,}")
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
