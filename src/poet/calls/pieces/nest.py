"""Nests: loops over the blocks of a space, and what they move and hold.

An operand that lies in the store has a tile in RAM, the piece of it that a block needs. Its tile is
read when a loop moves on that it follows, so what moves depends on the order of the loops and on
the size of the blocks. `best_nest` looks for the nest that moves least with tiles of some bytes.
"""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import permutations
from math import prod

import msgspec

from poet.calls.pieces.space import Along, Axis, Side, Stretch, piece_bytes, runs

MOST_BLOCKS = 1 << 16
"""Along an axis: shorter blocks are of no use to anybody."""
RUN_BYTES = 512
"""What the start of a transfer is worth in bytes moved: a sector, and an SD card's latency."""


class Held(msgspec.Struct, frozen=True):
    """A side that has a tile.

    It is read from the store, written to it, or both, where it is updated in place; or neither: a
    gradient that an update uses up exists as a tile only, what is in RAM in another order than the
    kernel takes is copied, and a room (`is_room`) is nobody else's. A `result` must be whole before
    the next block begins.
    """

    side: Side
    is_read: bool = False
    is_written: bool = False
    is_result: bool = False
    over: int | None = None
    """The result that is written over it."""
    is_direct: bool = False
    """It is read straight to where the result lies: a row of a table."""
    is_room: bool = False

    @property
    def has_tile(self) -> bool:
        return not (self.is_direct or self.side.is_unread)


class Nest(msgspec.Struct, frozen=True):
    """Loops, from the outermost to the innermost, each over the blocks of an axis.

    `sizes` has the places of a block for every axis; axes of a single block have no loop.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]


def blocks_of(axis: Axis, size: int) -> Iterator[Stretch]:
    for start in range(0, axis.extent, size):
        yield Stretch(start, min(size, axis.extent - start))


def tile_bytes(side: Side, axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> int:
    """The most that a piece of a side takes."""
    return piece_bytes(side.operand, largest(side, axes, sizes))


def largest(side: Side, axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The extents that a tile has room for."""
    shape = []
    for extent, along in zip(side.operand.shape, side.reach, strict=True):
        if along is None:
            shape.append(extent)
        else:
            size = min(sizes[along.axis], axes[along.axis].extent)
            shape.append(min(extent, (size - 1) * along.step + along.width))
    if side.named_by is not None:
        shape[0] = 1
    return tuple(shape)


def moved(side: Side, axes: tuple[Axis, ...], nest: Nest) -> tuple[int, int]:
    """Bytes and transfers that the tiles of a side take, one way, in all blocks."""
    nbytes, transfers = _moved_once(side, axes, nest.sizes)
    times = _times(side.axes, axes, nest)
    return times * nbytes, times * transfers


def _times(own: frozenset[int], axes: tuple[Axis, ...], nest: Nest) -> int:
    """How often a side that follows these axes is gone through."""
    inner = max((n for n, a in enumerate(nest.order) if a in own), default=-1)
    return prod(
        -(-axes[a].extent // nest.sizes[a]) for a in nest.order[: inner + 1] if a not in own
    )


def _moved_once(side: Side, axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> tuple[int, int]:
    """Bytes and transfers of all tiles of a side, each moved once."""
    if side.is_unread:
        return 0, 0
    shape, blocks = [], 1
    for extent, along in zip(side.operand.shape, side.reach, strict=True):
        if along is None:
            shape.append(extent)
        else:
            axis, size = axes[along.axis], sizes[along.axis]
            shape.append(_covered(axis, size, along, extent))
            blocks *= -(-axis.extent // size)
    if side.named_by is not None:
        along = side.reach[0]
        assert along is not None
        shape[0] = axes[along.axis].extent
    count, _ = runs(side.operand, largest(side, axes, sizes))
    return piece_bytes(side.operand, tuple(shape)), blocks * count


@cache
def _covered(axis: Axis, size: int, along: Along, extent: int) -> int:
    """The elements of a dimension that all blocks of an axis need, each counted for itself."""
    if along.before == 0 and along.step == along.width:
        return min(extent, axis.extent * along.step)  # they do not overlap
    total = 0
    for at in blocks_of(axis, size):
        first = max(0, at.start * along.step - along.before)
        last = (at.start + at.size - 1) * along.step - along.before
        total += max(0, min(extent, last + along.width) - first)
    return total


def is_possible(held: Sequence[Held], order: tuple[int, ...]) -> bool:
    """Whether every tile of a sum is whole before it is given away."""
    for one in held:
        if not one.is_result:
            continue
        own = [n for n, a in enumerate(order) if a in one.side.axes]
        others = [n for n, a in enumerate(order) if a not in one.side.axes]
        if own and others and min(others) < max(own):
            return False
    return True


def _is_in_order(axes: tuple[Axis, ...], loops: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether axes that go within others do so."""
    for n, a in enumerate(loops):
        for outer in _around(axes, a):
            if axes[outer].extent > 1 and (sizes[outer] != 1 or outer not in loops[:n]):
                return False
    return True


def _around(axes: tuple[Axis, ...], a: int) -> Iterator[int]:
    """The axes that one goes within, from the closest on."""
    outer = axes[a].within
    while outer is not None:
        yield outer
        outer = axes[outer].within


def held_bytes(held: Sequence[Held], axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> int:
    return sum(_in_ram(one, axes, sizes) for one in held)


def _in_ram(one: Held, axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> int:
    return -(-tile_bytes(one.side, axes, sizes) // 8) * 8 if one.has_tile else 0


class _Tiles:
    """Sides with tiles, and what these take and move: worked out once for each size of a side's
    own blocks, for a search asks of the same ones over and over."""

    def __init__(self, held: Sequence[Held], axes: tuple[Axis, ...]) -> None:
        self.held, self.axes = held, axes
        self._own = [(one.side.axes, tuple(one.side.axes)) for one in held]
        self._in_ram: list[dict[tuple[int, ...], int]] = [{} for _ in held]
        self._moved: list[dict[tuple[int, ...], int]] = [{} for _ in held]
        self._is_possible: dict[tuple[int, ...], bool] = {}

    def held_bytes(self, sizes: tuple[int, ...]) -> int:
        total = 0
        for one, (_, own), known in zip(self.held, self._own, self._in_ram, strict=True):
            key = tuple([sizes[a] for a in own])
            found = known.get(key)
            if found is None:
                found = known[key] = _in_ram(one, self.axes, sizes)
            total += found
        return total

    def traffic(self, nest: Nest) -> int:
        """Bytes moved, and transfers as bytes."""
        total = 0
        for one, (follows, own), known in zip(self.held, self._own, self._moved, strict=True):
            ways = one.is_read + one.is_written
            if not ways:
                continue
            key = tuple([nest.sizes[a] for a in own])
            found = known.get(key)
            if found is None:
                nbytes, transfers = _moved_once(one.side, self.axes, nest.sizes)
                found = known[key] = nbytes + RUN_BYTES * transfers
            total += ways * found * _times(follows, self.axes, nest)
        return total

    def is_possible(self, loops: tuple[int, ...]) -> bool:
        found = self._is_possible.get(loops)
        if found is None:
            found = self._is_possible[loops] = is_possible(self.held, loops)
        return found


def best_nest(held: Sequence[Held], axes: tuple[Axis, ...], limit: int) -> Nest | None:
    """The nest that moves least with tiles of at most `limit` bytes together, if there is one."""
    return _best_nest(tuple(_anywhere(one) for one in held), axes, limit)


def _anywhere(held: Held) -> Held:
    """The same wherever it lies: layers that repeat have one answer."""
    operand = msgspec.structs.replace(held.side.operand, storage=("value", 0), offset=0)
    return msgspec.structs.replace(held, side=msgspec.structs.replace(held.side, operand=operand))


@lru_cache(maxsize=1 << 16)
def _best_nest(held: tuple[Held, ...], axes: tuple[Axis, ...], limit: int) -> Nest | None:
    followed = {a for one in held for a in one.side.axes}
    cut = sorted(followed | {outer for a in followed for outer in _around(axes, a)})
    least = tuple(axis.extent if a not in cut else _sizes(axis)[0] for a, axis in enumerate(axes))
    tiles = _Tiles(held, axes)
    if tiles.held_bytes(least) > limit:
        return None
    best: tuple[int, int, Nest] | None = None
    # An axis that is whole in its smallest blocks has no loop, wherever it stands.
    for order in permutations([a for a in cut if least[a] < axes[a].extent]):
        found = _grown(tiles, order, least, limit)
        if found is not None and (best is None or found[:2] < best[:2]):
            best = found
    return None if best is None else best[2]


def _grown(
    tiles: _Tiles, order: tuple[int, ...], sizes: tuple[int, ...], limit: int
) -> tuple[int, int, Nest] | None:
    """Blocks made larger, one axis at a time, as long as the tiles fit: that which saves most."""
    now = _judged(tiles, order, sizes)
    while True:
        steps = []
        for a in order:
            larger = _next_size(tiles.axes[a], sizes[a])
            if larger is None:
                continue
            grown = (*sizes[:a], larger, *sizes[a + 1 :])
            if tiles.held_bytes(grown) <= limit:
                steps.append((_judged(tiles, order, grown), grown))
        if not steps:
            break
        after, sizes = min(steps, key=lambda step: (step[0] is None, step[0] and step[0][:2]))
        now = after if after is not None and (now is None or after[:2] <= now[:2]) else now
    return now


def _judged(
    tiles: _Tiles, order: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, int, Nest] | None:
    axes = tiles.axes
    loops = tuple([a for a in order if sizes[a] < axes[a].extent])
    if not tiles.is_possible(loops) or not _is_in_order(axes, loops, sizes):
        return None
    nest = Nest(loops, sizes)
    rounds = prod([-(-axes[a].extent // sizes[a]) for a in loops])
    return tiles.traffic(nest), rounds, nest


@cache
def _sizes(axis: Axis) -> tuple[int, ...]:
    """The sizes that blocks of an axis may have, from small to large: those that divide it, and
    doubled ones."""
    if axis.is_single:
        return (1,)
    extent, granule = axis.extent, axis.granule
    size = granule
    while size * MOST_BLOCKS < extent:
        size *= 2
    least = size
    found = {min(extent, size), extent}
    while size < extent:
        found.add(size)
        size *= 2
    for parts in range(2, min(extent, 4096) + 1):
        if extent % parts == 0 and extent // parts % granule == 0 and extent // parts >= least:
            found.add(extent // parts)
    return tuple(sorted(found))


@cache
def _next_size(axis: Axis, size: int) -> int | None:
    """At least some larger, so that few steps lead to the end."""
    larger = [each for each in _sizes(axis) if each > size]
    if not larger:
        return None
    return next((each for each in larger if 2 * each >= 3 * size), larger[-1])
