"""Prefetching: the same schedule with its transfers where they run beside compute.

Schedules are made as if each transfer were waited for: tensors come in just before they are read,
and what that costs in RAM is least. Where transfers run beside compute, a page-out is best issued
as soon as its tensor is in RAM, and a page-in as long before its reader as it takes to arrive, as
far as there is room. How long before is not known in advance, since transfers wait for each other;
so several are tried, and the referee says which is best.
"""

from dataclasses import dataclass
from itertools import accumulate

from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.plan import draft
from poet.values.schedule import Budget, Compute, Free, Instruction, PageIn, PageOut, Schedule

HASTES = (1.0, 2.0, 8.0)
"""How much earlier than just in time page-ins are issued, as multiples of the time they take. By
hand: on slow links the first, where page-ins crowd the last (docs/decisions/023)."""


def beside_compute(
    graph: Graph, costs: Costs, budget: Budget, schedule: Schedule
) -> tuple[Schedule, Report]:
    """The best of some ways to lay a schedule's transfers beside its computes, and what the referee
    says of it: that with the fewest joules, or else seconds, if one is valid."""
    tried = [schedule]
    if any(isinstance(step, PageOut | PageIn) for step in schedule):
        eager = with_eager_page_outs(graph, costs, schedule)
        tried += (eager, *(prefetched(graph, costs, budget, eager, haste) for haste in HASTES))
    reports = [(check(draft(graph, costs, budget, each)), each) for each in dict.fromkeys(tried)]
    best, played = min(reports, key=lambda pair: _rank(pair[0]))
    return played, best


def _rank(report: Report) -> tuple[bool, float, float]:
    """The fewest joules, but for the last digits, which are a matter of order; then seconds."""
    return report.violation is not None, float(f"{report.joules:.9e}"), report.seconds


def with_eager_page_outs(graph: Graph, costs: Costs, schedule: Schedule) -> Schedule:
    """The same schedule with every page-out as early as it can be, in the order they were in."""
    entered = dict.fromkeys(graph.given, -1)
    after: dict[int, list[Instruction]] = {}
    rest: list[tuple[int, Instruction]] = []
    resident = set(graph.given)
    for at, instruction in enumerate(schedule):
        if isinstance(instruction, PageOut):
            after.setdefault(entered[instruction.tensor], []).append(instruction)
            continue
        rest.append((at, instruction))
        if isinstance(instruction, Compute):
            op = graph.ops[instruction.op]
            resident -= set(op.consumed)
            run = costs.ops[instruction.op][instruction.variant]
            streamed = {stream.tensor for stream in run.writes}
            for i in op.outputs:
                if i not in resident and i not in streamed:
                    entered[i] = at
                    resident.add(i)
        elif isinstance(instruction, PageIn):
            entered[instruction.tensor] = at
            resident.add(instruction.tensor)
        else:
            resident.discard(instruction.tensor)
    eager = list(after.get(-1, ()))
    for at, instruction in rest:
        eager += [instruction, *after.get(at, ())]
    return tuple(eager)


@dataclass
class _Walk:
    """A schedule, instruction by instruction: RAM while it runs, and when compute would get there
    if it never waited."""

    levels: list[int]
    seconds: list[float]
    earliest: list[int]
    """For a page-in: the first place in the list at which its tensor is in the store, and no longer
    in RAM. For all else, its own."""


def prefetched(
    graph: Graph, costs: Costs, budget: Budget, schedule: Schedule, haste: float
) -> Schedule:
    """The same schedule with page-ins issued earlier, as far as RAM has room all the while."""
    walk = _walk(graph, costs, budget, schedule)
    targets = _just_in_time(costs, schedule, walk, haste)
    limit = budget.ram_bytes
    before: dict[int, list[Instruction]] = {}
    for at, step in enumerate(schedule):
        if not isinstance(step, PageIn):
            continue
        nbytes, to = graph.tensors[step.tensor].nbytes, at
        while to > walk.earliest[at] and walk.seconds[to] > targets[at]:
            if limit is not None and walk.levels[to - 1] + nbytes > limit:
                break
            to -= 1
            walk.levels[to] += nbytes
        before.setdefault(to, []).append(step)
    made: list[Instruction] = []
    for at, step in enumerate(schedule):
        made += before.get(at, ())
        if not isinstance(step, PageIn):
            made.append(step)
    return tuple(made)


def _walk(graph: Graph, costs: Costs, budget: Budget, schedule: Schedule) -> _Walk:
    sizes = [tensor.nbytes for tensor in graph.tensors]
    in_ram = {i for i, place in budget.start.items() if place != "store"}
    level = sum(sizes[i] for i in in_ram)
    levels, taken, earliest = [], [], []
    settled = [0] * len(sizes)  # since when the store's copy is good and RAM has none
    for at, step in enumerate(schedule):
        peak, seconds = level, 0.0
        earliest.append(at)
        if isinstance(step, Compute):
            op, run = graph.ops[step.op], costs.ops[step.op][step.variant]
            seconds = run.seconds
            streamed = {stream.tensor for stream in run.reads}
            written = {stream.tensor for stream in run.writes}
            seats = {pair.output: pair.input for pair in op.in_place if pair.input not in streamed}
            new = [i for i in op.outputs if i not in written]
            peak += run.workspace_bytes + sum(sizes[i] for i in new if i not in seats)
            for i in op.consumed:
                if i in in_ram:
                    in_ram.remove(i)
                    level -= sizes[i]
            for i in new:
                if i not in in_ram:
                    in_ram.add(i)
                    level += sizes[i]
            for i in written:
                settled[i] = at + 1
        elif isinstance(step, PageIn):
            earliest[at] = settled[step.tensor]
            in_ram.add(step.tensor)
            level += sizes[step.tensor]
            peak = level
        else:
            settled[step.tensor] = at + 1
            if isinstance(step, Free):
                in_ram.discard(step.tensor)
                level -= sizes[step.tensor]
        levels.append(peak)
        taken.append(seconds)
    return _Walk(levels, list(accumulate(taken, initial=0.0)), earliest)


def _just_in_time(costs: Costs, schedule: Schedule, walk: _Walk, haste: float) -> list[float]:
    """When each page-in has to begin, were nothing else in its way, to arrive just in time."""
    targets = list(walk.seconds)
    free = walk.seconds[-1]  # until when the link has nothing to bring in
    for at in range(len(schedule) - 1, -1, -1):
        step = schedule[at]
        if isinstance(step, PageIn):
            took = costs.tensors[step.tensor].in_seconds / costs.transfer_speed_in_overlap
            free = targets[at] = min(free, walk.seconds[at]) - haste * took
        elif isinstance(step, PageOut) and not costs.duplex:
            free -= costs.tensors[step.tensor].out_seconds / costs.transfer_speed_in_overlap
    return targets
