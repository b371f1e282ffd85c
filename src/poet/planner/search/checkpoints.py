"""Checkpoints: a schedule that recomputes, at once and at any number of ops.

What is in RAM at the op where RAM is scarcest settles most of what a schedule pays. A linear
program says what to hold there (crossing.py), almost in whole numbers; the rest is forgotten then
and made again when somebody asks for it, as late as possible, and held until its last use. That
needs RAM for what is made again, so the program is given less than there is, and how much less is
found by trying. Where that finds nothing, tensors that the forward pass cannot go on without are
held at more and more places, so that little is made again at a time.

Nothing is paged, and no op runs in another variant than its first.
"""

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from poet.planner.backends import Backend, Limits, find_backend
from poet.planner.model.crossing import Crossing, crossing
from poet.planner.model.reach import Reach
from poet.planner.model.staged import Staged, to_schedule
from poet.planner.proof.scarce import excess_bytes
from poet.referee.replay import check
from poet.values.device import PLAIN, Costs
from poet.values.graph import Graph
from poet.values.plan import draft
from poet.values.schedule import Budget, Compute, Effort, Schedule, Solution

SHARES = (0.96, 0.9, 0.8, 0.65, 0.5, 0.35)
"""Of the RAM, for the program. GPT-2 with 24 and 48 layers: 0.96 to 0.98 at 55 %, 0.95 to 0.97 at
32 % of keep-all's peak."""
FINEST = 0.003
"""Shares are bisected down to this."""
WHOLE = 1 - 1e-6


class _Unobtainable(Exception):
    """Something is asked for that cannot be made again."""


def checkpoints(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    """The best of the schedules tried."""
    best: tuple[float, Schedule] | None = None
    for joules, schedule in improving(graph, costs, budget, effort):
        best = joules, schedule
    if best is None:
        return Solution(status="unknown", reason="no choice of checkpoints fits")
    return Solution(status="feasible", schedule=best[1])


def first_checkpoints(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    """The first schedule found."""
    with closing(improving(graph, costs, budget, effort)) as found:
        for _, schedule in found:
            return Solution(status="feasible", schedule=schedule)
    return Solution(status="unknown", reason="no choice of checkpoints fits")


def improving(
    graph: Graph, costs: Costs, budget: Budget, effort: Effort
) -> Generator[tuple[float, Schedule], None, None]:
    """Valid schedules, each better than those before, with their joules."""
    if budget.ram_bytes is None or not budget.recompute:
        return
    if any(PLAIN not in runs for runs in costs.ops) or "store" in budget.start.values():
        return
    excess = excess_bytes(graph, costs, budget)
    if not excess.size or excess.max() <= 0:
        return
    backend = find_backend(effort.solver)
    try:
        fullest = int(np.argmax(excess))
        yield from _Trials(graph, costs, budget, effort, fullest, backend).improving()
    finally:
        backend.close()


class _Trials:
    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        budget: Budget,
        effort: Effort,
        at: int,
        backend: Backend,
    ) -> None:
        self.graph, self.costs, self.budget, self.at = graph, costs, budget, at
        self.ends = time.monotonic() + effort.time_limit_seconds
        self.backend = backend
        self.last_run = Reach(graph, budget).last.tolist()
        plain = msgspec.structs.replace(budget, paging=False, deadline_seconds=None)
        self.crossing: Crossing = crossing(graph, costs, plain, (at,))
        self.best = np.inf

    def improving(self) -> Iterator[tuple[float, Schedule]]:
        for states in (frozenset[int](), *self._states()):
            yield from self._by_share(states)
            if self.best < np.inf:
                return

    def _by_share(self, states: frozenset[int]) -> Iterator[tuple[float, Schedule]]:
        """Less and less RAM for the program until a schedule is valid, then by bisection."""
        trials, too_much, enough = [*SHARES], 1.0, 0.0
        while trials and time.monotonic() < self.ends:
            share = trials.pop(0)
            joules, schedule = self.attempt(share, states)
            if joules < np.inf:
                enough, trials = share, []
            else:
                too_much = share
            if joules < self.best:
                self.best = joules
                yield joules, schedule
            if enough and too_much - enough > FINEST:
                trials = [(too_much + enough) / 2]

    def attempt(self, share: float, states: frozenset[int]) -> tuple[float, Schedule]:
        """Joules are infinite where the schedule is not valid."""
        held = self.held(share, states)
        if held is None:
            return np.inf, ()
        try:
            schedule = self.schedule(held)
        except _Unobtainable:
            return np.inf, ()
        report = check(draft(self.graph, self.costs, self.budget, schedule))
        return (report.joules if report.valid else np.inf), schedule

    def held(self, share: float, states: frozenset[int]) -> set[int] | None:
        """What to hold at the op with so much of the RAM, and these in any case."""
        relaxation, columns = self.crossing.relaxation, self.crossing.held[0]
        assert self.budget.ram_bytes is not None
        milp, memory = relaxation.milp, relaxation.memory_rows[0]
        room, low = milp.row_high.copy(), milp.low.copy()
        less = (1 - share) * self.budget.ram_bytes / relaxation.unit_bytes
        room[np.searchsorted(milp.row_ids, memory)] -= less
        low[[columns[i] for i in states if i in columns]] = 1.0
        milp = replace(milp, low=np.minimum(low, milp.high), row_high=room)
        limits = Limits(seconds=max(0.0, self.ends - time.monotonic()))
        answer = self.backend.solve_linear(milp, limits)
        if answer.values is None:
            return None
        return {i for i, column in columns.items() if answer.values[column] > WHOLE}

    def schedule(self, held: set[int]) -> Schedule:
        graph, at = self.graph, self.at
        present = {i for i, place in self.budget.start.items() if place != "store"}
        runs: list[tuple[Compute, ...]] = []
        for t, op in enumerate(graph.ops):
            ops = self.remade(op.inputs, present, t)
            for k in ops:
                present.difference_update(graph.ops[k].consumed)
                present.update(graph.ops[k].outputs)
            present.difference_update(op.consumed)
            present.update(op.outputs)
            runs.append((*map(Compute, ops), Compute(t)))
            if t == at:
                present.difference_update(
                    i for i in self.crossing.held[0] if i not in held and self.again(i, t + 1)
                )
        loads: frozenset[int] = frozenset()
        staged = Staged(runs=tuple(runs), loads=(loads,) * len(runs))
        return to_schedule(graph, self.costs, self.budget, staged)

    def again(self, i: int, stage: int) -> bool:
        maker = self.graph.producer[i]
        return maker is not None and self.last_run[maker] >= stage

    def remade(self, wanted: Iterable[int], present: set[int], stage: int) -> list[int]:
        """The ops that run again, in order, to have these present."""
        graph, found = self.graph, set[int]()
        asked = [i for i in wanted if i not in present]
        while asked:
            i = asked.pop()
            maker = graph.producer[i]
            if maker is None or not self.again(i, stage):
                raise _Unobtainable
            if maker not in found:
                found.add(maker)
                asked += [j for j in graph.ops[maker].inputs if j not in present]
        return sorted(found)

    def _states(self) -> Iterator[frozenset[int]]:
        """What the forward pass needs to go on, at more and more places."""
        states = self._crossing_states()
        count = 2
        while count <= len(states):
            edges = [len(states) * n // count for n in range(count + 1)]
            parts = [states[a:b] for a, b in pairwise(edges)]
            yield frozenset[int]().union(*(min(part)[1] for part in parts))
            count *= 2

    def _crossing_states(self) -> list[tuple[int, frozenset[int]]]:
        """After each op up to the scarcest: what was made and is read later up to there."""
        graph = self.graph
        sizes = [tensor.nbytes for tensor in graph.tensors]
        until = [max((v for v in readers if v <= self.at), default=-1) for readers in graph.readers]
        found, open_ = [], set[int]()
        for k in range(self.at):
            open_.update(graph.ops[k].outputs)
            open_ = {i for i in open_ if until[i] > k}
            found.append((sum(sizes[i] for i in open_), frozenset(open_)))
        return found
