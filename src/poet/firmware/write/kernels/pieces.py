"""Calls done piece by piece: loops over blocks, with tiles that go to and from the card.

Around each block stand the transfers of its tiles. The statement of the block itself is that of the
whole call, for operands that are pieces; what adds to sums, or needs to know where a block lies,
has its own (`blocks`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from poet.calls.operands import Operand, row_major
from poet.calls.pieces.nest import Held, blocks_of
from poet.calls.pieces.space import (
    Piece,
    Side,
    Stretch,
    dims_in_memory,
    packed_strides,
    piece,
)
from poet.calls.pieces.ways import Follower, Part
from poet.calls.sizes import ITEM_BYTES
from poet.firmware.write.kernels import statements
from poet.firmware.write.kernels.blocks import BLOCKS, At
from poet.firmware.write.kernels.masks import copied
from poet.firmware.write.kernels.piece_site import PieceSite, Place
from poet.firmware.write.kernels.site import Site, place_of
from poet.firmware.write.kernels.updates import KERNELS as UPDATES

Card = Callable[[int, bool], str]
"""Where a tensor is read on the card, or written (True), as C."""
Tile = Callable[[str], str]
"""The C name of the tile of a side."""


def part_statements(
    site: Site, part: Part, updates: Mapping[int, Site], tile: Tile, card: Card
) -> list[str]:
    """The statements of a part. `updates` are the sites of its followers, by call number."""
    if part.nest is None:
        return statements(site)
    return _Nest(site, part, updates, tile, card).written()


class _Nest:
    def __init__(
        self, site: Site, part: Part, updates: Mapping[int, Site], tile: Tile, card: Card
    ) -> None:
        assert part.space is not None
        assert part.nest is not None
        self.site, self.part, self.tile, self.card = site, part, tile, card
        self.space, self.nest, self.updates = part.space, part.nest, updates
        self.order = part.nest.order
        self.named = {str(n): side for n, side in enumerate(self.space.writes) if side is not None}
        self.named |= self.space.reads

    def written(self) -> list[str]:
        whole = {a: At("0", Stretch(0, axis.extent)) for a, axis in enumerate(self.space.axes)}
        return self.level(-1, whole)

    # ---- loops ----

    def level(self, n: int, at: dict[int, At]) -> list[str]:
        """What is done for one block of the loops up to number n."""
        lines = [text for key in self.at_level(n) for text in self.brought(key, at)]
        if n + 1 == len(self.order):
            made = self.block(at)
        else:
            made = [text for here in self.segments(n + 1, at) for text in here]
        ending = [text for key in self.at_level(n) for text in self.taken(key, at)]
        is_if = bool(made) and not made[-1].endswith((";", "}"))
        if is_if and ending:
            return [*lines, *made[:-1], f"{made[-1]} {{", *_indented(ending), "}"]
        return [*lines, *made, *ending]

    def at_level(self, n: int) -> list[str]:
        """The sides whose tile changes with the loop of this number; -1: with none."""
        found = []
        for key, one in self.part.held.items():
            loops = [self.order.index(a) for a in one.side.axes if a in self.order]
            if max(loops, default=-1) == n:
                found.append(key)
        return found

    def segments(self, n: int, at: dict[int, At]) -> Iterator[list[str]]:
        """The loop of this number: stretches of blocks that are alike, each a loop or a block."""
        axis, size = self.order[n], self.nest.sizes[self.order[n]]
        groups: list[list[Stretch]] = []
        last: Any = None
        for block in blocks_of(self.space.axes[axis], size):
            form = self.form(axis, block)
            if form != last:
                groups.append([])
            groups[-1].append(block)
            last = form
        for group in groups:
            first = group[0]
            if len(group) == 1:
                yield self.level(n, {**at, axis: At(str(first.start), first)})
                continue
            name, beyond = f"p{axis}", group[-1].start + 1
            head = f"for (int32_t {name} = {first.start}; {name} < {beyond}; {name} += {size}) {{"
            inner = self.level(n, {**at, axis: At(name, first)})
            yield [head, *_indented(inner), "}"]

    def form(self, axis: int, block: Stretch) -> tuple[Any, ...]:
        """What blocks must have in common to be done by one loop."""
        found: list[Any] = [block.size]
        for side in self.sides():
            for extent, along in zip(side.operand.shape, side.reach, strict=True):
                if along is None or along.axis != axis:
                    continue
                first = block.start * along.step - along.before
                beyond = (block.start + block.size - 1) * along.step - along.before + along.width
                found.append((max(0, -first), max(0, beyond - extent)))
        return tuple(found)

    def sides(self) -> Iterator[Side]:
        yield from self.named.values()
        for follower in self.part.followers:
            yield from follower.sides.values()

    # ---- pieces ----

    def piece(self, side: Side, at: dict[int, At]) -> Piece:
        return piece(side, tuple(at[a].stretch for a in range(len(self.space.axes))))

    def further(self, side: Side, at: dict[int, At]) -> list[tuple[str, int]]:
        """How far a piece begins: terms of C text and elements for each of its units."""
        terms: list[tuple[str, int]] = []
        fixed = side.operand.offset
        for d, along in enumerate(side.reach):
            if along is None or (d == 0 and side.named_by is not None):
                continue
            here, stride = at[along.axis], side.operand.strides[d]
            start = here.stretch.start * along.step - along.before
            if start <= 0 and here.text.isdigit():
                continue  # it begins where the dimension does
            if here.text.isdigit():
                fixed += min(start, side.operand.shape[d]) * stride
            else:
                fixed -= along.before * stride
                terms.append((here.text, along.step * stride))
        return [*terms, ("", fixed)] if fixed else terms

    def start(self, side: Side, d: int, at: dict[int, At]) -> str:
        """Where in a dimension a piece begins, as C."""
        along = side.reach[d]
        if along is None or at[along.axis].text.isdigit():
            return str(self.piece(side, at).start[d])
        return _sum(f"{at[along.axis].text} * {along.step}", [("", -along.before)], 1)

    def room(self, name: str) -> str:
        """The address of what blocks of a sum leave for the next."""
        return self.tile(name)

    def operand(self, key: str, side: Side, at: dict[int, At]) -> "Place":
        """A side's piece as an operand, and where it lies."""
        shape = self.piece(side, at).shape
        if side.named_by is not None:
            shape = (1, *shape[1:])
        if side.is_unread:  # only its shape matters
            plain = msgspec.structs.replace(
                side.operand, offset=0, shape=shape, strides=row_major(shape)
            )
            return Place(plain, "NULL")
        held = self.part.held.get(key) or self.twin(side)
        if held is not None and held.has_tile:
            name = self.tile(self.key_of(key, side))
            strides = packed_strides(side.operand, shape)
            return Place(msgspec.structs.replace(
                side.operand, offset=0, shape=shape, strides=strides
            ), name)  # fmt: skip
        piece = msgspec.structs.replace(side.operand, offset=0, shape=shape)
        if held is not None:  # nobody looks at it
            return Place(piece, "NULL")
        base = self.site.at(msgspec.structs.replace(side.operand, offset=0))
        return Place(piece, _sum(base, self.further(side, at), 1))

    def key_of(self, key: str, side: Side) -> str:
        if key in self.part.held:
            return key
        return next(
            name
            for name, one in self.part.held.items()
            if one.has_tile
            and (one.side.operand.storage == side.operand.storage or self.is_over(side, one))
        )

    def twin(self, side: Side) -> Held | None:
        """The tile of the same tensor, or of the one that it takes the place of."""
        for one in self.part.held.values():
            if not one.has_tile:
                continue
            if one.side.operand.storage == side.operand.storage or self.is_over(side, one):
                return one
        return None

    def is_over(self, side: Side, one: Held) -> bool:
        """Whether a result is written over an input that has a tile."""
        return one.over is not None and self.space.writes[one.over] is side

    # ---- transfers ----

    def brought(self, key: str, at: dict[int, At]) -> list[str]:
        """Before the blocks that need it: a tile is read, or copied together."""
        one = self.part.held[key]
        if "." in key or not (one.has_tile or one.is_direct):
            return []  # state comes when its gradient is ready
        if one.is_direct:
            (made,) = [side for side in self.space.writes if side is not None]
            return [self.transfer("read", one.side, at, self.operand("0", made, at).text)]
        if one.is_read:
            return [self.transfer("read", one.side, at, self.tile(key))]
        if one.is_result:
            return []
        return [self.copy(key, one.side, at, into_tile=True)]

    def taken(self, key: str, at: dict[int, At]) -> list[str]:
        """After the blocks that make it: it is used for an update, written, or copied apart."""
        one = self.part.held[key]
        if "." in key or not one.has_tile:
            return []
        lines = []
        for n, follower in enumerate(self.part.followers):
            if key == str(follower.result):
                lines += self.updated(n, follower, at)
        if one.is_written and not self.is_updated(one):
            over = None if one.over is None else self.space.writes[one.over]
            lines.append(self.transfer("write", over or one.side, at, self.tile(key)))
        elif one.is_result and not (one.is_read or one.is_written or one.is_room or lines):
            lines.append(self.copy(key, one.side, at, into_tile=False))
        return lines

    def is_updated(self, one: Held) -> bool:
        return any(
            side.operand.storage == one.side.operand.storage
            for follower in self.part.followers
            for side in follower.sides.values()
        )

    def updated(self, n: int, follower: Follower, at: dict[int, At]) -> list[str]:
        """Parameter and state of a piece of the gradient: read, updated, written."""
        site = self.updates[follower.work.number]
        places, before, after = {}, [], []
        for name, side in follower.sides.items():
            key = f"{n}.{name}"
            if key in self.part.held:
                before.append(self.transfer("read", side, at, self.tile(key)))
            else:
                key = self.key_of(key, side)
            shape = self.operand(key, side, at).operand.shape
            strides = packed_strides(side.operand, shape)
            moved = msgspec.structs.replace(side.operand, offset=0, shape=shape, strides=strides)
            places[name] = Place(moved, self.tile(key))
            after.append(self.transfer("write", side, at, self.tile(key)))
        made = self.space.writes[follower.result]
        assert made is not None
        places["gradient"] = self.operand(str(follower.result), made, at)
        given = {name: x for name, x in follower.work.arguments.items() if name not in places}
        some = PieceSite(site, follower.work, places, given, ())
        return [*before, *UPDATES[follower.work.kind](some), *after]

    def transfer(self, verb: str, side: Side, at: dict[int, At], place: str) -> str:
        """A statement that moves a piece between the card and a tile."""
        operand_, shape = side.operand, self.piece(side, at).shape
        item = ITEM_BYTES[operand_.dtype]
        tensor = operand_.storage[1]
        where = _sum(self.card(tensor, verb == "write"), self.further(side, at), item)
        if side.named_by is not None:
            shape = (1, *shape[1:])
            where = f"{where} + {self.index(side, at)} * {operand_.strides[0] * item}u"
        return self.moved(verb, place, where, operand_, shape, item)

    def moved(
        self, verb: str, place: str, where: str, whole: Operand, shape: tuple[int, ...], item: int
    ) -> str:
        dims = dims_in_memory(whole)
        count = 1
        while dims and whole.strides[dims[-1]] == count and _reaches(whole, shape, dims):
            count *= shape[dims.pop()]
        if dims and whole.strides[dims[-1]] == count:
            count *= shape[dims.pop()]
        outer = [(shape[d], whole.strides[d] * item) for d in dims if shape[d] != 1]
        call = "stream_in" if verb == "read" else "stream_out"
        if not outer:
            return f"poet_{call}(ctx, {place}, {where}, {count * item});"
        if len(outer) > 3:
            raise self.site.refuse("a piece of it has too many dimensions")
        outer = [(1, 0)] * (3 - len(outer)) + outer
        sizes, steps = (", ".join(str(x[n]) for x in outer) for n in (0, 1))
        runs = self.site.literal("runs", f"{{{sizes}}}, {{{steps}}}, {count * item}")
        return f"poet_{call}_runs(ctx, {place}, {where}, {runs});"

    def index(self, side: Side, at: dict[int, At]) -> str:
        """The row of a table that the index of this place names."""
        assert side.named_by is not None
        along = side.reach[0]
        assert along is not None
        indices = self.operand(side.named_by, self.space.reads[side.named_by], at)
        text = at[along.axis].text
        element = f"({indices.text})[{place_of(indices.operand, text)}]"
        return f"(uint32_t)poet_index_of({element}, {side.operand.shape[0]})"

    def copy(self, key: str, side: Side, at: dict[int, At], into_tile: bool) -> str:
        """Between a piece in RAM and its tile, which has no gaps."""
        shape = self.piece(side, at).shape
        base = self.site.at(msgspec.structs.replace(side.operand, offset=0))
        there = Place(
            msgspec.structs.replace(side.operand, offset=0, shape=shape),
            _sum(base, self.further(side, at), 1),
        )
        here = self.operand(key, side, at)
        pair = {"here": here, "there": there}
        some = PieceSite(self.site, self.part.work, pair, {}, ())
        to, source = ("here", "there") if into_tile else ("there", "here")
        return copied(some, some.arguments[to], some.arguments[source])

    # ---- the block itself ----

    def block(self, at: dict[int, At]) -> list[str]:
        work = self.part.work
        reads = {n: self.operand(n, side, at) for n, side in self.space.reads.items()}
        given = {n: x for n, x in work.arguments.items() if n not in reads}
        given |= self.space.arguments
        made = [
            None if side is None else self.operand(str(n), side, at)
            for n, side in enumerate(self.space.writes)
        ]
        some = PieceSite(self.site, work, reads, given, tuple(made))
        write = BLOCKS.get(work.family)
        return statements(some) if write is None else write(self, some, at)

    def is_more(self, at: dict[int, At], *sums: int) -> str:
        """Whether other blocks of a sum came before: C text, `0` where there are none."""
        loops = [at[a].text for a in sums if a in self.order and at[a].text != "0"]
        return " + ".join(loops) or "0"

    def is_last(self, at: dict[int, At], *sums: int) -> str:
        """Whether no other blocks of a sum follow."""
        ends = [
            f"{at[a].text} + {at[a].stretch.size} >= {self.space.axes[a].extent}"
            for a in sums
            if a in self.order
        ]
        return " && ".join(ends) or "1"


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _sum(base: str, terms: list[tuple[str, int]], unit: int) -> str:
    """A C expression for some units further."""
    for text, count in terms:
        if not text and count:
            sign = "-" if count < 0 else "+"
            base += f" {sign} {abs(count) * unit}"
        elif count:
            base += f" + {text}" if count * unit == 1 else f" + {text} * {count * unit}"
    return base


def _reaches(whole: Operand, shape: tuple[int, ...], dims: list[int]) -> bool:
    """Whether a piece takes all of its innermost dimension."""
    return shape[dims[-1]] == whole.shape[dims[-1]]
