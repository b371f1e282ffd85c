"""Chain: the step as a row of forward segments, each with the part of backward that undoes it.

The forward pass is cut after some of its ops. What crosses a cut (made before it, read by a later
forward op) is a state, from which the rest of the forward pass can be run; a method that thinks in
chains keeps states and remakes what lies between. Tensors that exist when the step starts, such as
parameters, cross for nothing.

`articulations` are the cuts that one tensor crosses: every path passes through it. Where a graph
has few of them (a U-Net's skips span most of it), `boundaries` cuts after any op, and a state is
all that crosses. Methods try both and keep what is cheaper.

An op after the forward pass belongs to the highest segment whose tensors it reads, but never to a
higher one than the op before it, so that segments are undone in order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from poet.baselines.on_demand import OnDemand
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Schedule


class Cut(NamedTuple):
    """The op it comes after, and the tensors that cross it."""

    after: int
    state: tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """A stretch of the forward pass. `entry` is the state before it, `made` what it makes."""

    ops: range
    entry: tuple[int, ...]
    made: tuple[int, ...]
    undone_by: tuple[int, ...]


Chain = tuple[Segment, ...]


def forward_count(graph: Graph) -> int:
    """How many ops the step begins with that are forward."""
    return next((k for k, op in enumerate(graph.ops) if op.phase != "forward"), len(graph.ops))


def boundaries(graph: Graph) -> list[Cut]:
    """A cut after each forward op but the last."""
    count = forward_count(graph)
    until = [
        max((k for k in readers if k < count), default=-1) if maker is not None else -1
        for readers, maker in zip(graph.readers, graph.producer, strict=True)
    ]
    cuts, crossing = [], set[int]()
    for k in range(count - 1):
        crossing = {i for i in crossing.union(graph.ops[k].outputs) if until[i] > k}
        cuts.append(Cut(k, tuple(sorted(crossing))))
    return cuts


def articulations(graph: Graph) -> list[Cut]:
    """The cuts that one tensor crosses, or none."""
    return [cut for cut in boundaries(graph) if len(cut.state) <= 1]


CUTS: dict[str, Callable[[Graph], list[Cut]]] = {
    "articulation points": articulations,
    "op boundaries": boundaries,
}


def all_cuts(graph: Graph) -> Iterator[tuple[str, list[Cut]]]:
    """Both ways to cut, or one where they agree; none where there is nothing to cut."""
    known = []
    for name, find in CUTS.items():
        cuts = find(graph)
        if cuts and cuts not in known:
            known.append(cuts)
            yield name, cuts


def chain_of(graph: Graph, cuts: list[Cut]) -> Chain:
    """The segments between these cuts, in order."""
    count = forward_count(graph)
    edges = [-1, *(cut.after for cut in cuts), count - 1]
    entries = [(), *(cut.state for cut in cuts)]
    segments = [range(a + 1, b + 1) for a, b in pairwise(edges)]
    home = {i: s for s, ops in enumerate(segments) for k in ops for i in graph.ops[k].outputs}
    undone_by: list[list[int]] = [[] for _ in segments]
    at = len(segments) - 1
    for k in range(count, len(graph.ops)):
        at = min(at, max((home[i] for i in graph.ops[k].inputs if i in home), default=at))
        undone_by[at].append(k)
    return tuple(
        Segment(
            ops=ops,
            entry=entry,
            made=tuple(i for k in ops for i in graph.ops[k].outputs),
            undone_by=tuple(undoing),
        )
        for ops, entry, undoing in zip(segments, entries, undone_by, strict=True)
    )


def tape_of(graph: Graph, segment: Segment) -> tuple[int, ...]:
    """What a segment makes and ops after the forward pass read."""
    count = forward_count(graph)
    return tuple(i for i in segment.made if graph.readers[i] and graph.readers[i][-1] >= count)


def checkpointed(graph: Graph, costs: Costs, budget: Budget, cuts: list[Cut]) -> Schedule:
    """Keep the states at the cuts; run each segment again, once, before backward undoes it.

    What the last segment made is needed at once, and stays. With no cuts nothing is dropped.
    """
    chain = chain_of(graph, cuts)
    step = OnDemand(graph, costs, budget)
    for segment in chain:
        for k in segment.ops:
            step.run(k)
    states = {i for cut in cuts for i in cut.state}
    for segment in chain[:-1]:
        step.forget(i for i in segment.made if i not in states)
    for segment in reversed(chain):
        for k in (*segment.ops, *segment.undone_by):
            step.run(k)
    return step.schedule()
