"""Objectives other than joules: the fewest seconds, the fewest bytes.

Seconds are minimised by the same search on costs whose joules are seconds. The fewest bytes are
looked for by bisection: is there a schedule at all within this RAM? A "no" there is mostly the
search's word, so the result is the smallest peak found. Its bound is the floor, or more where a
"no" was proven.
"""

import time
from collections.abc import Callable

import msgspec

from poet.planner.proof.floor import memory_floor
from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.values.device import Costs, Run, Stream
from poet.values.graph import Graph
from poet.values.plan import draft
from poet.values.schedule import Budget, Effort, Schedule, SearchInterrupted, Solution

Quick = Callable[[Budget], Solution]
"""A fast way to a schedule within a budget; or to a proof that there is none."""


def seconds_as_joules(costs: Costs) -> Costs:
    """Costs whose joules are the step's seconds: nothing has any but the time that passes."""

    def moved(stream: Stream) -> Stream:
        return msgspec.structs.replace(stream, joules=0.0)

    def timed(run: Run) -> Run:
        return msgspec.structs.replace(
            run,
            joules=0.0,
            reads=tuple(map(moved, run.reads)),
            writes=tuple(map(moved, run.writes)),
        )

    return msgspec.structs.replace(
        costs,
        ops=tuple({name: timed(run) for name, run in runs.items()} for runs in costs.ops),
        tensors=tuple(
            msgspec.structs.replace(price, in_joules=0.0, out_joules=0.0) for price in costs.tensors
        ),
        idle_watts=1.0,
    )


def fewest_bytes(
    graph: Graph, costs: Costs, budget: Budget, effort: Effort, quick: Quick
) -> Solution:
    """A schedule with the smallest peak found, and as its bound, in bytes, what is surely needed.

    Ctrl-C brings the best until then.
    """
    deadline = time.monotonic() + effort.time_limit_seconds
    best = Solution(status="unknown", reason="no schedule was found")
    floor = memory_floor(graph, costs, budget).nbytes

    def peak_within(ram_bytes: int) -> int | None:
        nonlocal best, floor
        trial = msgspec.structs.replace(budget, ram_bytes=ram_bytes)
        found = quick(trial)
        if found.status == "infeasible":
            floor = max(floor, ram_bytes + 1)
        if found.status != "feasible":
            best = best if best.schedule else found
            return None
        _, report = tightest(graph, costs, trial, found.schedule)
        if not report.valid:
            return None
        best = found
        return report.peak_bytes

    low = floor - 1
    most = sum(tensor.nbytes for tensor in graph.tensors) + max(
        run.workspace_bytes for runs in costs.ops for run in runs.values()
    )
    try:
        high = peak_within(most if budget.ram_bytes is None else budget.ram_bytes)
        if high is None:
            return best
        at_floor = peak_within(low + 1)
        high = high if at_floor is None else at_floor
        while high - low > 1 and time.monotonic() < deadline:
            middle = (low + high) // 2
            found = peak_within(middle)
            low, high = (middle, high) if found is None else (low, found)
    except KeyboardInterrupt:
        if best.status != "feasible":
            raise
        raise SearchInterrupted(_bounded(best, floor)) from None
    return _bounded(best, floor)


def tightest(
    graph: Graph, costs: Costs, budget: Budget, schedule: Schedule
) -> tuple[Budget, Report]:
    """The budget with the least RAM in which a schedule runs in time, and its replay there.

    Beside compute, transfers begin as early as there is room, so that it takes what there is; in
    turns it takes the least, and in so little it runs beside compute as well.
    """
    report = check(draft(graph, costs, budget, schedule))
    if budget.transfers != "overlap" or not report.valid:
        return budget, report
    in_turns = msgspec.structs.replace(budget, transfers="serial", deadline_seconds=None)
    least = check(draft(graph, costs, in_turns, schedule)).peak_bytes
    tight = msgspec.structs.replace(budget, ram_bytes=min(least, report.peak_bytes))
    again = check(draft(graph, costs, tight, schedule))
    return (tight, again) if again.valid else (budget, report)


def _bounded(found: Solution, least_bytes: int) -> Solution:
    return Solution(
        status="feasible",
        schedule=found.schedule,
        bound_joules=float(least_bytes),
        bound_source="certified",
    )
