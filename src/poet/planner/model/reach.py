"""Reach: in which stage an op may run, and a tensor be of use, in any schedule in the given order.

Stage t is the stretch of a schedule that ends with the first run of op t; stage T, the tail, ends
with the step. Nothing more is asked of a schedule than that ops run for the first time in the
graph's order: inside a stage ops may run again in any order, as often as they like, and what an op
consumed may be made again by who made it.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from poet.planner.model.matrix import Ints
from poet.values.graph import Graph
from poet.values.schedule import Budget

Mask = npt.NDArray[np.bool_]


class Reach:
    """For each op the last stage it may run in; for each tensor the last it can be of use in.

    `last[v]` is v itself where op v never runs again, and T where it may in the tail. `need[i]` is
    -1 for a tensor that nobody reads. `until[i]` is the last stage in which a tensor can be in RAM
    at all, and `wanted` are those that must be there when the step ends.
    """

    def __init__(self, graph: Graph, budget: Budget) -> None:
        self.graph, self.count = graph, len(graph.ops)
        end = self.count
        consumer = [end if k is None else k for k in graph.consumer]
        self.first: Ints = np.array(
            [-1 if k is None else k for k in graph.producer], dtype=np.int64
        )
        may, self.until = self._possible(budget, consumer)
        self.wanted = frozenset(i for i, place in budget.end.items() if place in ("ram", "both"))
        self.last: Ints = np.arange(end)
        self.need: Ints = np.full(len(graph.tensors), -1, dtype=np.int64)
        for i, place in budget.end.items():
            if place != "store" and self.until[i] == end:
                self.need[i] = end
        for i in budget.pinned:
            self.need[i] = min(end, consumer[i])
        for v in range(end - 1, -1, -1):
            op = graph.ops[v]
            if may[v] > v:
                useful = max(int(self.need[i]) for i in op.outputs)
                self.last[v] = max(v, min(useful, may[v]))
            for i in op.inputs:
                self.need[i] = max(self.need[i], min(int(self.last[v]), self.until[i]))

    def _possible(self, budget: Budget, consumer: list[int]) -> tuple[list[int], list[int]]:
        """The last stage in which each op could run, and each tensor be there, useful or not."""
        graph, end = self.graph, self.count
        may, until = list(range(end)), consumer.copy()
        for v, op in enumerate(graph.ops):
            if op.recomputable and budget.recompute:
                may[v] = max(v, min((until[i] for i in op.inputs), default=end))
            for i in op.outputs:
                if may[v] > consumer[i]:  # made again after it was consumed, it may stay
                    until[i] = end
        return may, until


def masks(
    graph: Graph, reach: Reach, window: int | None, cut_stages: Iterable[int] = ()
) -> tuple[list[Mask], list[Mask]]:
    """In which of the stages v … last[v] op v may run: with its inputs (`reads`), or at all.

    Without a window both are all of them. With one, an op runs with its inputs only in the `window`
    stages up to each stage whose own op reads one of its outputs, or the tail if one is wanted
    there. What else a schedule may do is allowed without any inputs, and an op with several outputs
    then costs only its share for each: a recomputation outside the windows is counted at the next
    stage in which its output can be used, just before the next window or one of the `cut_stages`
    (cuts.py), or in the last stage the op may run in, whichever comes first.
    """
    end = reach.count
    if window is None:
        every = [np.ones(int(last) - v + 1, dtype=bool) for v, last in enumerate(reach.last)]
        return every, every
    reads = []
    for v, op in enumerate(graph.ops):
        near = np.zeros(end + 1, dtype=bool)
        for i in op.outputs:
            for user in graph.readers[i]:
                near[max(0, user - window) : user + 1] = True
            if reach.need[i] == end:
                near[max(0, end - window) :] = True
        mask = near[v : int(reach.last[v]) + 1].copy()
        mask[0] = True
        reads.append(mask)
    makes = []
    for v, op in enumerate(graph.ops):
        used = np.zeros(end + 1, dtype=bool)
        for i in op.outputs:
            for user in graph.readers[i]:
                used[user : int(reach.last[user]) + 1] |= reads[user]
            used[end] |= i in reach.wanted
        last = int(reach.last[v])
        made = reads[v] | used[v : last + 1] | np.append(reads[v][1:], False)
        for a in cut_stages:
            if v < a - 1 <= last:
                made[a - 1 - v] = True
        made[-1] |= any(reach.need[i] > last for i in op.outputs)  # the last chance to make it
        makes.append(made)
    return reads, makes
