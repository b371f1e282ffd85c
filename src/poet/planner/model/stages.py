"""Stages: which op may run, and which tensor may matter, in which stage (FORMULATION 1).

Stage t is the stretch of the schedule that ends with the first run of op t. An earlier op may run
again in stage t if it is recomputable, if nothing it reads has been consumed before, and if one of
its outputs can still be useful then. A tensor can be useful until the last stage in which one of
its readers may run. Everything else needs no variable.
"""

import numpy as np

from poet.planner.model.staged import Staged, from_schedule
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Schedule


class Stages:
    """For each op the last stage it may run in; for each tensor the last stage it is useful in.

    `last[v]` is v itself where op v never runs again. `need[i]` is T, one past the last stage, for
    a tensor that may have to be in RAM when the step ends, or is pinned there, and -1 for one that
    nobody reads.
    """

    def __init__(self, graph: Graph, budget: Budget) -> None:
        self.graph = graph
        self.count = len(graph.ops)
        never = self.count
        consumer = np.array([never if k is None else k for k in graph.consumer], dtype=np.int64)
        self.consumed = frozenset(np.flatnonzero(consumer < self.count).tolist())
        self.first = np.array([-1 if p is None else p for p in graph.producer], dtype=np.int64)
        self.last = np.arange(self.count)
        self.need = np.full(len(graph.tensors), -1, dtype=np.int64)
        for i, place in budget.end.items():
            if place != "store" and consumer[i] == self.count:
                self.need[i] = self.count
        for i in budget.pinned:
            self.need[i] = min(self.count, int(consumer[i]))
        for v in range(self.count - 1, -1, -1):
            op = graph.ops[v]
            if op.recomputable and budget.recompute:
                useful = max(int(self.need[i]) for i in op.outputs)
                readable = min((int(consumer[i]) for i in op.inputs), default=self.count)
                self.last[v] = max(v, min(useful, readable, self.count - 1))
            for i in op.inputs:
                self.need[i] = max(self.need[i], min(int(self.last[v]), int(consumer[i])))


def core_in_model(stages: Stages, costs: Costs, schedule: Schedule) -> Staged | None:
    """The core of a schedule if it is a point of the exact model, which makes nothing again that
    was consumed."""
    staged = from_schedule(stages.graph, costs, schedule)
    if staged is None or staged.end_loads & stages.consumed:
        return None
    runs = ((t, step.op) for t, stage in enumerate(staged.runs) for step in stage)
    return staged if all(t <= stages.last[v] for t, v in runs) else None
