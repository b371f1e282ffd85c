"""On demand: a schedule from what a method forgets, by computing whatever is missing when asked.

A method drives an `OnDemand`: it runs ops, in the graph's order for first runs, and says which
tensors it forgets. When an op is to run and an input was forgotten, the input is loaded, if it was
paged, or its producer runs again, and before it whatever that needs, in the graph's order.

Only runs and loads are decided here. Where a tensor's time in RAM ends follows from them
(`poet.planner.model.staged`): right after its last use before it is made or loaded again. So a
method need not forget early, and a tensor it remembers but does not use holds no RAM.

Nothing that reads a consumed tensor runs again after it was consumed, as in the planner's model. A
tensor that could not be remade when somebody may ask for it (`Reach.lasting`) is not forgotten, nor
is one that is pinned. All runs are of the plain variant. RAM is not looked at: the referee does.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from poet.planner.model.staged import Staged, to_schedule
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Compute, Schedule


class Unobtainable(Exception):
    """A tensor is asked for that can neither be remade nor loaded; says which, and why."""


@dataclass(frozen=True)
class Reach:
    """How far into the step tensors matter, and which of them must be held because of it.

    `need[i]` is the last op before or in which tensor i may be asked for, were everything that can
    be remade forgotten; the number of ops for what is wanted at the end, -1 for what nobody reads.
    """

    need: tuple[int, ...]
    lasting: frozenset[int]


def reach(graph: Graph, budget: Budget) -> Reach:
    count, wanted = len(graph.ops), {*budget.end, *budget.pinned}
    consumer = [count if k is None else k for k in graph.consumer]
    need = [count if i in budget.end else -1 for i in range(len(graph.tensors))]
    lasting = set()
    for k in reversed(range(count)):
        op = graph.ops[k]
        again = op.recomputable and budget.recompute
        readable = min((consumer[i] for i in op.inputs), default=count) if again else -1
        last = k
        for i in op.outputs:
            if i in wanted or need[i] > readable:
                lasting.add(i)
            else:
                last = max(last, need[i])
        for i in op.inputs:
            need[i] = max(need[i], min(last, consumer[i]))
    return Reach(need=tuple(need), lasting=frozenset(lasting))


class OnDemand:
    """The step so far, as a method sees it: what has run, and what it has not forgotten."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget) -> None:
        self.graph, self.costs, self.budget = graph, costs, budget
        self.lasting = reach(graph, budget).lasting
        self.present = {i for i, place in budget.start.items() if place != "store"}
        self.in_store = {i for i, place in budget.start.items() if place != "ram"}
        self.pinned = frozenset(budget.pinned)
        self.stage = 0
        self.runs: list[list[Compute]] = [[] for _ in graph.ops]
        self.loads: list[set[int]] = [set() for _ in graph.ops]
        self.gone: set[int] = set()

    def run(self, k: int) -> None:
        """Run an op, for the first time or again; again only if one of its outputs is missing."""
        over = self.stage == len(self.graph.ops)
        if over or (k < self.stage and self.present.issuperset(self.graph.ops[k].outputs)):
            return
        self.fetch(self.graph.ops[k].inputs)
        self._compute(k)
        self.stage += k == self.stage

    def forget(self, tensors: Iterable[int]) -> None:
        """These are to be remade, or loaded, when they are asked for again."""
        for i in tensors:
            remade = self.graph.producer[i] is not None and i not in self.lasting
            if remade or (i in self.in_store and i not in self.pinned):
                self.present.discard(i)

    def page(self, tensors: Iterable[int]) -> None:
        """These wait in the store, from when they are first made."""
        ids = [i for i in tensors if i not in self.gone and i not in self.pinned]
        self.in_store.update(ids)
        self.present.difference_update(ids)

    def fetch(self, tensors: Iterable[int]) -> None:
        """Have these present: load what is in the store, and remake the rest."""
        loads, ops = self.recipe(tensors)
        if loads:
            if not self.budget.paging:
                text = self.graph.tensor_text(min(loads))
                raise Unobtainable(f"{text} is in the store, and nothing may be paged")
            self.loads[self.stage] |= loads
            self.present |= loads
        for k in sorted(ops):
            self._compute(k)

    def recipe(self, tensors: Iterable[int]) -> tuple[set[int], set[int]]:
        """The tensors to load and the ops to run again, to have these present."""
        loads: set[int] = set()
        ops: set[int] = set()
        asked = [i for i in tensors if i not in self.present]
        while asked:
            i = asked.pop()
            if i in self.in_store:
                loads.add(i)
                continue
            k = self.graph.producer[i]
            if k is None or not self._runs_again(k):
                raise Unobtainable(f"{self.graph.tensor_text(i)} can no longer be made")
            if k not in ops:
                ops.add(k)
                asked += [j for j in self.graph.ops[k].inputs if j not in self.present]
        return loads, ops

    def schedule(self) -> Schedule:
        """The whole schedule, when every op has run."""
        wanted = [i for i, place in self.budget.end.items() if place in ("ram", "both")]
        for i in self.gone.intersection(wanted):
            raise Unobtainable(f"{self.graph.tensor_text(i)} is consumed, but wanted at the end")
        loads, ops = self.recipe(wanted)
        if ops:
            raise Unobtainable(f"{self.graph.op_text(min(ops))} would run after the last op")
        staged = Staged(
            runs=tuple(map(tuple, self.runs)),
            loads=tuple(map(frozenset, self.loads)),
            end_loads=frozenset(loads),
        )
        return to_schedule(self.graph, self.costs, self.budget, staged)

    def _runs_again(self, k: int) -> bool:
        op = self.graph.ops[k]
        again = op.recomputable and self.budget.recompute and k < self.stage
        return again and self.gone.isdisjoint(op.inputs)

    def _compute(self, k: int) -> None:
        op = self.graph.ops[k]
        self.runs[self.stage].append(Compute(k))
        self.present.difference_update(op.consumed)
        self.in_store.difference_update(op.consumed)
        self.gone.update(op.consumed)
        self.present.update(op.outputs)
