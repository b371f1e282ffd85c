"""The residency map's rows: which tensors, in which order, and which are too small to show.

Rows stand in the order in which the step first uses the tensors, so that forward and backward pass
make the two legs that drawings of such schedules have. A step of a large network has hundreds of
tensors of a few bytes; these are folded away until somebody asks for them.
"""

from poet.reports.page.history import StepHistory
from poet.values.graph import Graph

FOLD_SHARE = 0.001
"""Tensors below this share of the peak are folded at first."""


def row_order(graph: Graph, history: StepHistory) -> list[int]:
    """The tensors that are somewhere at some time: those that the step touches first in front,
    untouched ones at the end."""
    first: dict[int, int] = {}
    for at, event in enumerate(history.events):
        touched: tuple[int, ...] = (event.target,)
        if event.action in ("compute", "recompute"):
            op = graph.ops[event.target]
            touched = (*op.inputs, *op.outputs)
        for i in touched:
            first.setdefault(i, at)
    shown = [i for i, spans in enumerate(history.slot_spans) if spans]
    return sorted(shown, key=lambda i: (first.get(i, len(history.events)), i))


def fold_bytes(peak_bytes: int) -> int:
    """Tensors of fewer bytes than this are folded at first."""
    return int(peak_bytes * FOLD_SHARE)
