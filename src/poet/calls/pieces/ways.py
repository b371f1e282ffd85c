"""Ways: an op that streams, as the parts that its calls become.

Which of its tensors are in the store, and how many bytes its tiles may take, is all there is to
choose (`Choice`); the rest follows, so that a variant's name says how an op runs. A `Part` is a
call, with the updates that use its gradients up, in a nest of loops, or a call as it is.
"""

from collections.abc import Iterator
from math import prod

import msgspec

from poet.calls.operands import Operand, Work, works
from poet.calls.pieces.choices import Choice, choice_named
from poet.calls.pieces.elements import table
from poet.calls.pieces.nest import Held, Nest, best_nest, held_bytes, largest, moved
from poet.calls.pieces.rules import simpler, space_of
from poet.calls.pieces.space import Side, Space, runs
from poet.calls.references import Reference
from poet.calls.updates import UPDATES, state_of
from poet.errors import PoetError
from poet.values.device import Run
from poet.values.graph import Graph, printable
from poet.values.operators import is_whole

LEAST_BYTES = 512
"""A tensor smaller than this is not worth a loop."""


class Follower(msgspec.Struct, frozen=True):
    """An update that uses a result up, block by block."""

    work: Work
    result: int
    sides: dict[str, Side]
    """Parameter and state, as blocks of the result go through them."""
    becomes: dict[str, int]
    """The tensor that each of these becomes."""


class Part(msgspec.Struct, frozen=True):
    """A call, and how it goes: in a nest with tiles, or, without one, all at once."""

    work: Work
    space: Space | None = None
    nest: Nest | None = None
    followers: tuple[Follower, ...] = ()
    held: dict[str, Held] = {}
    """The sides with tiles: arguments by name, results by number, state of an update `n.name`."""

    @property
    def tile_bytes(self) -> int:
        if self.space is None or self.nest is None:
            return 0
        return held_bytes(tuple(self.held.values()), self.space.axes, self.nest.sizes)

    @property
    def blocks(self) -> int:
        """In how many blocks it is done."""
        if self.space is None or self.nest is None:
            return 1
        axes, sizes = self.space.axes, self.nest.sizes
        return prod(-(-axes[a].extent // sizes[a]) for a in self.nest.order)


class Way(msgspec.Struct, frozen=True):
    """How an op runs that streams."""

    parts: tuple[Part, ...]
    moved: dict[tuple[int, bool], tuple[int, int]]
    """For each tensor, read or written (True), the bytes and the transfers."""
    cut: frozenset[Reference]
    """Gradients of which only a tile exists."""

    @property
    def blocks(self) -> int:
        """In how many blocks all its parts are done."""
        return sum(part.blocks for part in self.parts)


def tiles_of(way: Way) -> list[tuple[int, str]]:
    """The tiles of a way, each by the number of its part and the key of its side."""
    return [
        (n, key)
        for n, part in enumerate(way.parts)
        for key, one in part.held.items()
        if one.has_tile
    ]


def streamable(graph: Graph, k: int) -> tuple[frozenset[int], ...]:
    """Groups of tensors of op k that may be streamed, each together.

    A parameter goes with the optimizer's state for it, and with what they become.
    """
    op = graph.ops[k]
    if not all(is_whole(call.kind, call.arguments, call.results) for call in op.calls):
        return ()
    try:
        calls = works(graph, k)
    except PoetError:
        return ()
    groups: list[set[int]] = []
    for work in calls:
        if work.kind in UPDATES:
            held = [x for n, x in work.arguments.items() if isinstance(x, Operand)
                    if n == "parameter" or n in state_of(work)]  # fmt: skip
            made = [x for x in work.results if x is not None]
            together = {x.storage[1] for x in (*held, *made) if x.storage[0] == "tensor"}
            groups.append(together)
    seen = {i for group in groups for i in group}
    groups += [{i} for i in (*op.inputs, *op.outputs) if i not in seen]
    return tuple(
        frozenset(group)
        for group in groups
        if max(graph.tensors[i].nbytes for i in group) >= LEAST_BYTES
        and all(_is_dense(graph, i) for i in group)
    )


def _is_dense(graph: Graph, i: int) -> bool:
    tensor = graph.tensors[i]
    if tensor.shape is None or tensor.dtype not in ("float32", "int64"):
        return False
    return tensor.nbytes == prod(tensor.shape) * (4 if tensor.dtype == "float32" else 8)


def way_of(graph: Graph, k: int, choice: Choice) -> Way | None:
    """How op k runs with this choice; None: it cannot."""
    calls = works(graph, k)
    parts: list[Part] = []
    done: set[int] = set()
    for work in calls:
        if work.number in done:
            continue
        made: list[Part] | None = None
        for together in _ways_to_do(work, choice):
            made = _parts(graph, k, calls, together, choice)
            if made is not None:
                break
        if made is None:
            return None
        parts += made
        done |= {follower.work.number for part in made for follower in part.followers}
    return _joined(graph, k, parts, choice)


def planned_way(graph: Graph, k: int, variant: str, run: Run) -> Way:
    """How op k runs in a variant of this name, refused if a plan counts on another way."""
    choice = choice_named(variant)
    way = None if choice is None else way_of(graph, k, choice)
    planned = {(stream.tensor, False): stream.nbytes for stream in run.reads}
    planned |= {(stream.tensor, True): stream.nbytes for stream in run.writes}
    if way is None or {key: nbytes for key, (nbytes, _) in way.moved.items()} != planned:
        raise PoetError(
            f"the plan runs {graph.op_text(k)} as {printable(variant)!r}, which this version of "
            "POET does in another way or not at all: plan again"
        )
    return way


def _ways_to_do(work: Work, choice: Choice) -> Iterator[list[Work]]:
    """A call as it is, and as several that together do the same."""
    yield [work]
    several = simpler(work)
    if len(several) > 1 and _touches(work, choice.streamed):
        yield several


def _parts(
    graph: Graph, k: int, calls: list[Work], together: list[Work], choice: Choice
) -> list[Part] | None:
    made: list[Part] = []
    for each in together:
        part = _part(graph, k, calls, each, choice, is_alone=len(together) == 1)
        if part is None or any(_is_gone(before, each) for before in made):
            return None
        made.append(part)
    return made


def _is_gone(part: Part, work: Work) -> bool:
    """Whether a call reads what a part before it leaves in tiles alone."""
    made = {one.side.operand.storage for key, one in part.held.items() if key.isdigit()
            if one.is_written or any(key == str(f.result) for f in part.followers)}  # fmt: skip
    return any(x.storage in made for x in work.reads)


def _touches(work: Work, streamed: frozenset[int]) -> bool:
    operands = (*work.reads, *(x for x in work.results if x is not None))
    return any(x.storage[0] == "tensor" and x.storage[1] in streamed for x in operands)


def _part(
    graph: Graph, k: int, calls: list[Work], work: Work, choice: Choice, is_alone: bool
) -> Part | None:
    """A call with the updates that follow it; as it is, if it is alone and streams nothing."""
    followers = _followers(graph, calls, work, choice)
    if followers is None:
        return None
    if is_alone and not _touches(work, choice.streamed) and not followers:
        return Part(work)
    only_named = any(_is_sparse(work, follower) for follower in followers)
    space = space_of(work, choice.streamed, lambda x: _is_parameter(graph, x), only_named)
    if space is None:
        return None
    ready = _with_sides(graph, space, followers)
    if ready is None:
        return None
    held = _held(graph, k, work, space, ready, choice)
    nest = best_nest(tuple(held.values()), space.axes, choice.limit)
    if nest is None:
        return None
    for _ in range(4):  # copies that the blocks make necessary, until there are no more
        more = _copies(space, ready, held, nest)
        if not more:
            return Part(work, space, nest, ready, held)
        held = {**held, **more}
        nest = best_nest(tuple(held.values()), space.axes, choice.limit)
        if nest is None:
            return None
    return None


def _is_parameter(graph: Graph, operand: Operand) -> bool:
    key, i = operand.storage
    return key == "tensor" and graph.tensors[i].role == "parameter"


def _is_sparse(work: Work, follower: "Follower") -> bool:
    """Whether an update changes no rows but those that indices name."""
    update = follower.work
    return (
        work.family == "aten.embedding_dense_backward"
        and not state_of(update)
        and not update.arguments.get("weight_decay")
        and work.arguments["indices"].count < update.arguments["gradient"].shape[0]
    )


def _followers(
    graph: Graph, calls: list[Work], work: Work, choice: Choice
) -> tuple[Follower, ...] | None:
    """The updates that stream and alone read a result of a call; None: one cannot follow it."""
    found = []
    for number, result in enumerate(work.results):
        if result is None or result.storage[0] != "value" or work.kind in UPDATES:
            continue
        readers = [c for c in calls if result.storage in {x.storage for x in c.reads}]
        if len(readers) != 1 or readers[0].kind not in UPDATES:
            continue
        update = readers[0]
        parameter, gradient = update.arguments["parameter"], update.arguments["gradient"]
        if parameter.storage[0] != "tensor" or parameter.storage[1] not in choice.streamed:
            continue
        if gradient.storage != result.storage or not gradient.is_dense or not result.is_dense:
            return None
        if gradient.count != result.count or not parameter.is_dense:
            return None
        between = [c for c in calls if work.number < c.number < update.number]
        if any(parameter.storage == x.storage for c in between for x in c.reads):
            return None
        names = ("parameter", *state_of(update))
        made = dict(zip(names, update.results, strict=False))
        becomes = {n: x.storage[1] for n, x in made.items() if x is not None}
        found.append(Follower(update, number, {}, becomes))
    return tuple(found)


def _with_sides(
    graph: Graph, space: Space, followers: tuple[Follower, ...]
) -> tuple[Follower, ...] | None:
    """Followers that go through parameter and state as the space goes through the gradient."""
    made = []
    for follower in followers:
        side = space.writes[follower.result]
        if side is None:
            return None
        sides = {}
        for name in ("parameter", *state_of(follower.work)):
            through = table(follower.work.arguments[name], side.operand.shape, side.reach)
            if through is None:
                return None
            sides[name] = msgspec.structs.replace(through, named_by=side.named_by)
        made.append(msgspec.structs.replace(follower, sides=sides))
    return tuple(made)


def _held(
    graph: Graph,
    k: int,
    work: Work,
    space: Space,
    followers: tuple[Follower, ...],
    choice: Choice,
) -> dict[str, Held]:
    """The sides that have tiles because they are streamed, or are gradients of what is."""
    seats = {pair.output: pair.input for pair in graph.ops[k].in_place}
    held: dict[str, Held] = {}
    used = {follower.result for follower in followers}
    for number, side in enumerate(space.writes):
        if side is None:
            continue
        key, i = side.operand.storage
        if number in used:
            held[str(number)] = Held(side, is_result=True)
        elif key == "tensor" and i in choice.writes:
            held[str(number)] = Held(side, is_written=True, is_result=True)
    for name, side in space.reads.items():
        key, i = side.operand.storage
        if key != "tensor" or i not in choice.reads:
            continue
        is_direct = side.named_by is not None and work.family == "aten.embedding"
        held[name] = Held(side, is_read=True, is_direct=is_direct)
        for number, made in enumerate(space.writes):  # in place: one tile is both
            if made is None or str(number) not in held or made.operand.storage[0] != "tensor":
                continue
            if seats.get(made.operand.storage[1]) == i and made.reach == side.reach:
                del held[str(number)]
                held[name] = Held(side, is_read=True, is_written=True, is_result=True, over=number)
    held |= {name: Held(side, is_result=True, is_room=True) for name, side in space.rooms.items()}
    for n, follower in enumerate(followers):
        for name, side in follower.sides.items():
            twin = next((key for key, one in held.items() if "." not in key and one.has_tile
                         and one.side.operand.storage == side.operand.storage), None)  # fmt: skip
            if twin is not None and held[twin].side.reach == side.reach:
                one = held[twin]
                held[twin] = Held(one.side, is_read=True, is_written=True, is_result=True)
            else:
                held[f"{n}.{name}"] = Held(side, is_read=True, is_written=True, is_result=True)
    return held


def _copies(
    space: Space, followers: tuple[Follower, ...], held: dict[str, Held], nest: Nest
) -> dict[str, Held]:
    """Sides in RAM that blocks cut in a way that the kernel does not take."""
    found = {}
    sides = {**space.reads, **{str(n): s for n, s in enumerate(space.writes) if s is not None}}
    for key, side in sides.items():
        if key in held or not side.is_dense or side.is_unread:
            continue
        if any(one.side.operand.storage == side.operand.storage for one in held.values()):
            continue
        count, _ = runs(side.operand, _smallest_cut(side, space, nest))
        if count > 1:
            found[key] = Held(side, is_result=key.isdigit())
    return found


def _smallest_cut(side: Side, space: Space, nest: Nest) -> tuple[int, ...]:
    """The extents of a piece of which nothing is whole that a loop goes along: with a halo a block
    may reach over all of a dimension, and the first and the last still not do so."""
    shape = largest(side, space.axes, nest.sizes)
    return tuple(
        min(size, whole - 1) if along is not None and along.axis in nest.order else size
        for size, whole, along in zip(shape, side.operand.shape, side.reach, strict=True)
    )


def _joined(graph: Graph, k: int, parts: list[Part], choice: Choice) -> Way | None:
    traffic: dict[tuple[int, bool], tuple[int, int]] = {}
    seats = {pair.input: pair.output for pair in graph.ops[k].in_place}
    cut: set[Reference] = set()
    for part in parts:
        if part.space is None or part.nest is None:
            continue
        for follower in part.followers:
            result = part.work.results[follower.result]
            assert result is not None
            cut.add(result.storage)
        for one in part.held.values():
            kind, i = one.side.operand.storage
            if kind != "tensor":
                continue
            nbytes, transfers = moved(one.side, part.space.axes, part.nest)
            to = i
            if one.is_read and one.is_written:
                to = seats[i]
            for is_written, wanted, tensor in ((False, one.is_read, i), (True, one.is_written, to)):
                if wanted:
                    before = traffic.get((tensor, is_written), (0, 0))
                    traffic[tensor, is_written] = (before[0] + nbytes, before[1] + transfers)
    reads = {i for i, is_written in traffic if not is_written}
    writes = {i for i, is_written in traffic if is_written}
    if reads != choice.reads or writes != choice.writes:
        return None
    return Way(tuple(parts), traffic, frozenset(cut))
