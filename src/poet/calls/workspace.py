"""Workspace: the memory an op needs while it runs, beside its inputs and its outputs.

The op's calls are replayed in order. An inner value is there from the call that makes it until the
last call that uses it or a view of it; an output is there from its call on, and takes nothing new
where it lies in the bytes of an input. In the moment of a call its arguments and its results are
there together. The referee counts all outputs of an op for as long as it runs, so only what goes
beyond them is workspace.

Where an op streams parameters, a tile of each, of its optimizer state and of its gradient is there
while the loop over the tiles runs, and nothing else of them.

What a kernel takes for itself and gives back before it returns is not seen here, except for
updates, whose arithmetic is POET's own.
"""

from collections.abc import Mapping, Sequence

from poet.calls.loops import Loop
from poet.calls.sizes import Reference, is_given, references, storage, storage_bytes
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
    new_bytes = {i: graph.tensors[i].nbytes for i in op.outputs if i not in seated}
    last_use = _last_uses(op, graph)
    alive: dict[Reference, int] = {}
    peak = 0
    for j, call in enumerate(op.calls):
        for result in call.results:
            for key, target in (result or {}).items():
                if key == "tensor":
                    alive[key, target] = new_bytes.get(target, 0)
                elif op.values[target].view_of is None:
                    alive[key, target] = cut.get((key, target), op.values[target].nbytes)
        temporary = _temporary_bytes(op, call, graph, tile)
        temporary += beside.get(j, 0) + kernels.get(j, 0)
        peak = max(peak, sum(alive.values()) + temporary)
        for reference in [r for r in alive if r[0] == "value" and last_use[r] <= j]:
            del alive[reference]
    return max(0, peak - sum(new_bytes.values()))


def _last_uses(op: Op, graph: Graph) -> dict[Reference, int]:
    """For each storage the last call that makes or reads it, itself or through a view."""
    last: dict[Reference, int] = {}
    for j, call in enumerate(op.calls):
        for _, reference in references(call):
            last[storage(graph, op, reference)] = j
        for result in call.results:
            for reference in (result or {}).items():
                last[storage(graph, op, reference)] = j
    return last


def _temporary_bytes(op: Op, call: Call, graph: Graph, tile: dict[int, int]) -> int:
    """One parameter's bytes for an update that does more than add a multiple of the gradient."""
    needs = _UPDATES.get(call.kind)
    if needs is None or not (needs == () or any(is_given(call.arguments.get(n)) for n in needs)):
        return 0
    return sum(
        tile.get(reference[1], storage_bytes(graph, op, reference))
        for name, reference in references(call)
        if name == "parameter"
    )


_UPDATES: dict[str, tuple[str, ...]] = {
    "poet.sgd": ("weight_decay", "nesterov"),
    "poet.adam": (),
    "poet.adamw": (),
}
"""Updates, and the arguments that make a temporary necessary; without a name it always is."""
