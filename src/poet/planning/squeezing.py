"""Squeezing: a schedule for a little less RAM, made from one that needs a little more.

Where too much is in RAM, something that nobody has to do with just then waits in the store, from
its last use before to its next. The cheapest that is large enough does. The planner begins with
what comes of that, and is not worse for having to plan again.
"""

from collections.abc import Iterator

import msgspec

from poet.planning.prompt import prompt, slots_of
from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.values.device import Costs
from poet.values.plan import Plan, draft
from poet.values.schedule import Compute, Free, PageIn, PageOut, Schedule

_WAITS = 64
_TRIED = 12
"""Tensors that are tried where too much is in RAM, each with a replay."""


def squeezed(plan: Plan, ram_bytes: int) -> Schedule | None:
    """A schedule within so many bytes, if a few tensors that wait in the store are enough."""
    if plan.budget.transfers == "overlap" or not plan.budget.paging:
        return None
    schedule, excess = plan.schedule, _excess(_replay(plan, plan.schedule), ram_bytes)
    for _ in range(_WAITS):
        if excess == 0:
            return schedule
        for candidate in _with_a_wait(plan, schedule, ram_bytes):
            report = _replay(plan, candidate)
            if report.violation is None and _excess(report, ram_bytes) < excess:
                schedule, excess = candidate, _excess(report, ram_bytes)
                break
        else:
            return None
    return None


def _replay(plan: Plan, schedule: Schedule) -> Report:
    """The referee's report, with all limits of the plan but that of RAM."""
    budget = msgspec.structs.replace(plan.budget, ram_bytes=None)
    return check(draft(plan.graph, plan.costs, budget, schedule))


def _excess(report: Report, ram_bytes: int) -> int:
    return sum(max(0, moment.ram_bytes - ram_bytes) for moment in report.timeline)


def _with_a_wait(plan: Plan, schedule: Schedule, ram_bytes: int) -> Iterator[Schedule]:
    """Schedules in which one tensor more is away where first too much is in RAM."""
    timeline = _replay(plan, schedule).timeline
    over = next(moment for moment in timeline if moment.ram_bytes > ram_bytes)
    at = over.instruction
    if at is None:
        return
    graph, nbytes = plan.graph, [tensor.nbytes for tensor in plan.graph.tensors]
    touched = [slots_of(graph, plan.costs, instruction) for instruction in schedule]
    wanted = over.ram_bytes - ram_bytes
    idle = [
        i for i in _resident(plan, schedule[:at])
        if i not in plan.budget.pinned and graph.slot[i] not in touched[at] and nbytes[i]
    ]  # fmt: skip
    idle.sort(key=lambda i: (nbytes[i] < wanted, _joules(plan.costs, i), -nbytes[i], i))
    for i in idle[:_TRIED]:
        slot = graph.slot[i]
        away = next((n for n in range(at, 0, -1) if slot in touched[n - 1]), 0)
        back = next((n for n in range(at, len(schedule)) if slot in touched[n]), len(schedule))
        if back == len(schedule) and plan.budget.end.get(i) in (None, "store"):
            yield (*schedule[:away], Free(i), *schedule[away:])  # of no more use
            continue
        for out in ((Free(i),), (PageOut(i), Free(i))):  # the referee knows whether it is stored
            waiting = (*schedule[:away], *out, *schedule[away:back], PageIn(i), *schedule[back:])
            yield prompt(graph, plan.costs, waiting)


def _joules(costs: Costs, i: int) -> float:
    return costs.tensors[i].in_joules + costs.tensors[i].out_joules


def _resident(plan: Plan, schedule: Schedule) -> list[int]:
    """What is in RAM after these instructions."""
    here = {i for i, place in plan.budget.start.items() if place != "store"}
    for instruction in schedule:
        if isinstance(instruction, Compute):
            op = plan.graph.ops[instruction.op]
            run = plan.costs.ops[instruction.op][instruction.variant]
            here -= set(op.consumed)
            here |= set(op.outputs) - {stream.tensor for stream in run.writes}
        elif isinstance(instruction, PageIn):
            here.add(instruction.tensor)
        elif isinstance(instruction, Free):
            here.discard(instruction.tensor)
    return sorted(here)
