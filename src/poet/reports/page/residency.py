"""The residency map's rows: which tensors, in which order, and which are too small to show.

Rows stand in the order in which the step first uses the tensors, so that forward and backward pass
make the two legs that drawings of such schedules have. A step of a large network has hundreds of
tensors of a few bytes; these are folded away until somebody asks for them.
"""

from poet.reports.page.walk import Walk
from poet.values.graph import Graph

FOLD_SHARE = 0.001
"""Tensors below this share of the peak are folded at first."""


def first_uses(graph: Graph, walk: Walk) -> list[int]:
    """Tensor ids, those that the step touches first in front; untouched ones at the end."""
    first: dict[int, int] = {}
    for at, step in enumerate(walk.steps):
        touched: tuple[int, ...] = (step.target,)
        if step.action in ("compute", "recompute"):
            op = graph.ops[step.target]
            touched = (*op.inputs, *op.outputs)
        for i in touched:
            first.setdefault(i, at)
    return sorted(range(len(graph.tensors)), key=lambda i: (first.get(i, len(walk.steps)), i))


def fold_bytes(peak_bytes: int) -> int:
    """Tensors of fewer bytes than this are folded at first."""
    return int(peak_bytes * FOLD_SHARE)


def is_shown(walk: Walk, i: int) -> bool:
    """Whether a tensor has a row at all: it is somewhere at some time."""
    return bool(walk.slot_spans[i])
