"""Streams: the variants of ops as the tape needs them.

A plain op has all its tensors in RAM. A streamed one leaves its large parameters in the store: the
calls that make or use them become loops over tiles (`tiles`), and the calls that only look at them,
or at their gradients, in another way are left out.
"""

from collections.abc import Mapping
from typing import NamedTuple

from poet.calls.loops import TILE_BYTES, loops
from poet.calls.pieces.choices import Choice, choice_named
from poet.calls.pieces.ways import planned_way
from poet.calls.references import Reference, storage
from poet.calls.torch_tiles import torch_piece_bytes, torch_tile_bytes
from poet.calls.workspace import way_workspace_bytes, workspace_bytes
from poet.errors import PoetError
from poet.runtime.step.pieces import Pieces
from poet.runtime.step.tiles import Streamed
from poet.values.device import PLAIN, Run
from poet.values.graph import Graph, Op


class Way(NamedTuple):
    """One way to run an op."""

    workspace_bytes: int
    reads: frozenset[int] = frozenset()
    """Inputs that come from the store while it runs."""
    writes: frozenset[int] = frozenset()
    """Outputs that go there."""
    makers: Mapping[int, Streamed | Pieces] = {}
    """Loops, by the call that each stands for."""
    left_out: frozenset[int] = frozenset()
    """Calls that are not made."""
    away: frozenset[Reference] = frozenset()
    """What is never whole in RAM, so that no argument can name it."""


def way_of(graph: Graph, k: int, variant: str, run: Run) -> Way:
    """A variant of op k that has these costs."""
    op = graph.ops[k]
    if variant == PLAIN:
        return Way(max(run.workspace_bytes, workspace_bytes(op, graph)))
    choice = choice_named(variant)
    if choice is not None:
        return _in_pieces(graph, k, choice, run)
    found = loops(graph, k) if variant in TILE_BYTES else ()
    reads = frozenset(i for loop in found for i in loop.streamed)
    writes = frozenset(i for loop in found for i in loop.updated)
    planned = [frozenset(stream.tensor for stream in each) for each in (run.reads, run.writes)]
    if not found or [reads, writes] != planned:
        raise PoetError(
            f"the plan runs {graph.op_text(k)} as {variant!r}, which this version of POET does "
            "in another way or not at all: plan again"
        )
    makers = {
        loop.maker: Streamed(graph, k, loop, loop.tile_rows(TILE_BYTES[variant])) for loop in found
    }
    away = frozenset(("tensor", i) for i in reads) | {
        loop.gradient for loop in found if loop.gradient is not None
    }
    updates = {loop.update for loop in found if loop.update is not None}
    kernels = torch_tile_bytes(graph, k, found, TILE_BYTES[variant])
    needs = workspace_bytes(op, graph, found, TILE_BYTES[variant], kernels)
    return Way(
        max(run.workspace_bytes, needs),
        reads,
        writes,
        makers,
        frozenset(updates | {at for at in range(len(op.calls)) if _looks_at(graph, op, at, away)}),
        away,
    )


def _in_pieces(graph: Graph, k: int, choice: Choice, run: Run) -> Way:
    """A variant in which calls go block by block."""
    op, found = graph.ops[k], planned_way(graph, k, choice.name, run)
    numbers = {part.work.number for part in found.parts if part.nest is not None}
    makers = {number: Pieces(graph, k, number, found) for number in sorted(numbers)}
    away = frozenset(("tensor", i) for i in choice.streamed) | found.cut
    updates = {number for maker in makers.values() for number in maker.updates}
    needs = way_workspace_bytes(op, graph, found, torch_piece_bytes(found))
    return Way(
        max(run.workspace_bytes, needs),
        choice.reads,
        choice.writes,
        makers,
        frozenset(
            (updates - numbers)
            | {at for at in range(len(op.calls)) if _looks_at(graph, op, at, away)}
        ),
        away,
    )


def _looks_at(graph: Graph, op: Op, at: int, away: frozenset[Reference]) -> bool:
    """Whether a call makes nothing but views of what is away."""
    made = [item for result in op.calls[at].results for item in (result or {}).items()]
    return bool(made) and all(
        key == "value"
        and op.values[target].view_of is not None
        and storage(op, (key, target)) in away
        for key, target in made
    )
