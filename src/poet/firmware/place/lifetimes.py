"""Lifetimes: what lies in RAM when, call by call, while a schedule runs.

A `Block` is a piece of RAM that keeps its address: a tensor from the moment it is made or paged in
until it is freed, together with what is written over it in place; or an inner value of one op. What
is in RAM between steps (parameters that are resident) must end where it began, so its first and its
last stay are one block with two spans.

Time is counted in ticks: one for each call of an op that runs, one for each transfer.
"""

import msgspec

from poet.calls.loops import TILE_BYTES, Loop, loops
from poet.calls.operands import Work, works
from poet.calls.pieces.choices import choice_named
from poet.calls.pieces.nest import tile_bytes
from poet.calls.pieces.ways import Way, planned_way, tiles_of
from poet.calls.references import Reference
from poet.calls.sizes import ITEM_BYTES
from poet.errors import PoetError
from poet.values.device import PLAIN
from poet.values.plan import Plan
from poet.values.schedule import Compute, Free, PageIn, PageOut

ALIGNMENT = 4


class Block(msgspec.Struct):
    """Bytes of RAM with one address. Spans are [first, last] ticks, both included."""

    name: str
    nbytes: int
    alignment: int
    spans: list[tuple[int, int]]
    dtype: str
    text: str = ""

    @property
    def padded(self) -> int:
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT


class SeatedInstruction(msgspec.Struct):
    """An instruction with the blocks that its tensors and values lie in while it runs.

    Of what an op streams, the block holds a tile. Its `loops` are found by the numbers of the calls
    that begin them; the updates in them have no tick of their own.
    """

    instruction: Compute | PageIn | PageOut | Free
    works: list[Work] = []
    loops: dict[int, Loop] = {}
    way: Way | None = None
    """How it runs piece by piece; tile number n of it lies in the block of `("tile", n)`."""
    blocks: dict[Reference, int] = {}
    new_bytes: int = 0
    """What it adds to RAM when it begins, its workspace included ..."""
    gone_bytes: int = 0
    """... and what it takes away when it has ended."""


class Lifetimes(msgspec.Struct):
    """The blocks of a plan, and its instructions over them."""

    blocks: list[Block]
    instructions: list[SeatedInstruction]
    start: dict[int, int]
    """The blocks of the tensors that are in RAM when a step begins, by tensor ..."""
    end: dict[int, int]
    """... and of those that are there when it has ended."""
    moves: list[tuple[int, int]]
    """Copies after the last instruction, to and from: what was made beside its predecessor."""
    start_bytes: int


def lifetimes(plan: Plan) -> Lifetimes:
    """Walk a schedule that the referee has accepted."""
    return _Walk(plan).walked()


class _Walk:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.blocks: list[Block] = []
        self.instructions: list[SeatedInstruction] = []
        self.tick = 0
        self.works: dict[int, list[Work]] = {}
        # Tensors in RAM: block and the tick their stay began with.
        self.here: dict[int, tuple[int, int]] = {}

    def walked(self) -> Lifetimes:
        for i, place in self.plan.budget.start.items():
            if place != "store":
                self.arrive(i, self.new_block(i))
        start = {i: block for i, (block, _) in self.here.items()}
        start_bytes = sum(self.graph.tensors[i].nbytes for i in start)
        self.tick = 1
        for instruction in self.plan.schedule:
            if isinstance(instruction, Compute):
                self.compute(instruction)
            elif isinstance(instruction, PageIn):
                seated = self.seat(instruction)
                self.arrive(instruction.tensor, self.new_block(instruction.tensor))
                seated.new_bytes = self.graph.tensors[instruction.tensor].nbytes
                seated.blocks = self.seats()
                self.tick += 1
            elif isinstance(instruction, PageOut):
                self.seat(instruction).blocks = self.seats()
                self.tick += 1
            else:
                seated = self.seat(instruction)
                seated.gone_bytes = self.graph.tensors[instruction.tensor].nbytes
                self.leave(instruction.tensor, self.tick - 1)
        end = {i: block for i, (block, _) in self.here.items()}
        for i in list(self.here):
            self.leave(i, self.tick)
        moves = self.join_ends(start, end)
        kept = [block for block in self.blocks if block.spans]
        number = {id(block): n for n, block in enumerate(kept)}
        new = {n: number[id(b)] for n, b in enumerate(self.blocks) if b.spans}
        for seated in self.instructions:
            seated.blocks = {key: new[n] for key, n in seated.blocks.items()}
        return Lifetimes(
            blocks=kept,
            instructions=self.instructions,
            start={i: new[n] for i, n in start.items()},
            end={i: new[n] for i, n in end.items()},
            moves=[(new[to], new[source]) for to, source in moves],
            start_bytes=start_bytes,
        )

    def seat(self, instruction: Compute | PageIn | PageOut | Free) -> SeatedInstruction:
        self.instructions.append(SeatedInstruction(instruction))
        return self.instructions[-1]

    def seats(self) -> dict[Reference, int]:
        return {("tensor", i): block for i, (block, _) in self.here.items()}

    def new_block(self, i: int) -> int:
        tensor = self.graph.tensors[i]
        stays = sum(block.name == tensor.name for block in self.blocks)
        return self.add(
            Block(
                name=tensor.name,
                nbytes=tensor.nbytes,
                alignment=_alignment(tensor.dtype),
                spans=[],
                dtype=tensor.dtype or "uint8",
                text=_shape_text(tensor.shape, tensor.dtype) + (f", stay {stays}" if stays else ""),
            )
        )

    def add(self, block: Block) -> int:
        self.blocks.append(block)
        return len(self.blocks) - 1

    def arrive(self, i: int, block: int) -> None:
        self.here[i] = (block, self.tick)

    def leave(self, i: int, last: int) -> None:
        block, since = self.here.pop(i)
        if last >= since:
            self.blocks[block].spans.append((since, last))

    def compute(self, step: Compute) -> None:
        k, op = step.op, self.graph.ops[step.op]
        if k not in self.works:
            self.works[k] = works(self.graph, k)
        seated = self.seat(step)
        seated.works = self.works[k]
        if choice_named(step.variant) is not None:
            self.pieces(seated, step)
            return
        if step.variant != PLAIN:
            if step.variant not in TILE_BYTES:
                raise PoetError(
                    f"the plan runs {self.graph.op_text(k)} as {step.variant!r}, which C code "
                    "cannot be written for"
                )
            found = loops(self.graph, k)
            run = self.plan.costs.ops[k][step.variant]
            moved = [{i for loop in found for i in loop.streamed},
                     {i for loop in found for i in loop.updated}]  # fmt: skip
            if moved != [{each.tensor for each in way} for way in (run.reads, run.writes)]:
                raise PoetError(
                    f"the plan streams other tensors in {self.graph.op_text(k)} than this version "
                    "of POET does: plan again"
                )
            seated.loops = {loop.maker: loop for loop in found}
        begin = self.tick
        ticks = max(1, len(seated.works))
        last_use = _last_uses(seated.works)
        seats = self.seats()
        streamed = {i for loop in seated.loops.values() for i in loop.updated}
        hidden = {loop.gradient for loop in seated.loops.values()} | {
            ("tensor", i) for i in streamed
        }
        over = {p.output: p.input for p in op.in_place if p.output not in streamed}
        fresh = [
            i for i in op.outputs if i not in self.here and i not in over and i not in streamed
        ]
        again = [i for i in op.outputs if i in self.here and i not in over]
        for j, work in enumerate(seated.works):
            if work.number in seated.loops:
                self.tiles(k, seated.loops[work.number], step.variant, seats, begin + j)
            for result in work.results:
                if result is None:
                    continue
                reference = result.storage
                if reference in hidden:
                    continue  # a tile
                if reference[0] == "tensor" and reference[1] in over:
                    seats[reference] = seats["tensor", over[reference[1]]]
                elif reference[0] == "tensor" and reference[1] in fresh:
                    block = self.new_block(reference[1])
                    self.tick = begin + j
                    self.arrive(reference[1], block)
                    seats[reference] = block
                else:  # an inner value, or a second copy of an output that is still there
                    last = begin + last_use[reference]
                    seats[reference] = self.inner(k, reference, begin + j, last)
        self.tick = begin + ticks
        for output, old in over.items():
            block, since = self.here.pop(old)
            self.here[output] = (block, since)
        seated.blocks = seats
        left = [i for i in op.consumed if i in self.here]  # streamed, with no need to be here
        for i in left:
            self.leave(i, self.tick - 1)
        workspace = self.plan.costs.ops[k][step.variant].workspace_bytes
        workspace += sum(self.graph.tensors[i].nbytes for i in again)
        seated.new_bytes = workspace + sum(self.graph.tensors[i].nbytes for i in fresh)
        seated.gone_bytes = workspace + sum(self.graph.tensors[i].nbytes for i in left)

    def pieces(self, seated: SeatedInstruction, step: Compute) -> None:
        """An op that runs piece by piece: a tick for each of its parts."""
        k, op = step.op, self.graph.ops[step.op]
        run = self.plan.costs.ops[k][step.variant]
        seated.way = way = planned_way(self.graph, k, step.variant, run)
        begin, seats = self.tick, self.seats()
        streamed_in = {i for i, is_written in way.moved if not is_written}
        streamed_out = {i for i, is_written in way.moved if is_written}
        over = {p.output: p.input for p in op.in_place if p.input not in streamed_in}
        fresh = [i for i in op.outputs if i not in self.here and i not in {*over, *streamed_out}]
        again = [i for i in op.outputs if i in self.here and i not in {*over, *streamed_out}]
        last_use: dict[Reference, int] = {}
        for j, part in enumerate(way.parts):
            for operand in (*part.work.reads, *part.work.results):
                if operand is not None:
                    last_use[operand.storage] = j
        numbers = {(p, key): n for n, (p, key) in enumerate(tiles_of(way))}
        for j, part in enumerate(way.parts):
            for key, one in part.held.items():
                if (j, key) not in numbers or part.space is None or part.nest is None:
                    continue
                what = one.side.operand.storage
                name = self.graph.tensors[what[1]].name if what[0] == "tensor" else op.name
                nbytes = tile_bytes(one.side, part.space.axes, part.nest.sizes)
                block = self.tile(f"{name} tile", nbytes, begin + j, one.side.operand.dtype)
                seats["tile", numbers[j, key]] = block
            for result in part.work.results:
                if result is None or result.storage in way.cut:
                    continue
                kind, i = reference = result.storage
                if kind == "tensor" and i in streamed_out:
                    continue
                if kind == "tensor" and i in over:
                    seats[reference] = seats["tensor", over[i]]
                elif kind == "tensor" and i in fresh:
                    if i not in self.here:
                        self.tick = begin + j
                        self.arrive(i, self.new_block(i))
                        seats[reference] = self.here[i][0]
                elif reference not in seats or kind == "tensor":
                    last = begin + last_use[reference]
                    seats[reference] = self.inner(k, reference, begin + j, last)
        self.tick = begin + len(way.parts)
        for output, old in over.items():
            block, since = self.here.pop(old)
            if output in streamed_out:
                self.blocks[block].spans.append((since, self.tick - 1))
            else:
                self.here[output] = (block, since)
        seated.blocks = seats
        left = [i for i in op.consumed if i in self.here]
        for i in left:
            self.leave(i, self.tick - 1)
        gone = sum(self.graph.tensors[i].nbytes for i in left)
        gone += sum(self.graph.tensors[i].nbytes for o, i in over.items() if o in streamed_out)
        workspace = self.plan.costs.ops[k][step.variant].workspace_bytes
        workspace += sum(self.graph.tensors[i].nbytes for i in again)
        seated.new_bytes = workspace + sum(self.graph.tensors[i].nbytes for i in fresh)
        seated.gone_bytes = workspace + gone

    def tiles(
        self, k: int, loop: Loop, variant: str, seats: dict[Reference, int], tick: int
    ) -> None:
        """Blocks for a tile of what a loop streams, and of the gradient."""
        if loop.named_rows is not None and loop.update is None:
            return  # rows go straight to the result
        nbytes = loop.tile_rows(TILE_BYTES[variant]) * loop.row_bytes
        for n, i in enumerate(loop.streamed):
            block = seats.get(("tensor", i))
            if block is not None and block != self.here.get(i, (None, 0))[0]:
                self.blocks[block].spans.append((tick, tick))  # an earlier loop's
            else:
                name = f"{self.graph.tensors[i].name} tile"
                seats["tensor", i] = self.tile(name, nbytes, tick)
            if loop.updated:
                seats["tensor", loop.updated[n]] = seats["tensor", i]
        if loop.gradient is not None:
            name = f"{self.graph.ops[k].name} gradient tile"
            seats[loop.gradient] = self.tile(name, nbytes, tick)

    def tile(self, name: str, nbytes: int, tick: int, dtype: str = "float32") -> int:
        return self.add(
            Block(
                name=name,
                nbytes=nbytes,
                alignment=_alignment(dtype),
                spans=[(tick, tick)],
                dtype=dtype,
                text=_shape_text((nbytes // ITEM_BYTES[dtype],), dtype),
            )
        )

    def inner(self, k: int, reference: Reference, first: int, last: int) -> int:
        op = self.graph.ops[k]
        key, n = reference
        thing = self.graph.tensors[n] if key == "tensor" else op.values[n]
        name = f"{self.graph.tensors[n].name} again" if key == "tensor" else f"{op.name} inner"
        return self.add(
            Block(
                name=name,
                nbytes=thing.nbytes,
                alignment=_alignment(thing.dtype),
                spans=[(first, last)],
                dtype=thing.dtype or "uint8",
                text=_shape_text(thing.shape, thing.dtype),
            )
        )

    def join_ends(self, start: dict[int, int], end: dict[int, int]) -> list[tuple[int, int]]:
        """What is wanted in RAM by the next step ends in the block where it began.

        Where it was made while its predecessor was still there (new statistics from old ones), it
        has a block of its own, and is copied when all else is done.
        """
        heirs = self.graph.heir
        merged: dict[int, int] = {}
        moves = []
        for i, first in start.items():
            last = end.get(heirs.get(i, i))
            if last is None or last == first:
                continue
            here, there = self.blocks[first], self.blocks[last]
            if _overlap(here.spans, there.spans):
                if here.spans[-1][1] < self.tick:
                    here.spans.append((self.tick, self.tick))
                moves.append((first, last))
                end[heirs.get(i, i)] = first
                continue
            here.spans += there.spans
            there.spans = []
            merged[last] = first
        for seated in self.instructions:
            seated.blocks = {key: merged.get(n, n) for key, n in seated.blocks.items()}
        for i, n in end.items():
            end[i] = merged.get(n, n)
        return moves


def _overlap(these: list[tuple[int, int]], those: list[tuple[int, int]]) -> bool:
    return any(a[0] <= b[1] and b[0] <= a[1] for a in these for b in those)


def _last_uses(calls: list[Work]) -> dict[Reference, int]:
    last: dict[Reference, int] = {}
    for j, work in enumerate(calls):
        for operand in (*work.reads, *work.results):
            if operand is not None:
                last[operand.storage] = j
    return last


def _alignment(dtype: str | None) -> int:
    return max(ALIGNMENT, ITEM_BYTES.get(dtype or "", 8))


def _shape_text(shape: tuple[int, ...] | None, dtype: str | None) -> str:
    return f"{dtype} " + "".join(f"[{extent}]" for extent in shape or ())
