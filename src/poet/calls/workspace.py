"""Workspace: the memory an op needs while it runs, beside its inputs and its outputs.

The op's calls are replayed in order. An inner value is there from the call that makes it until the
last call that uses it or a view of it; an output is there from its call on, and takes nothing new
where it lies in the bytes of an input. In the moment of a call its arguments and its results are
there together. The referee counts all outputs of an op for as long as it runs, so only what goes
beyond them is workspace.

Where an op streams parameters, a tile of each, of its optimizer state and of its gradient is there
while the loop over the tiles runs, and nothing else of them.

What a kernel takes for itself and gives back before it returns is not seen here, except for
updates, whose arithmetic is POET's own. Where the step will run, it is found out by trying, and
given as `kernels` (`poet.profiling.scratch`).
"""

from collections.abc import Mapping, Sequence

from poet.calls import updates
from poet.calls.loops import Loop
from poet.calls.pieces.ways import Way
from poet.calls.references import (
    Reference,
    made_by,
    named_in,
    references,
    storage,
    storage_bytes,
)
from poet.calls.updates import ALL_UPDATES
from poet.values.graph import Call, Graph, Op


def workspace_bytes(
    op: Op,
    graph: Graph,
    loops: Sequence[Loop] = (),
    largest_tile: int = 0,
    kernels: Mapping[int, int] = {},
) -> int:
    """The most bytes that are alive at once inside the op beyond its inputs and outputs.

    `loops` are those that it streams parameters in, in tiles of at most `largest_tile` bytes;
    `kernels` are bytes that some calls take besides.
    """
    tile = {loop.parameter: loop.tile_rows(largest_tile) * loop.row_bytes for loop in loops}
    cut = {loop.gradient: tile[loop.parameter] for loop in loops if loop.gradient is not None}
    beside: dict[int, int] = {}
    for loop in loops:
        if loop.named_rows is not None and loop.update is None:
            continue  # rows go straight to the result
        for j in (loop.maker, loop.update):
            if j is not None:
                beside[j] = tile[loop.parameter] * len(loop.streamed)
    seated = {pair.output for pair in op.in_place}
    taken = [
        temporary_bytes(op, call, graph, tile) + beside.get(j, 0) + kernels.get(j, 0)
        for j, call in enumerate(op.calls)
    ]
    return _beyond_outputs(op, graph, seated, cut, taken)


def way_workspace_bytes(op: Op, graph: Graph, way: Way, kernels: Mapping[int, int] = {}) -> int:
    """The same for an op that runs piece by piece: its tiles, and what is inside it besides.

    Of a gradient that an update uses up, and of outputs that are streamed, only tiles exist.
    """
    streamed = {i for i, is_written in way.moved if is_written}
    seated = {pair.output for pair in op.in_place if (pair.input, False) not in way.moved}
    taken = [kernels.get(j, 0) for j in range(len(op.calls))]
    for part in way.parts:
        j = part.work.number
        beside = part.tile_bytes
        if part.nest is None:
            beside = temporary_bytes(op, op.calls[j], graph)
        taken[j] = max(taken[j], kernels.get(j, 0) + beside)
    return _beyond_outputs(op, graph, seated | streamed, dict.fromkeys(way.cut, 0), taken)


def _beyond_outputs(
    op: Op,
    graph: Graph,
    without: set[int],
    cut: Mapping[Reference, int],
    taken: Sequence[int],
) -> int:
    """The most bytes at once, call by call, beyond what the outputs take.

    Outputs `without` bytes of their own take none; of values that are `cut` there is only so much;
    `taken` is what each call takes for itself.
    """
    new_bytes = {i: graph.tensors[i].nbytes for i in op.outputs if i not in without}
    last_use = _last_uses(op)
    alive: dict[Reference, int] = {}
    peak = 0
    for j, call in enumerate(op.calls):
        for key, target in made_by(call):
            if key == "tensor":
                alive[key, target] = new_bytes.get(target, 0)
            elif op.values[target].view_of is None:
                alive[key, target] = cut.get((key, target), op.values[target].nbytes)
        peak = max(peak, sum(alive.values()) + taken[j])
        for reference in [r for r in alive if r[0] == "value" and last_use[r] <= j]:
            del alive[reference]
    return max(0, peak - sum(new_bytes.values()))


def _last_uses(op: Op) -> dict[Reference, int]:
    """For each storage the last call that makes or reads it, itself or through a view."""
    last: dict[Reference, int] = {}
    for j, call in enumerate(op.calls):
        for reference in named_in(call):
            last[storage(op, reference)] = j
    return last


def temporary_bytes(op: Op, call: Call, graph: Graph, tile: Mapping[int, int] = {}) -> int:
    """What an update takes for itself, for its whole parameter or a tile of it."""
    if call.kind not in ALL_UPDATES:
        return 0
    held = sum(
        tile.get(reference[1], storage_bytes(graph, op, reference))
        for name, reference in references(call)
        if name == "parameter"
    )
    return updates.temporary_bytes(call.kind, call.arguments, held)
