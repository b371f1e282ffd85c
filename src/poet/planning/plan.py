"""Plan: `poet.plan`, the answer to a question.

For each place where parameters may live (`residency`) the question is put into values (`question`)
and solved (`solve`), until a schedule is found. Where costs were measured, planning begins by
rates; where nobody said how transfers take time, both ways are tried.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, get_args

import msgspec

from poet.errors import Infeasible, PoetError
from poet.planning.advice import advised, enough_bytes, ram_argument
from poet.planning.placing import (
    answer_placed,
    arena_bytes,
    is_for_the_store,
    needs_addresses,
)
from poet.planning.problem import Problem, problem_of
from poet.planning.question import MIN, Question, Terms, terms
from poet.planning.residency import questions
from poet.planning.solve import PLANNER, quick_search, solve
from poet.values.board_profile import BoardProfile
from poet.values.device import Costs, Device
from poet.values.graph import Graph
from poet.values.instances import Instance
from poet.values.plan import Plan, PlanInterrupted, draft
from poet.values.profile import Profile
from poet.values.progress import SearchProgress
from poet.values.schedule import (
    OPTIMAL_GAP,
    Effort,
    Goal,
    Params,
    Schedule,
    SearchInterrupted,
    Transfers,
)

if TYPE_CHECKING:
    from poet.tracer.program import Program

_BY_RATES = 0.4
"""So much of the time goes to planning by rates before measured costs are gone by: enough to leave
the worse valleys, and most is left for the costs that count."""
_EQUAL = 1e-9


def plan(
    problem: "Problem | Instance | Graph | Program | str",
    device: str | Device | None = None,
    ram: str | int | None = None,
    deadline: str | float | None = None,
    *,
    costs: Costs | Profile | BoardProfile | None = None,
    transfers: Transfers | None = None,
    params: Params = "auto",
    paging: bool = True,
    recompute: bool = True,
    minimize: Goal = "joules",
    method: str | None = None,
    time_limit: float = 60.0,
    gap: float = OPTIMAL_GAP,
    threads: int | None = None,
    seed: int = 0,
    work_limit: int | None = None,
    solver: str = "highs",
    solver_log: str | None = None,
    target: str | None = None,
    progress: Callable[[SearchProgress], None] | None = None,
) -> Plan:
    """The least-energy schedule found for a problem under a RAM budget and a deadline.

    A problem is a captured `Program` or its `Graph`; an `Instance`, which carries its costs; the
    path of a file with a graph or an instance; or a model by name, as on the command line. The
    costs of a graph are the device's by its rates, unless `costs` are given.

    `ram` is bytes, a size such as `"256 KiB"`, or a share such as `"60%"`: all that is pinned and
    so much of the rest of what keeping everything takes. By default it is what the board has left
    for tensors; without a board there is no limit. `ram="min"` asks for the smallest RAM that a
    schedule was found for, wherever `params` allows parameters to be, and then for the least energy
    there. `deadline` is `"20s"`, a number of
    seconds, or `"1.5x"` the keep-all step.

    `params` says where parameters and optimizer state are between steps: `resident` in RAM, `paged`
    in the store, or there and `streamed`, which lets ops read them in tiles. `auto` is the first of
    these that a schedule is found for; each has the whole time limit. A program's streamed plan is
    one of its fused step, which `program.run` and `poet.Trainer` know.

    A plan for a microcontroller, or for a `target` of `poet.emit`, has an address for each tensor,
    so that C can be written as it is. `method` asks one schedule maker alone. `work_limit` counts
    work instead of seconds, so that an answer repeats for a `seed`.

    A problem without a schedule gives a Plan too: its `status` is `infeasible` (proven) or
    `unknown` and its `reason` says why. Ctrl-C gives the best plan so far, or, with nothing in
    hand, is a KeyboardInterrupt. Nothing runs any more when this returns or raises.
    """
    effort = Effort(
        time_limit_seconds=time_limit,
        relative_gap=gap,
        threads=threads or cores(),
        seed=seed,
        work_limit=work_limit,
        solver=solver,
        solver_log=solver_log,
        progress=progress,
    )
    asked = terms(
        device,
        ram,
        deadline,
        costs=costs,
        transfers=transfers,
        params=params,
        paging=paging,
        recompute=recompute,
        target=target,
    )
    try:
        return plan_for(problem_of(problem, asked.runs_on), asked, effort, minimize, method)
    except PlanInterrupted as stopped:
        return stopped.plan


def plan_for(
    problem: Problem,
    asked: Terms,
    effort: Effort,
    minimize: Goal = "joules",
    method: str | None = None,
    whole_budget: Callable[[int], int] = lambda nbytes: nbytes,
) -> Plan:
    """The same in values: the first residency with a schedule, or the last one's refusal, with what
    to try instead. Ctrl-C raises, with a plan in hand `PlanInterrupted`.

    `whole_budget` says which RAM to ask for where the plan needs so many bytes of it.
    """
    if minimize not in get_args(Goal):
        raise PoetError(f"minimize is {minimize!r}; it must be one of {', '.join(get_args(Goal))}")
    if not (isfinite(effort.time_limit_seconds) and effort.time_limit_seconds >= 0):
        limit = effort.time_limit_seconds
        raise PoetError(f"time_limit is {limit}; it must be 0 seconds or more")
    tried: list[Question] = []
    placed = method in (None, PLANNER) and needs_addresses(problem, asked)
    if placed:
        needed = whole_budget
        whole_budget = lambda nbytes: needed(nbytes + nbytes // 32)  # noqa: E731 gaps

    def each_place() -> Iterator[Question]:
        for place in asked_of(problem, asked, effort):
            tried.append(place)
            yield place

    try:
        found = first_answer(each_place(), effort, method, minimize, placed=placed)
        if found.schedule or is_for_the_store(found):
            return found
    except Infeasible as nothing_left:  # of the RAM that was given
        least = msgspec.structs.replace(asked, ram=1, reserved_bytes=0)
        enough = enough_bytes(questions(problem, least), method)
        if enough is None:
            raise
        text = f"{nothing_left}. Try {ram_argument(whole_budget(enough))}."
        raise Infeasible(text) from None
    if asked.ram == MIN:  # they were asked with other budgets
        tried = list(questions(problem, asked))
    return advised(found, tried, method, whole_budget)


def asked_of(problem: Problem, asked: Terms, effort: Effort) -> Iterable[Question]:
    """The questions to ask in turn, until one has an answer; for `ram="min"` the one in the least
    RAM."""
    found = questions(problem, asked)
    if asked.ram != MIN:
        return found
    return _with_smallest(list(found), effort, needs_addresses(problem, asked))


def first_answer(
    places: Iterable[Question],
    effort: Effort,
    method: str | None = None,
    minimize: Goal = "joules",
    known: Callable[[Question], tuple[Question, tuple[Schedule, ...]]] = lambda asked: (asked, ()),
    placed: bool = False,
) -> Plan:
    """The answer of the first place that has one; the better of two where a place has a rival,
    which have half of the time each.

    `known` adds to a question what is known of its answer; `placed` asks for addresses, too.
    """
    found: Plan | None = None
    for place in places:
        part = _part(effort, 0.5) if place.has_rival or (found and found.schedule) else effort
        asked, starts = known(place)
        try:
            answers = partial(answer, method=method, minimize=minimize, starts=starts)
            plan = answer_placed(asked, part, minimize, answers) if placed else answers(asked, part)
        except KeyboardInterrupt as stopped:
            if found is None or not found.schedule:
                raise
            other = stopped.plan if isinstance(stopped, PlanInterrupted) else found
            raise PlanInterrupted(_better(found, other, minimize)) from None
        if found is not None and found.schedule:
            return _better(found, plan, minimize) if plan.schedule else found
        found = plan
        if found.schedule and not place.has_rival:
            break
    assert found is not None
    return found


def answer(
    asked: Question,
    effort: Effort,
    method: str | None = None,
    minimize: Goal = "joules",
    starts: tuple[Schedule, ...] = (),
) -> Plan:
    """The best plan found. `starts` are schedules that the planner may begin with."""
    if asked.by_rates is not None and method is None and not asked.is_roomy:
        return _by_rates_first(asked, effort, minimize)
    if asked.either and not asked.is_roomy:
        return _overlap_or_serial(asked, effort, method, minimize, starts)
    return solve(asked.graph, asked.costs, asked.budget, effort, method, minimize, starts)


def _by_rates_first(asked: Question, effort: Effort, minimize: Goal) -> Plan:
    """Plan by the machine's rates for a while, then go on from there with what was measured.

    Measured seconds differ from op to op for no reason that a search could follow, and it ends in
    worse valleys: ResNet-18 in 60 % of its RAM came out 1 % slower than by rates alone.
    """
    assert asked.by_rates is not None
    started = time.monotonic()
    smooth = asked._replace(costs=asked.by_rates, by_rates=None)
    asked = asked._replace(by_rates=None)

    def settled(first: Plan) -> Question:
        """Whether transfers run beside compute is decided by rates."""
        budget = msgspec.structs.replace(asked.budget, transfers=first.budget.transfers)
        return asked._replace(budget=budget, either=False)

    try:
        first = answer(smooth, _part(effort, _BY_RATES), None, minimize)
    except PlanInterrupted as stopped:
        first = stopped.plan
        costed = answer(settled(first), _part(effort, 0.0), None, minimize, (first.schedule,))
        raise PlanInterrupted(costed) from None
    rest = _rest(effort, started)
    if not first.schedule:
        return answer(asked, rest, None, minimize)
    return answer(settled(first), rest, None, minimize, (first.schedule,))


def _overlap_or_serial(
    asked: Question,
    effort: Effort,
    method: str | None,
    minimize: Goal,
    starts: tuple[Schedule, ...],
) -> Plan:
    """Transfers beside compute, unless it is better that compute waits for them.

    Nobody asked for the one or the other. Every schedule in turns is one beside compute as well,
    and as fast, but where the two slow each other down. There turns are planned first, and the
    search for transfers beside compute begins with what was found.
    """
    graph, costs, budget = asked.graph, asked.costs, asked.budget
    if costs.compute_speed_in_overlap == costs.transfer_speed_in_overlap == 1.0:
        return solve(graph, costs, budget, effort, method, minimize, starts)
    started = time.monotonic()
    in_turns = msgspec.structs.replace(budget, transfers="serial")
    serial = solve(graph, costs, in_turns, _part(effort, 0.5), method, minimize, starts)
    if serial.schedule:
        starts = (*starts, serial.schedule)
    try:
        beside = solve(graph, costs, budget, _rest(effort, started), method, minimize, starts)
    except KeyboardInterrupt as stopped:
        found = stopped.plan if isinstance(stopped, PlanInterrupted) else serial
        if not serial.schedule:
            raise
        raise PlanInterrupted(_better(found, serial, minimize)) from None
    if not beside.schedule:
        if not serial.schedule:
            return beside
        why = "no schedule was found with transfers beside compute: compute waits for them"
        return msgspec.structs.replace(serial, reason=why)
    return beside if not serial.schedule else _better(beside, serial, minimize)


def _better(one: Plan, other: Plan, minimize: Goal) -> Plan:
    """The first of two plans unless the other is better."""
    field = {"joules": "joules", "seconds": "seconds", "bytes": "peak_bytes"}[minimize]
    ours, theirs = getattr(one, field), getattr(other, field)
    return one if ours <= theirs * (1 + _EQUAL) else other


def _part(effort: Effort, share: float) -> Effort:
    limit = share * effort.time_limit_seconds
    return msgspec.structs.replace(effort, time_limit_seconds=limit)


def _rest(effort: Effort, started: float) -> Effort:
    left = effort.time_limit_seconds - (time.monotonic() - started)
    return msgspec.structs.replace(effort, time_limit_seconds=max(0.0, left))


def _with_smallest(asked: list[Question], effort: Effort, placed: bool) -> list[Question]:
    """The question that a schedule was found for in the least RAM, with that as its budget, and,
    where tensors are `placed`, the gaps between them.

    Half of the time is for that, an equal part for each. Where nobody said how transfers take time,
    compute may wait for them, which takes the least RAM.
    """
    from poet.planner.search.objectives import fewest_bytes, tightest

    part = _part(effort, 0.5 / len(asked))
    found: list[tuple[int, Question]] = []
    for question in asked:
        graph, costs, budget = question.graph, question.costs, question.budget
        if question.either:
            budget = msgspec.structs.replace(budget, transfers="serial")
        try:
            smallest = fewest_bytes(graph, costs, budget, part, quick_search(graph, costs, part))
        except SearchInterrupted as stopped:
            schedule = stopped.solution.schedule
            within = question.within(tightest(graph, costs, budget, schedule)[1].peak_bytes)
            best = answer(within._replace(by_rates=None), _part(effort, 0.0), starts=(schedule,))
            raise PlanInterrupted(best) from None
        if smallest.schedule:
            peak = tightest(graph, costs, budget, smallest.schedule)[1].peak_bytes
            within = question.within(peak)
            if placed:
                arena = arena_bytes(draft(graph, costs, budget, smallest.schedule))
                peak = max(peak, arena or 0)
                within = question.within(peak)._replace(placed=smallest.schedule)
            found.append((peak, within))
    return [min(found, key=lambda each: each[0])[1]] if found else asked


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
