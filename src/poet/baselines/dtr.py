"""DTR: evict when memory is short, and run again what is asked for, as it comes.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021. Ops run in the graph's order, as a
framework would issue them, and nothing is known of what comes. When an op does not fit, the
resident tensor with the least

    (joules of its op + joules of its evicted neighbourhood) / (bytes x staleness)

leaves. Staleness is the compute time since the tensor was last touched. The neighbourhood is all
that would have to run again because of it, or with it; as in their prototype (their "eq" variant)
it is not searched for but kept in classes: an evicted tensor joins the classes of its evicted
neighbours, and takes its own joules out again when it is remade, without splitting the class. What
is asked for and was evicted is remade, recursively; inputs of an op that waits are not evicted. A
tensor that nobody will read is evicted at once, as when a framework lets go of it.

Differences: joules take the place of seconds in the numerator, since joules are what is compared;
what exists when the step starts is never evicted, nor what could not be remade when it may be
wanted (`on_demand.reach`). Nothing is paged.
"""

import time
from math import inf

from poet.baselines.chain import checkpointed
from poet.baselines.judging import cheapest
from poet.baselines.on_demand import Unobtainable, reach
from poet.referee.replay import check
from poet.values.device import PLAIN, Costs
from poet.values.graph import Graph
from poet.values.plan import draft
from poet.values.schedule import Budget, Compute, Effort, Free, Instruction, Schedule, Solution

MOST_PASSES = 50
"""Gives up when so many times the ops of the graph have run: it thrashes."""


def dtr(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    deadline = time.monotonic() + effort.time_limit_seconds

    def simulate() -> Schedule:
        kept = checkpointed(graph, costs, budget, [])
        if check(draft(graph, costs, budget, kept)).valid:
            return kept
        step = _Simulation(graph, costs, budget)
        for k in range(len(graph.ops)):
            step.run(k, deadline)
        return tuple(step.schedule)

    return cheapest(graph, costs, budget, effort, [("with all it evicts", simulate)])


class _Simulation:
    """RAM, the clock and the classes of evicted tensors while the step runs."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget) -> None:
        self.graph, self.budget = graph, budget
        self.plain = [variants[PLAIN] for variants in costs.ops]
        self.nbytes = [tensor.nbytes for tensor in graph.tensors]
        self.reach = reach(graph, budget)
        self.classes = _Classes(graph, [run.joules for run in self.plain])
        self.schedule: list[Instruction] = []
        self.in_ram = {i for i, place in budget.start.items() if place != "store"}
        self.resident = sum(self.nbytes[i] for i in self.in_ram)
        self.evictable: set[int] = set()
        self.reads_left = [len(readers) for readers in graph.readers]
        self.pins = [0] * len(graph.tensors)
        self.touched = [0.0] * len(graph.tensors)
        self.now = 0.0
        self.first = 0
        self.runs = 0
        self.expiring: dict[int, list[int]] = {}
        for i in (*graph.given, *self.reach.lasting):
            self.expiring.setdefault(self.reach.need[i], []).append(i)
        self.free_expired(-1)

    def run(self, k: int, deadline: float) -> None:
        """Run op k for the first time, and before it whatever was evicted and is asked for."""
        self.first = k
        waiting = [k]
        self.pin(k, 1)
        while waiting:
            if self.runs > MOST_PASSES * len(self.graph.ops) or time.monotonic() > deadline:
                raise Unobtainable(
                    f"thrashes: {self.runs:,} runs and only {k:,} of {len(self.graph.ops):,} ops "
                    f"are done; the budget is {self.budget.ram_bytes or 0:,}"
                )
            op = self.graph.ops[waiting[-1]]
            missing = next((i for i in op.inputs if i not in self.in_ram), None)
            if missing is None:
                self.compute(waiting[-1])
                self.pin(waiting.pop(), -1)
                continue
            maker = self.graph.producer[missing]
            if maker is None:
                raise Unobtainable(f"{self.graph.tensor_text(missing)} can no longer be made")
            self.pin(maker, 1)
            waiting.append(maker)
        for i in self.graph.ops[k].inputs:
            self.reads_left[i] -= 1
        for i in (*self.graph.ops[k].inputs, *self.graph.ops[k].outputs):
            if i in self.evictable and not self.reads_left[i]:
                self.evict(i)
        self.free_expired(k)

    def pin(self, k: int, by: int) -> None:
        for i in self.graph.ops[k].inputs:
            self.pins[i] += by

    def compute(self, k: int) -> None:
        op, run = self.graph.ops[k], self.plain[k]
        seated = {pair.output for pair in op.in_place}
        arriving = [i for i in op.outputs if i not in self.in_ram]
        # What is still there keeps its value; the second copy is workspace.
        more = sum(self.nbytes[i] for i in op.outputs if i not in seated) + run.workspace_bytes
        self.make_room(more, k)
        self.schedule.append(Compute(k))
        self.runs += 1
        self.now += run.seconds
        for i in op.consumed:
            self.in_ram.discard(i)
            self.evictable.discard(i)
            self.resident -= self.nbytes[i]
        for i in arriving:
            self.in_ram.add(i)
            self.resident += self.nbytes[i]
            self.classes.remade(i)
            if i not in self.reach.lasting:
                self.evictable.add(i)
        for i in (*op.inputs, *op.outputs):
            self.touched[i] = self.now
        if k == self.first:
            return
        for i in arriving:  # a by-product that nobody asked for: nobody holds it
            if i not in self.evictable:
                if self.reach.need[i] < self.first:
                    self.leave(i)
            elif not self.reads_left[i] and not self.pins[i]:
                self.evict(i)

    def make_room(self, more: int, k: int) -> None:
        limit = self.budget.ram_bytes
        while limit is not None and self.resident + more > limit:
            candidates = [i for i in self.evictable if not self.pins[i] and self.nbytes[i]]
            if not candidates:
                need = f"{self.graph.op_text(k)} needs {self.resident + more:,} bytes"
                raise Unobtainable(
                    f"{need} when all is evicted that can be; the budget is {limit:,}"
                )
            self.evict(min(candidates, key=lambda i: (self.score(i), i)))

    def score(self, i: int) -> float:
        stale = self.now - self.touched[i]
        joules = self.classes.own[i] + self.classes.neighbourhood(i)
        return joules / (self.nbytes[i] * stale) if stale > 0 else inf

    def evict(self, i: int) -> None:
        self.leave(i)
        self.evictable.discard(i)
        self.classes.evicted(i)

    def free_expired(self, k: int) -> None:
        """Free what is never evicted and can no longer matter."""
        for i in self.expiring.get(k, ()):
            if i in self.in_ram and i not in self.budget.end and i not in self.budget.pinned:
                self.leave(i)

    def leave(self, i: int) -> None:
        self.schedule.append(Free(i))
        self.in_ram.remove(i)
        self.resident -= self.nbytes[i]


class _Classes:
    """Classes of evicted tensors that depend on each other, with the joules to remake each."""

    def __init__(self, graph: Graph, joules: list[float]) -> None:
        made_by = graph.producer
        self.own = [0.0 if k is None else joules[k] for k in made_by]
        self.neighbours = [
            tuple(
                j
                for j in {
                    *(() if k is None else graph.ops[k].inputs),
                    *(o for reader in graph.readers[i] for o in graph.ops[reader].outputs),
                }
                if made_by[j] is not None
            )
            for i, k in enumerate(made_by)
        ]
        self.parent: dict[int, int] = {}
        self.joules: dict[int, float] = {}
        self.member: dict[int, int] = {}  # an evicted tensor's node in the forest
        self.nodes = 0

    def root(self, node: int) -> int:
        while self.parent[node] != node:
            self.parent[node] = node = self.parent[self.parent[node]]
        return node

    def around(self, i: int) -> set[int]:
        """The classes of the evicted neighbours."""
        return {self.root(self.member[j]) for j in self.neighbours[i] if j in self.member}

    def neighbourhood(self, i: int) -> float:
        return sum(self.joules[root] for root in self.around(i))

    def evicted(self, i: int) -> None:
        roots = self.around(i)
        self.nodes = node = self.nodes + 1
        self.parent[node] = node
        self.joules[node] = self.own[i] + sum(self.joules[root] for root in roots)
        for root in roots:
            self.parent[root] = node
        self.member[i] = node

    def remade(self, i: int) -> None:
        if i in self.member:
            root = self.root(self.member.pop(i))
            self.joules[root] = max(0.0, self.joules[root] - self.own[i])
