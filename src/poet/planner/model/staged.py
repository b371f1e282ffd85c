"""Staged schedules: which ops run and what is loaded in each stage; all else follows.

Given the runs of every stage and the tensors loaded in it, the best schedule around them is fixed:
load right before the first reader, free right after the last use before the next source, write to
the store right after the first production and only what is read from there. `Staged` is that core;
`to_schedule` fills in the rest and leaves out runs and loads that nobody needs, `from_schedule`
finds the core of any schedule with stages.
"""

from dataclasses import dataclass

from poet.values.device import Costs, Run
from poet.values.graph import Graph
from poet.values.schedule import Budget, Compute, Free, Instruction, PageIn, PageOut, Schedule


@dataclass(frozen=True)
class Staged:
    """`runs[t]` ends with op t; `loads[t]` come in before their first reader of that stage."""

    runs: tuple[tuple[Compute, ...], ...]
    loads: tuple[frozenset[int], ...]
    end_loads: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    """Tensors that went to the store; it matters for those that may end in either place."""


@dataclass(frozen=True)
class Unrolled:
    """A staged schedule in full: runs and loads in order, with what is freed after each."""

    events: tuple[tuple[int, Compute | PageIn], ...]
    freed_after: tuple[tuple[int, ...], ...]
    freed_at_start: tuple[int, ...]
    stored: frozenset[int]


def from_schedule(graph: Graph, costs: Costs, schedule: Schedule) -> Staged | None:
    """The core of a schedule, or None if it has no stages (ops out of order, twice in one)."""
    stage = 0
    runs: list[list[Compute]] = [[] for _ in graph.ops]
    loads: list[set[int]] = [set() for _ in graph.ops]
    waiting: set[int] = set()
    written: set[int] = set()
    for step in schedule:
        if isinstance(step, PageIn):
            waiting.add(step.tensor)
        elif isinstance(step, Free):
            waiting.discard(step.tensor)
        elif isinstance(step, PageOut):
            written.add(step.tensor)
        else:
            if stage == len(graph.ops) or step.op > stage:
                return None
            if runs[stage] and runs[stage][-1].op >= step.op:
                return None
            runs[stage].append(step)
            used = waiting & set(ram_inputs(graph, costs, step))
            loads[stage] |= used
            waiting -= used
            waiting.difference_update(graph.ops[step.op].outputs)
            stage += step.op == stage
    if stage < len(graph.ops):
        return None
    return Staged(
        runs=tuple(map(tuple, runs)),
        loads=tuple(map(frozenset, loads)),
        end_loads=frozenset(waiting),
        written=frozenset(written),
    )


def ram_inputs(graph: Graph, costs: Costs, step: Compute) -> tuple[int, ...]:
    """The inputs a run reads from RAM."""
    streamed = {stream.tensor for stream in _run(costs, step).reads}
    inputs = graph.ops[step.op].inputs
    return tuple(i for i in inputs if i not in streamed) if streamed else inputs


def _run(costs: Costs, step: Compute) -> Run:
    return costs.ops[step.op][step.variant]


def unroll(graph: Graph, costs: Costs, budget: Budget, staged: Staged) -> Unrolled:
    """Events in order without those nobody needs, and where each tensor's time in RAM ends.

    That of a pinned one ends with the step, or where it is consumed: from its first making, or the
    start, it counts as live throughout.
    """
    events: list[tuple[int, Compute | PageIn]] = []
    pending: set[int] = set()
    for t, runs in enumerate(staged.runs):
        pending |= staged.loads[t]  # one whose only reader streams it waits for the next
        for run in runs:
            for i in ram_inputs(graph, costs, run):
                if i in pending:
                    pending.remove(i)
                    events.append((t, PageIn(i)))
            events.append((t, run))
    events += [(len(graph.ops), PageIn(i)) for i in sorted(staged.end_loads)]
    loaded = {step.tensor for _, step in events if isinstance(step, PageIn)}
    stored, there = _stored(costs, budget, staged, loaded)
    live = {
        i
        for i, place in budget.end.items()
        if place in ("ram", "both") or (place == "either" and i not in stored | there)
    }
    pinned = frozenset(budget.pinned)
    live |= pinned
    kept: list[tuple[int, Compute | PageIn]] = []
    freed: list[tuple[int, ...]] = []
    for t, step in reversed(events):
        if isinstance(step, PageIn):
            if step.tensor not in live:
                continue
            live.remove(step.tensor)
            dead: tuple[int, ...] = ()
        else:
            op = graph.ops[step.op]
            streamed = {stream.tensor for stream in _run(costs, step).writes}
            outputs = [i for i in op.outputs if i not in streamed]
            if step.op != t:
                outputs = [i for i in outputs if i not in pinned]  # there already
            if step.op != t and not streamed and not live.intersection(outputs):
                continue
            inputs = ram_inputs(graph, costs, step)
            dead = tuple(i for i in (*inputs, *outputs) if i not in live and i not in op.consumed)
            live.difference_update(outputs)
            live.update(inputs)
        kept.append((t, step))
        freed.append(dead)
    in_ram = {i for i, place in budget.start.items() if place != "store"}
    return Unrolled(
        events=tuple(reversed(kept)),
        freed_after=tuple(reversed(freed)),
        freed_at_start=tuple(sorted(in_ram - live)),
        stored=frozenset(stored),
    )


def _stored(
    costs: Costs, budget: Budget, staged: Staged, loaded: set[int]
) -> tuple[set[int], set[int]]:
    """Tensors that must be written to the store, and those that are there by other means."""
    stored = set(loaded)
    there = {i for i, place in budget.start.items() if place != "ram"}
    for stage in staged.runs:
        for step in stage:
            taken = _run(costs, step)
            stored.update(stream.tensor for stream in taken.reads)
            there.update(stream.tensor for stream in taken.writes)
    stored.update(i for i, place in budget.end.items() if place in ("store", "both"))
    stored.update(i for i in staged.written if budget.end.get(i) == "either")
    return stored - there, there


def to_schedule(graph: Graph, costs: Costs, budget: Budget, staged: Staged) -> Schedule:
    """The whole schedule around a core."""
    unrolled = unroll(graph, costs, budget, staged)
    steps: list[Instruction] = [PageOut(i) for i in sorted(unrolled.stored) if i in budget.start]
    steps += [Free(i) for i in unrolled.freed_at_start]
    for (t, step), dead in zip(unrolled.events, unrolled.freed_after, strict=True):
        steps.append(step)
        if isinstance(step, Compute) and step.op == t:
            steps += [PageOut(i) for i in graph.ops[t].outputs if i in unrolled.stored]
        steps += [Free(i) for i in dead]
    return tuple(steps)
