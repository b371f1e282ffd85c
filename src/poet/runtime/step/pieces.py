"""Pieces: an op's calls in PyTorch, block by block, with tiles to and from the store.

A `Pieces` stands in the tape where a call stood whose operands are not all in RAM. It goes through
the loops of its parts (`poet.calls.pieces`), reads the tiles that a block needs, calls PyTorch's
own kernels on them, and writes what was made. Kernels that sum may do so in another order when they
get fewer elements; those that treat each element, or row, by itself give the bits they always give.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from poet.calls.operands import Operand, Work
from poet.calls.pieces.nest import blocks_of, largest
from poet.calls.pieces.space import Piece, Side, Stretch, in_memory, packed_strides, piece
from poet.calls.pieces.ways import Part, Way
from poet.calls.references import Reference
from poet.calls.updates import UPDATES
from poet.runtime.step.block_site import Block, Rates, any_call
from poet.runtime.step.blocks import BLOCKS, updated
from poet.tracer.arguments import decode, dtype_named
from poet.values.graph import Graph

if TYPE_CHECKING:
    from poet.runtime.step.machine import Machine

Made = tuple[torch.Tensor | None, ...]


class Pieces:
    """The parts of one call of an op, to be called in its place.

    It is given the tensors and inner values of the op that are whole in RAM, by number, and the
    updates' rates; what it gives are the call's results, with None for those that are in the store
    or used up.
    """

    def __init__(self, graph: Graph, k: int, number: int, way: Way) -> None:
        self.graph, self.op = graph, graph.ops[k]
        self.parts = [part for part in way.parts if part.work.number == number]
        self.call = self.op.calls[number]
        self.way = way
        self._away = {("tensor", i) for i, _ in way.moved} | way.cut
        self._seats = {pair.output: pair.input for pair in self.op.in_place}
        written = {i for i, is_written in way.moved if is_written}
        # What becomes something of the next step lies where that lay, which may still be read.
        self._new = [i for i in self.op.outputs if i in written and graph.slot[i] == i]
        self._first = {
            one.side.operand.storage[1]: n
            for n, part in reversed(list(enumerate(self.parts)))
            for one in part.held.values()
            if one.is_written and one.side.operand.storage[0] == "tensor"
        }

    @property
    def name(self) -> str:
        """What tells ways to run one call apart."""
        return " ".join(f"{i}{'w' if is_written else 'r'}" for i, is_written in self.way.moved) + (
            f" {[part.nest for part in self.parts]}"
        )

    @property
    def needs(self) -> list[Reference]:
        """What must be whole in RAM."""
        made = {part.work.results[n].storage for part in self.parts  # type: ignore[union-attr]
                for n, x in enumerate(part.work.results) if x is not None}  # fmt: skip
        found: dict[Reference, None] = {}
        for part in self.parts:
            for operand in part.work.reads:
                if operand.storage not in self._away | made:
                    found[operand.storage] = None
            for result in part.work.results:
                if result is not None and result.storage[0] == "tensor":
                    seat = self._seats.get(result.storage[1])
                    if seat is not None and ("tensor", seat) not in self._away:
                        found["tensor", seat] = None
        return list(found)

    @property
    def updates(self) -> Iterator[int]:
        """The calls of updates that are done here."""
        for part in self.parts:
            yield from (follower.work.number for follower in part.followers)
            if part.work.kind in UPDATES:
                yield part.work.number

    def __call__(
        self,
        machine: "Machine",
        tensors: dict[int, torch.Tensor],
        values: dict[int, torch.Tensor],
        rates: Rates,
    ) -> Made:
        known: dict[Reference, torch.Tensor] = {("tensor", i): x for i, x in tensors.items()}
        known |= {("value", n): x for n, x in values.items()}
        made: list[torch.Tensor | None] = []
        for result in self.call.results:
            if result is None:
                made.append(None)
                continue
            ((kind, n),) = result.items()
            if (kind, n) in self._away:
                made.append(None)
                continue
            if kind == "tensor" and n in self._seats:
                known[kind, n] = known["tensor", self._seats[n]]
            else:
                about = self.graph.tensors[n] if kind == "tensor" else self.op.values[n]
                assert about.shape is not None
                empty = torch.empty(about.shape, device="meta").stride()
                known[kind, n] = torch.empty_strided(
                    about.shape, about.strides or empty, dtype=dtype_named(about.dtype),
                    device=machine.device,
                )  # fmt: skip
            made.append(known[kind, n])
        for number, part in enumerate(self.parts):
            for i, first in self._first.items():
                if first == number and i in self._new:
                    machine.stream_begin(i)
            _Nest(self, part, machine, known, rates).run()
        return tuple(made)


class _Nest:
    """One part while it runs."""

    def __init__(
        self,
        owner: Pieces,
        part: Part,
        machine: "Machine",
        known: dict[Reference, torch.Tensor],
        rates: Rates,
    ) -> None:
        assert part.space is not None
        assert part.nest is not None
        self.owner, self.part, self.machine, self.known = owner, part, machine, known
        self.space, self.nest, self.order, self.rates = (
            part.space,
            part.nest,
            part.nest.order,
            rates,
        )
        self.work: Work = part.work
        self.tiles = {
            key: torch.empty(
                _count(one.side, part), dtype=dtype_named(one.side.operand.dtype),
                device=machine.device,
            )
            for key, one in part.held.items()
            if one.has_tile
        }  # fmt: skip
        self.sums: dict[str, torch.Tensor] = {}

    def run(self) -> None:
        self.level(-1, {a: Stretch(0, axis.extent) for a, axis in enumerate(self.space.axes)})

    def level(self, n: int, at: Block) -> None:
        keys = [key for key in self.part.held if self.level_of(key) == n]
        for key in keys:
            self.bring(key, at)
        if n + 1 == len(self.order):
            (BLOCKS.get(self.work.family) or any_call)(self, at)
        else:
            axis = self.order[n + 1]
            for block in blocks_of(self.space.axes[axis], self.nest.sizes[axis]):
                self.level(n + 1, {**at, axis: block})
        for key in keys:
            self.take(key, at)

    def level_of(self, key: str) -> int:
        axes = self.part.held[key].side.axes
        return max((self.order.index(a) for a in axes if a in self.order), default=-1)

    # ---- pieces ----

    def piece(self, side: Side, at: Block) -> Piece:
        return piece(side, tuple(at[a] for a in range(len(self.space.axes))))

    def key_of(self, key: str, side: Side) -> str | None:
        """The tile that a side's pieces lie in, if they lie in one."""
        if key in self.tiles:
            return key
        for name, one in self.part.held.items():
            over = None if one.over is None else self.space.writes[one.over]
            same = one.side.operand.storage == side.operand.storage
            if name in self.tiles and (same or over is side):
                return name
        return None

    def read(self, name: str, at: Block) -> torch.Tensor:
        return self.at(name, self.space.reads[name], at)

    def write(self, number: int, at: Block) -> torch.Tensor | None:
        side = self.space.writes[number]
        return None if side is None else self.at(str(number), side, at)

    def at(self, key: str, side: Side, at: Block) -> torch.Tensor:
        """A piece as a tensor: of a tile, or of what is in RAM."""
        found = self.piece(side, at)
        shape = found.shape if side.named_by is None else (1, *found.shape[1:])
        tile = self.key_of(key, side)
        if tile is not None:
            return self.tiles[tile].as_strided(shape, packed_strides(side.operand, shape))
        if key in self.part.held or (side.is_unread and side.operand.storage not in self.known):
            blank = torch.empty((), dtype=dtype_named(side.operand.dtype))
            return blank.expand(shape)  # of which only the shape matters
        return self.in_ram(side.operand, found.start, shape)

    def in_ram(
        self, operand: Operand, start: tuple[int, ...], shape: tuple[int, ...]
    ) -> torch.Tensor:
        whole = self.known[operand.storage]
        offset = sum(a * b for a, b in zip(start, operand.strides, strict=True))
        return whole.as_strided(
            shape, operand.strides, whole.storage_offset() + operand.offset + offset
        )

    # ---- transfers ----

    def bring(self, key: str, at: Block) -> None:
        one = self.part.held[key]
        if "." in key:
            return
        if one.is_direct:
            made = self.write(0, at)
            assert made is not None
            row = torch.empty(made.numel(), dtype=made.dtype)
            self.stream(one.side, at, row, out=False)
            made.copy_(row.view(made.shape))
        elif one.has_tile and one.is_read:
            self.stream(one.side, at, self.tiles[key], out=False)
        elif one.has_tile and not one.is_result:
            found = self.piece(one.side, at)
            whole = self.in_ram(one.side.operand, found.start, found.shape)
            self.at(key, one.side, at).copy_(whole)

    def take(self, key: str, at: Block) -> None:
        one = self.part.held[key]
        if "." in key or not one.has_tile or self.is_skipped(at):
            return
        is_used = False
        for n, follower in enumerate(self.part.followers):
            if key == str(follower.result):
                self.update(n, at)
                is_used = True
        if one.is_written and not self.is_updated(one.side):
            over = None if one.over is None else self.space.writes[one.over]
            self.stream(over or one.side, at, self.tiles[key], out=True)
        elif one.is_result and not (one.is_read or one.is_written or one.is_room or is_used):
            found = self.piece(one.side, at)
            whole = self.in_ram(one.side.operand, found.start, found.shape)
            whole.copy_(self.at(key, one.side, at))

    def is_updated(self, side: Side) -> bool:
        return any(
            side.operand.storage == each.operand.storage
            for follower in self.part.followers
            for each in follower.sides.values()
        )

    def is_skipped(self, at: Block) -> bool:
        """Whether the row of a table that is named here was done before, or is not wanted."""
        made = self.space.writes[0]
        if made is None or made.named_by is None:
            return False
        indices = self.read("indices", at).flatten()
        place = at[0].start
        row = int(indices[place])
        ignored = int(self.work.arguments.get("padding_idx", -1))
        return row == ignored or row in indices[:place].tolist()

    def update(self, n: int, at: Block) -> None:
        follower = self.part.followers[n]
        made = self.space.writes[follower.result]
        assert made is not None
        state = {}
        for name, side in follower.sides.items():
            key = f"{n}.{name}"
            if key in self.tiles:
                self.stream(side, at, self.tiles[key], out=False)
            state[name] = self.at(key, side, at)
        gradient = self.at(str(follower.result), made, at)
        updated(follower.work, {**state, "gradient": gradient}, self.rates)
        for name, side in follower.sides.items():
            tile = self.key_of(f"{n}.{name}", side)
            assert tile is not None
            self.stream(side, at, self.tiles[tile], out=True, to=follower.becomes[name])

    def stream(
        self, side: Side, at: Block, tile: torch.Tensor, out: bool, to: int | None = None
    ) -> None:
        if side.is_unread:
            return
        found, operand = self.piece(side, at), side.operand
        start, shape = found.start, found.shape
        if side.named_by is not None:
            indices = self.read(side.named_by, at).flatten()
            along = side.reach[0]
            assert along is not None
            start = (int(indices[at[along.axis].start]), *start[1:])
            shape = (1, *shape[1:])
        tensor = operand.storage[1] if to is None else to
        move = self.machine.stream_out if out else self.machine.stream_in
        for begin, count, place in in_memory(operand, start, shape):
            move(tensor, tile, begin, count, place)

    # ---- calls ----

    def argument(self, name: str) -> Any:
        if name in self.space.arguments:
            return self.space.arguments[name]
        return decode(self.work.arguments[name], _no_reference)

    def is_first(self, at: Block, *sums: int) -> bool:
        return all(at[a].start == 0 for a in sums if a in self.order)

    def is_last(self, at: Block, *sums: int) -> bool:
        return all(at[a].start + at[a].size >= self.space.axes[a].extent for a in sums)


def _no_reference(tag: str, n: int) -> Any:
    raise AssertionError("a tensor that is no piece")


def _count(side: Side, part: Part) -> int:
    assert part.space is not None
    assert part.nest is not None
    count = 1
    for extent in largest(side, part.space.axes, part.nest.sizes):
        count *= extent
    return count
