"""Where RAM is scarce: the ops at which a program of crossings is worth its rows.

Were everything kept that is still to be read, an op would run beside so many bytes. Where that is
most, and at least as much as for all ops near by, is a peak. What lies between two peaks has more
room than they leave it.
"""

from collections.abc import Iterator

import numpy as np

from poet.planner.model.matrix import Ints
from poet.planner.proof.floor import working_set_bytes
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget

MOST_CHOSEN = 16
"""At more ops the program is larger and its bound mostly lower (docs/decisions/024)."""
MORE = 1.3
"""By what factor one choice is larger than the one before, at least. By hand."""
EVERY_REACH = 300
"""Up to so many ops every distance between peaks is tried; it takes milliseconds."""


def excess_bytes(graph: Graph, costs: Costs, budget: Budget) -> Ints:
    """For each op by how much RAM would be too small for it, were everything kept."""
    count = len(graph.ops)
    steps: Ints = np.zeros(count + 2, dtype=np.int64)
    last = [readers[-1] if readers else -1 for readers in graph.readers]
    for i, place in budget.end.items():
        last[i] = count if place in ("ram", "both") else last[i]
    for i, tensor in enumerate(graph.tensors):
        maker = graph.producer[i]
        first = -1 if maker is None else maker
        if last[i] > first:
            steps[first + 1] += tensor.nbytes
            steps[last[i]] -= tensor.nbytes
    waiting: Ints = np.cumsum(steps)[:count]
    for k, op in enumerate(graph.ops):
        waiting[k] += min(
            working_set_bytes(graph, op, run)
            for run in costs.ops[k].values()
            if budget.paging or not (run.reads or run.writes)
        )
        waiting[k] -= sum(graph.tensors[i].nbytes for i in op.inputs if last[i] > k)
    limit = 0 if budget.ram_bytes is None else budget.ram_bytes
    return waiting - limit


def peaks(excess: Ints, reach: int) -> tuple[int, ...]:
    """The ops that are too large for RAM by more than any within `reach` of them: the first of
    equals."""
    found: list[int] = []
    for k in np.flatnonzero(excess > 0).tolist():
        near = excess[max(0, k - reach) : k + reach + 1]
        if excess[k] == near.max() and not (found and k - found[-1] <= reach):
            found.append(k)
    return tuple(found)


def scarce_ops(excess: Ints) -> Iterator[tuple[int, ...]]:
    """Choices of ops, few first: the fullest alone, then peaks that are closer and closer."""
    known = 0
    for reach in range(excess.size, 0, -1) if excess.size <= EVERY_REACH else _spread(excess.size):
        chosen = peaks(excess, reach)
        if len(chosen) > MOST_CHOSEN:
            return
        if len(chosen) >= MORE * known and chosen:
            known = len(chosen)
            yield chosen


def _spread(most: int) -> Iterator[int]:
    reach = most
    while reach:
        yield reach
        reach = reach * 4 // 5
