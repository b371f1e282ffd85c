"""Granularity: the graph that is planned, made from the graph that was captured.

A capture has an op for each kernel, and updates of their own. What is planned has fewer ops, merged
where there is nothing to decide (`merging`), and gradients fused with their updates where
parameters are to be read in tiles (`fusing`). One capture serves every granularity.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from poet.rewrites.fusing import fused
from poet.rewrites.joining import renumbered
from poet.rewrites.merging import merged
from poet.values.graph import Graph

Granularity = Literal["planning", "op"]


class Rewritten(NamedTuple):
    """A graph that computes the same, and where each tensor of the old one is in it."""

    graph: Graph
    place: dict[int, int]


def rewritten(
    graph: Graph,
    granularity: Granularity,
    fuse_updates: bool,
    visible: Iterable[int],
    kept: Iterable[int],
) -> Rewritten:
    """The graph at a granularity, with updates fused or apart.

    `visible` are tensors that no merging may hide; `kept` stay though no op reads or makes them.
    """
    ops = list(graph.ops)
    if fuse_updates:
        ops = fused(graph.tensors, ops)
    if granularity == "planning":
        ops = merged(graph.tensors, ops, frozenset(visible), fused=fuse_updates)
    tensors, ops, place = renumbered(graph.tensors, ops, kept)
    made = msgspec.structs.replace(graph, tensors=tuple(tensors), ops=tuple(ops))
    return Rewritten(made, place)
