"""Solving: whoever makes schedules, asked in turn, and the referee's word on what they found.

`solve` refuses what is provably impossible, asks the simple makers and the planner, or one method
alone, has every schedule replayed, and returns the best valid one as a Plan whose claims are the
referee's numbers. It makes no schedule itself.
"""

import time
from collections.abc import Callable

import msgspec

from poet.baselines import METHODS, MORE_STARTS, STARTS
from poet.errors import PoetError
from poet.planner.proof.floor import Floor, least_joules, least_seconds, memory_floor
from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.values.device import Costs
from poet.values.graph import Graph, HasGraph, graph_of, printable
from poet.values.plan import Plan, PlanInterrupted, draft
from poet.values.schedule import (
    OPTIMAL_GAP,
    BoundSource,
    Budget,
    Effort,
    Goal,
    Maker,
    Schedule,
    SearchInterrupted,
    Solution,
)

PLANNER = "poet"
"""The planner's name among the methods."""
OPENING_SECONDS = 1.0
"""For the planner's opening where the simple makers find nothing: 0.06 s at 596 ops."""


def solve(
    graph: Graph | HasGraph,
    costs: Costs,
    budget: Budget,
    effort: Effort,
    method: str | None = None,
    minimize: Goal = "joules",
    starts: tuple[Schedule, ...] = (),
) -> Plan:
    """The best schedule found for these values, as a Plan.

    The planner answers, with the simple makers' schedules to start from; or the method named alone,
    `poet` among them: the planner with nothing to lean on. Ctrl-C with a schedule in hand raises
    `PlanInterrupted`, which brings its plan.
    """
    if method is not None and method not in (PLANNER, *METHODS):
        known = ", ".join((PLANNER, *METHODS))
        raise PoetError(f"there is no method {method!r}. There are {known}.")
    started = time.monotonic()
    graph = graph_of(graph)
    floor = memory_floor(graph, costs, budget)
    impossible = _proof_of_none(graph, costs, budget, floor)
    if impossible:
        answer = _Answer(solution=Solution(status="infeasible", reason=impossible), solver="")
        return _as_plan(graph, costs, budget, floor, answer, started, minimize)
    try:
        best = _best_of(graph, costs, budget, effort, method, minimize, starts, started)
    except KeyboardInterrupt as stopped:
        in_hand = [Solution(status="feasible", schedule=each) for each in starts]
        if isinstance(stopped, SearchInterrupted):
            in_hand.append(stopped.solution)
        kept = _best_in_hand(graph, costs, budget, method, minimize, in_hand)
        if kept is None:
            raise
        plan = _as_plan(graph, costs, budget, floor, kept, started, minimize)
        raise PlanInterrupted(plan) from None
    return _as_plan(graph, costs, budget, floor, best, started, minimize)


def _best_of(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    effort: Effort,
    method: str | None,
    minimize: Goal,
    starts: tuple[Schedule, ...],
    started: float,
) -> "_Answer":
    """What the makers that are asked come to."""
    best = _Answer(solution=Solution(status="unknown"), solver="")
    reasons = []
    asked = STARTS if method is None else {} if method == PLANNER else {method: METHODS[method]}
    for name, maker in asked.items():
        solution, report = ask(maker, graph, costs, budget, effort)
        if report is None or report.violation is not None:
            why = report.violation.message if report and report.violation else solution.reason
            reasons.append(f"{name}: {why}")
            continue
        if best.report is None or report.joules < best.report.joules:
            timed = msgspec.structs.replace(solution, first_seconds=time.monotonic() - started)
            best = _Answer(solution=timed, solver=name, report=report)
    if method is None and best.report is None:
        best = _opened(graph, costs, budget, effort)
    if method in (None, PLANNER):
        best = _planned(graph, costs, budget, effort, best, started, minimize, starts)
        if best.report is None and best.solution.status != "infeasible":
            reasons.append(f"{PLANNER}: {best.solution.reason}")
    if best.report is None and best.solution.status != "infeasible":
        nothing = Solution(status="unknown", reason=f"{'; '.join(reasons)}.")
        best = _Answer(solution=nothing, solver="")
    return best


def _opened(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> "_Answer":
    """The planner's opening, before its clock runs: who follows advice has a schedule at least.

    On a large graph checkpoints are sooner found than by the annealer's greedy start.
    """
    from poet.planner.search.checkpoints import first_checkpoints  # numpy: not for `poet --help`
    from poet.planner.search.opening import opening
    from poet.planner.search.worker import SMALL_OPS

    started = time.monotonic()
    if effort.work_limit is None:
        effort = msgspec.structs.replace(effort, time_limit_seconds=OPENING_SECONDS)
    makers = [opening, first_checkpoints]
    for maker in makers if len(graph.ops) <= SMALL_OPS else reversed(makers):
        solution, report = ask(maker, graph, costs, budget, effort)
        if report is not None and report.valid:
            timed = msgspec.structs.replace(solution, first_seconds=time.monotonic() - started)
            return _Answer(solution=timed, solver=PLANNER, report=report)
    return _Answer(solution=Solution(status="unknown"), solver="")


def _best_in_hand(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    method: str | None,
    minimize: Goal,
    in_hand: list[Solution],
) -> "_Answer | None":
    """The best of what was known when Ctrl-C came."""
    own = method in (None, PLANNER)
    best: tuple[float, _Answer] | None = None
    for solution in in_hand:
        within, report = _replayed(graph, costs, budget, solution.schedule, minimize)
        value = reached(report, minimize)
        if report.valid and (best is None or value <= best[0]):
            if not own:  # its bound is one for schedules of its kind alone
                solution = Solution(status="feasible", schedule=solution.schedule)
            solver = f"{PLANNER} (interrupted)" if own else f"{method} (interrupted)"
            best = value, _Answer(solution=solution, solver=solver, report=report, budget=within)
    return None if best is None else best[1]


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The best solution so far, who made it, and what the referee said."""

    solution: Solution
    solver: str
    report: Report | None = None
    budget: Budget | None = None
    """What it was replayed under, where that is less than was asked for."""


def ask(
    maker: Maker, graph: Graph, costs: Costs, budget: Budget, effort: Effort
) -> tuple[Solution, Report | None]:
    solution = maker(graph, costs, budget, effort)
    if solution.status != "feasible":
        return solution, None
    return solution, check(draft(graph, costs, budget, solution.schedule))


def _planned(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    effort: Effort,
    start: _Answer,
    started: float,
    minimize: Goal,
    starts: tuple[Schedule, ...],
) -> _Answer:
    """What the planner makes of it, starting from the best of the simple makers."""
    from poet.planner.search.checkpoints import checkpoints
    from poet.planner.search.objectives import fewest_bytes, seconds_as_joules
    from poet.planner.search.portfolio import (
        search,  # numpy, scipy and a solver: not for `poet --help`
    )

    spent = time.monotonic() - started
    left = msgspec.structs.replace(
        effort, time_limit_seconds=max(0.0, effort.time_limit_seconds - spent)
    )
    starts = (*starts, start.solution.schedule) if start.report else starts
    if minimize == "bytes":
        solution = fewest_bytes(graph, costs, budget, left, quick_search(graph, costs, left))
        if solution.status != "feasible" and starts:
            solution = Solution(status="feasible", schedule=starts[0])
    else:
        prices = seconds_as_joules(costs) if minimize == "seconds" else costs
        makers = (checkpoints, *MORE_STARTS.values())
        solution = search(graph, prices, budget, left, starts, makers)
    if solution.status != "feasible":
        return _Answer(solution=solution, solver="")
    within, report = _replayed(graph, costs, budget, solution.schedule, minimize)
    if report.violation is not None:
        raise AssertionError(f"the planner returned a wrong schedule: {report.violation}")
    first = start.solution.first_seconds
    if first is None and solution.first_seconds is not None:
        first = spent + solution.first_seconds
    timed = msgspec.structs.replace(solution, first_seconds=first)
    untouched = start.report is not None and solution.schedule == start.solution.schedule
    solver = start.solver if untouched else f"{PLANNER} ({effort.solver})"
    return _Answer(solution=timed, solver=solver, report=report, budget=within)


def _replayed(
    graph: Graph, costs: Costs, budget: Budget, schedule: Schedule, minimize: Goal
) -> tuple[Budget, Report]:
    """What a schedule comes to, and under which budget: the least, where bytes are minimised."""
    if minimize != "bytes":
        return budget, check(draft(graph, costs, budget, schedule))
    from poet.planner.search.objectives import tightest  # numpy, behind the planner

    return tightest(graph, costs, budget, schedule)


def quick_search(graph: Graph, costs: Costs, effort: Effort) -> Callable[[Budget], Solution]:
    """A fast way to any schedule within a budget: paging, then a second of search, which may prove
    that there is none.

    Counted, the search is as long as the work limit says, and the clock is not asked.
    """
    from poet.planner.search.portfolio import search

    ends = time.monotonic() + effort.time_limit_seconds
    counted = effort.work_limit is not None

    def quick(budget: Budget) -> Solution:
        left = max(0.0, ends - time.monotonic())
        brief = msgspec.structs.replace(
            effort,
            time_limit_seconds=left if counted else min(1.0, left),
            relative_gap=1.0,
            progress=None,
        )
        simple, report = ask(STARTS["paging-greedy"], graph, costs, budget, brief)
        if report is not None and report.valid:
            return simple
        return search(graph, costs, budget, brief)

    return quick


def _proof_of_none(graph: Graph, costs: Costs, budget: Budget, floor: Floor) -> str:
    stored = sum(graph.tensors[i].nbytes for i, place in budget.start.items() if place != "ram")
    if budget.store_bytes is not None and stored > budget.store_bytes:
        return (
            f"{stored:,} bytes are in the store when the step starts; it has "
            f"{budget.store_bytes:,}."
        )
    if budget.ram_bytes is not None and floor.nbytes > budget.ram_bytes:
        return (
            f"{printable(floor.cause)} needs {floor.nbytes:,} bytes at once; the budget is "
            f"{budget.ram_bytes:,}."
        )
    least, deadline = least_seconds(costs), budget.deadline_seconds
    if deadline is not None and least > deadline * (1 + 1e-9):
        return f"running every op once takes {least:.6g} s; the deadline is {deadline:.6g} s."
    return ""


def reached(report: Report, minimize: Goal) -> float:
    """What a schedule comes to in the goal's terms."""
    values: dict[Goal, float] = {
        "joules": report.joules,
        "seconds": report.seconds,
        "bytes": report.peak_bytes,
    }
    return values[minimize]


def _in_any_order(solution: Solution, report: Report | None, minimize: Goal) -> float | None:
    known = solution.any_order_joules
    if known is None or report is None or minimize != "joules":
        return None
    return min(known, report.joules)


def _as_plan(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    floor: Floor,
    answer: _Answer,
    started: float,
    minimize: Goal,
) -> Plan:
    report, solution = answer.report, answer.solution
    status, gap = solution.status, None
    bounds: dict[Goal, float | None] = {"joules": None, "seconds": None, "bytes": None}
    source: BoundSource | None = None
    if report is not None:
        simple: dict[Goal, float] = {
            "joules": least_joules(costs),
            "seconds": least_seconds(costs),
            "bytes": floor.nbytes,
        }
        bound, source = simple[minimize], "certified"
        if solution.bound_joules is not None and solution.bound_joules > bound:
            bound, source = solution.bound_joules, solution.bound_source
        value = reached(report, minimize)
        bounds[minimize] = bound = min(bound, value)
        gap = (value - bound) / value if value else 0.0
        closed = 0.0 if minimize == "bytes" else OPTIMAL_GAP
        status = "optimal" if gap <= closed else "feasible"
    smallest = bounds["bytes"]
    return Plan(
        status=status,
        minimize=minimize,
        joules=report.joules if report else None,
        seconds=report.seconds if report else None,
        peak_bytes=report.peak_bytes if report else None,
        bound_joules=bounds["joules"],
        bound_seconds=bounds["seconds"],
        bound_bytes=None if smallest is None else int(smallest),
        bound_source=source,
        bound_any_order_joules=_in_any_order(solution, report, minimize),
        gap=gap,
        baseline_joules=costs.keep_all_joules,
        floor_bytes=floor.nbytes,
        solve_seconds=time.monotonic() - started,
        first_seconds=solution.first_seconds if report else None,
        prices=solution.prices if minimize == "joules" else None,
        solver=answer.solver,
        reason=solution.reason,
        budget=answer.budget or budget,
        schedule=solution.schedule if report else (),
        graph=graph,
        costs=costs,
    )
