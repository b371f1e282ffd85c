"""Brute force: the least joules over all stage-structured schedules of a small problem.

An oracle for the planner, written from the formulation (its sections are named as §) and sharing
no code with whatever makes schedules. Stage t ends with the first run of op t; before it, earlier
ops may run again in the graph's order, each at most once. The search walks through stages and ops
in that order and keeps, for every state reached, the cheapest way there (with a deadline: all ways
that are not both dearer and slower).

Only three things branch: whether an earlier op runs again, in which variant, and which tensors make
room when an op does not fit. The rest is decided late without loss:

- A tensor leaves RAM only when its bytes are needed. What leaves could have left earlier: right
  after its last reader or producer in the stage, or when the stage began, for it has not been
  touched since. Having more in RAM never hurts, so the smallest sets that make room are enough.
- A tensor that was read in this stage and left has had its one source (§3.2) and cannot be loaded
  again in this stage. One that was not read was dropped when the stage began, or never taken.
- A load happens when a reader runs and the tensor is absent. The write it needs is paid then, and
  stands in the schedule right after the first production, or at the start (§2, store[i]).

A tensor and the one it becomes share a slot of the store, as the referee has it: the write of the
new one ends the stored life of the old one, and store bytes count slots. Overlapped transfers are
not known here; `serial` and `free` are.

`best_joules_unrestricted` leaves the stage structure: any order that the referee allows.
"""

from collections.abc import Iterator
from typing import NamedTuple

from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Compute, Free, Instruction, PageIn, PageOut, Schedule
from tests.unit.any_order import best_joules_unrestricted
from tests.unit.bit_masks import (
    MAX_STATES,
    Problem,
    StateSpaceTooLarge,
    Stored,
    Way,
    bits,
    mask_of,
)

__all__ = ["StateSpaceTooLarge", "best_joules", "best_joules_unrestricted", "best_schedule"]

_BEAM = 24


class State(NamedTuple):
    """Where the step is: in RAM, in the store, and read from RAM in this stage."""

    ram: int
    store: Stored
    touched: int


class Choice(NamedTuple):
    """One run of an op, or the end of the step, and what happens around it."""

    way: Way | None
    evicted: int
    loaded: int
    written: int
    dropped: int


class Label(NamedTuple):
    """A way to reach a state."""

    joules: float
    seconds: float
    before: "Label | None"
    choice: Choice | None


Layer = dict[State, list[Label]]


def _add(layer: Layer, state: State, label: Label) -> None:
    rivals = layer.get(state)
    if rivals is None:
        layer[state] = [label]
    elif not any(r.joules <= label.joules and r.seconds <= label.seconds for r in rivals):
        layer[state] = [
            r for r in rivals if r.joules < label.joules or r.seconds < label.seconds
        ] + [label]


class _Stages:
    """The walk through the stages. With `beam`, few states survive a stage: not exact, but quick,
    and what it finds is a limit for the exact walk."""

    def __init__(self, problem: Problem, end_loads: bool) -> None:
        self.problem, self.end_loads = problem, end_loads
        graph, budget, count = problem.graph, problem.budget, problem.count
        never = count + 1
        self.made_in = [-1 if maker is None else maker for maker in graph.producer]
        self.consumed_in = [never] * len(problem.nbytes)
        for k, op in enumerate(graph.ops):
            for i in op.consumed:
                self.consumed_in[i] = k
        # §3.6: nothing reads a tensor in a stage after the one in which it was consumed.
        self.last_rerun = [
            min((self.consumed_in[i] for i in op.inputs), default=never)
            if op.recomputable and budget.recompute
            else -1
            for op in graph.ops
        ]
        self.last_use = self.last_uses()
        self.wants = {(t, k): self.wanted(t, k) for t in range(count) for k in range(t + 1)}

    def last_uses(self) -> list[int]:
        """For each tensor the last stage in which something may want it (§1, need)."""
        graph, budget = self.problem.graph, self.problem.budget
        lasting = {*budget.end, *budget.pinned}
        last = [self.problem.count if i in lasting else -1 for i in range(len(graph.tensors))]
        for k in reversed(range(self.problem.count)):
            op = graph.ops[k]
            wanted = max(last[o] for o in op.outputs)
            for i in op.inputs:
                last[i] = max(last[i], k, min(self.last_rerun[k], wanted))
        return last

    def reruns(self, stage: int, k: int) -> bool:
        return k < stage <= self.last_rerun[k]

    def wanted(self, stage: int, k: int) -> tuple[int, int]:
        """After op k in a stage: the tensors worth having, in RAM or in the store, and among them
        those that a later op of the stage may read."""
        soon = later = 0
        for c in range(k + 1, stage + 1):
            if c == stage or self.reruns(stage, c):
                soon |= mask_of(self.problem.graph.ops[c].inputs)
        for i, (last, consumer) in enumerate(zip(self.last_use, self.consumed_in, strict=True)):
            if last > stage and (consumer > stage or (consumer == stage and k < stage)):
                later |= 1 << i
        return soon | later, soon

    def walk(self, limit: float, beam: int | None) -> tuple[float, Label] | None:
        """The cheapest way through that costs less than `limit`."""
        problem = self.problem
        store = problem.put_in_store(problem.start_stored, Stored(0, 0, 0))
        if store is None or problem.size(problem.start_ram) > problem.ram_limit:
            return None
        layer: Layer = {State(problem.start_ram, store, 0): [Label(0.0, 0.0, None, None)]}
        made = 0
        for stage in range(problem.count):
            ended: Layer = {}
            for k in range(stage + 1):
                if k == stage or self.reruns(stage, k):
                    self.run(stage, k, layer, ended if k == stage else layer, limit)
                    made += len(layer)
                if made > MAX_STATES:
                    raise StateSpaceTooLarge(f"{made:,} states in {stage + 1} stages")
            layer = self.undominated(ended, beam)
        return self.finish(layer, limit)

    def run(self, stage: int, k: int, layer: Layer, into: Layer, limit: float) -> None:
        """Run op k from every state of `layer`, in all ways that may lead to something."""
        problem, (wanted, soon) = self.problem, self.wants[stage, k]
        still_to_run = problem.least[stage + (k == stage) :]
        dearest = limit - sum(least[0] for least in still_to_run)
        slowest = problem.deadline - sum(least[1] for least in still_to_run)
        for state, labels in list(layer.items()):
            for way in problem.ways[k]:
                missing = way.arrivals & ~state.ram | way.writes & ~state.store.stored
                if k < stage and not missing & wanted:
                    continue
                for after, choice, joules, seconds in self.outcomes(
                    stage, state, way, wanted, soon
                ):
                    for label in labels:
                        total = label.joules + joules
                        took = label.seconds + seconds
                        if total < dearest and took <= slowest:
                            _add(into, after, Label(total, took, label, choice))

    def outcomes(
        self, stage: int, state: State, way: Way, wanted: int, soon: int
    ) -> Iterator[tuple[State, Choice, float, float]]:
        problem = self.problem
        load = way.ram_inputs & ~state.ram
        if load & state.touched:
            return  # it had its one source in this stage
        fetched = self.fetch(stage, load, way.reads, state.store)
        if fetched is None:
            return
        store, written, joules, seconds = fetched
        left = problem.put_in_store(way.writes, store._replace(stored=store.stored & ~way.consumed))
        if left is None:
            return
        left = left._replace(stored=left.stored & wanted, barred=left.barred & wanted)
        touched = (state.touched | way.ram_inputs) & soon
        excess = problem.size(state.ram | load) + way.extra_bytes - problem.ram_limit
        for evicted in problem.evictions(state.ram & ~way.ram_inputs, excess):
            ram = (state.ram & ~evicted | load) & ~way.consumed | way.arrivals
            yield (
                State(ram & wanted, left, touched),
                Choice(way, evicted, load, written, ram & ~wanted),
                joules + way.joules,
                seconds + way.seconds,
            )

    def fetch(
        self, stage: int, load: int, reads: int, store: Stored
    ) -> tuple[Stored, int, float, float] | None:
        """Load and stream: what must have been written, and what all of it adds."""
        problem, joules, seconds = self.problem, 0.0, 0.0
        if not load | reads:
            return store, 0, joules, seconds
        written = (load | reads) & ~store.stored
        # Read in the store after its heir was first made: the heir was not written then.
        late = mask_of(
            heir
            for i in bits((load | reads) & problem.paired)
            if (heir := problem.heir.get(i)) is not None and self.made_in[heir] < stage
        )
        if not problem.budget.paging or written & (store.barred | late):
            return None
        after = problem.put_in_store(written, store)
        if after is None:
            return None
        for i in bits(written):
            joules, seconds = joules + problem.page_out[i][0], seconds + problem.page_out[i][1]
        for i in bits(load):
            joules, seconds = joules + problem.page_in[i][0], seconds + problem.page_in[i][1]
        return after._replace(barred=after.barred | late), written, joules, seconds

    def undominated(self, layer: Layer, beam: int | None) -> Layer:
        """States that another, which costs no more, does not serve as well: it has in RAM and in
        the store all that they have."""
        everything = [(label, state) for state, labels in layer.items() for label in labels]
        everything.sort(key=lambda entry: (entry[0].joules, -entry[1].ram.bit_count()))
        kept: list[tuple[Label, State]] = []
        paired = self.problem.paired
        for label, state in everything:
            for other, best in kept[:200]:
                if (
                    not state.ram & ~best.ram
                    and not state.store.stored & ~best.store.stored
                    and not (state.store.stored ^ best.store.stored) & paired
                    and state.store.barred == best.store.barred
                    and state.store.slots == best.store.slots
                    and other.seconds <= label.seconds
                ):
                    break
            else:
                kept.append((label, state))
                if len(kept) == beam:
                    break
        survivors: Layer = {}
        for label, state in kept:
            survivors.setdefault(state, []).append(label)
        return survivors

    def finish(self, layer: Layer, limit: float) -> tuple[float, Label] | None:
        """§3.5: everything to its place; the cheapest way to do so."""
        best: Label | None = None
        for state, labels in layer.items():
            for choice, joules, seconds in self.endings(state):
                for label in labels:
                    total, took = label.joules + joules, label.seconds + seconds
                    if total < limit and took <= self.problem.deadline:
                        limit, best = total, Label(total, took, label, choice)
        return None if best is None else (limit, best)

    def endings(self, state: State) -> Iterator[tuple[Choice, float, float]]:
        problem = self.problem
        gone = mask_of(i for i, op in enumerate(self.consumed_in) if op < problem.count)
        load = problem.end_ram & ~state.ram
        if load and (not self.end_loads or load & gone):
            return
        fetched = self.fetch(problem.count, load, 0, state.store)
        if fetched is None:
            return
        store, written, joules, seconds = fetched
        excess = problem.size(state.ram | load) - problem.ram_limit
        for evicted in problem.evictions(state.ram & ~problem.end_ram, excess):
            ram = state.ram & ~evicted | load
            more = (problem.end_store | problem.end_either & ~ram) & ~store.stored
            if more and (not problem.budget.paging or more & (gone | store.barred)):
                continue
            after = problem.put_in_store(more, store)
            if after is None or problem.end_store & ~after.stored:
                continue
            if problem.end_either & ~(after.stored | ram):
                continue
            yield (
                Choice(None, evicted, load, written | more, 0),
                joules + sum(problem.page_out[i][0] for i in bits(more)),
                seconds + sum(problem.page_out[i][1] for i in bits(more)),
            )


def best_schedule(
    graph: Graph, costs: Costs, budget: Budget, *, end_loads: bool = False
) -> tuple[float, Schedule] | None:
    """The least joules of all stage-structured schedules, and one that has them; None if there is
    none. With `end_loads` a tensor that must end in RAM may be loaded after the last op too; the
    formulation (§3.5) has it kept there."""
    stages = _Stages(Problem(graph, costs, budget), end_loads)
    quick = stages.walk(float("inf"), _BEAM)
    best = stages.walk(float("inf") if quick is None else quick[0], None) or quick
    return None if best is None else (best[0], _schedule(graph, best[1]))


def best_joules(
    graph: Graph, costs: Costs, budget: Budget, *, end_loads: bool = False
) -> float | None:
    """The least joules of all stage-structured schedules, None if there is none."""
    best = best_schedule(graph, costs, budget, end_loads=end_loads)
    return None if best is None else best[0]


def _schedule(graph: Graph, last: Label) -> Schedule:
    choices: list[Choice] = []
    label: Label | None = last
    while label is not None:
        if label.choice is not None:
            choices.append(label.choice)
        label = label.before
    written = 0
    for choice in choices:
        written |= choice.written
    steps: list[Instruction] = [PageOut(i) for i in graph.given if written >> i & 1]
    ran: set[int] = set()
    for choice in reversed(choices):
        steps += map(Free, bits(choice.evicted))
        steps += map(PageIn, bits(choice.loaded))
        if choice.way is None:
            break
        k = choice.way.op
        steps.append(Compute(k, choice.way.name))
        if k not in ran:
            steps += [PageOut(i) for i in graph.ops[k].outputs if written >> i & 1]
        ran.add(k)
        steps += map(Free, bits(choice.dropped))
    return tuple(steps)
