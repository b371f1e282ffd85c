"""Planning: the question a person asks, joined to whoever answers it and to the referee.

`plan` gathers graph, costs and budget; refuses what is provably impossible; asks the schedule
makers; has every schedule replayed; and returns the best valid one as a Plan whose claims are the
referee's numbers. It makes no schedule itself.
"""

import os
import time
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from poet.baselines import METHODS
from poet.device import Costs, Device
from poet.devices import find_device
from poet.errors import PoetError
from poet.graph import MAX_BYTES, Graph, printable
from poet.instances import Instance
from poet.planner.floor import Floor, least_joules, least_seconds, memory_floor
from poet.problems import graph_and_costs, read_problem
from poet.profiles import Profile
from poet.quantities import parse_bytes, parse_deadline
from poet.referee import check
from poet.schedule import (
    OPTIMAL_GAP,
    BoundSource,
    Budget,
    Effort,
    Goal,
    Maker,
    Plan,
    Progress,
    Schedule,
    Solution,
    Transfers,
    draft,
    places,
)
from poet.verdict import Report

if TYPE_CHECKING:
    from poet.tracer.program import Program

PLANNER = "poet"
"""The planner's name among the methods."""


def plan(
    problem: "Instance | Graph | Program | str",
    device: str | Device | None = None,
    ram: str | int | None = None,
    deadline: str | float | None = None,
    *,
    costs: Costs | Profile | None = None,
    transfers: Transfers | None = None,
    params: Literal["resident", "paged"] = "resident",
    keep_inputs: bool = False,
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
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """The least-energy schedule found for a problem under a RAM budget and a deadline.

    A problem is a captured `Program` or its `Graph`; an `Instance`, which carries its costs; the
    path of a file with a graph or an instance; or a model by name, as on the command line. The
    costs of a graph are the device's by its rates, unless `costs` are given.

    `ram` is bytes or a size such as `"256 KiB"`, by default what the board has left for tensors;
    without a board there is no limit. `deadline` is `"20s"`, a number of seconds, or `"1.5x"` the
    keep-all step. `ram="min"` asks for the smallest RAM that a schedule was found for, and then for
    the least energy there. With `keep_inputs` the batch is in RAM at the end, too. `method` asks
    one schedule maker alone. `work_limit` counts work instead of seconds, so that an answer repeats
    for a `seed`.

    A problem without a schedule gives a Plan too: its `status` is `infeasible` (proven) or
    `unknown` and its `reason` says why.
    """
    if isinstance(problem, str):
        problem = read_problem(problem)
    if not (isfinite(time_limit) and time_limit >= 0):
        raise PoetError(f"the time limit is {time_limit}; it must be 0 seconds or more")
    for what, value, kinds in (
        ("transfers", transfers, (None, *get_args(Transfers))),
        ("params", params, ("resident", "paged")),
        ("minimize", minimize, get_args(Goal)),
    ):
        if value not in kinds:
            raise PoetError(f"{what} is {value!r}; it must be one of {', '.join(map(str, kinds))}")
    board = find_device(device) if isinstance(device, str) else device
    if isinstance(costs, Profile):
        board = board or costs.device
        costs = costs.costs
    graph, costs = graph_and_costs(problem, costs, board)
    start, end = places(graph, params, keep_inputs)
    budget = Budget(
        ram_bytes=_ram_bytes(None if ram == "min" else ram, board),
        store_bytes=board.store_bytes if board else None,
        deadline_seconds=_deadline_seconds(deadline, costs),
        transfers=transfers or _usual_transfers(problem, board),
        start=start,
        end=end,
        paging=paging,
        recompute=recompute,
    )
    effort = Effort(
        time_limit_seconds=time_limit,
        relative_gap=gap,
        threads=threads or _cores(),
        seed=seed,
        work_limit=work_limit,
        solver=solver,
        solver_log=solver_log,
        progress=progress,
    )
    if ram == "min":
        budget = _smallest(graph, costs, budget, effort)
    if transfers is None and budget.transfers == "overlap":
        return _overlap_or_serial(graph, costs, budget, effort, method, minimize)
    return solve(graph, costs, budget, effort, method, minimize)


def _overlap_or_serial(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    effort: Effort,
    method: str | None,
    minimize: Goal,
) -> Plan:
    """Transfers beside compute where that fits and is better; else compute waits for them.

    Nobody asked for the one or the other. Beside compute, a page-out holds its bytes while the next
    ops run, and a store that is slow against the compute never lets go of them in time; and where
    the two slow each other down, taking turns may be faster.
    """
    started = time.monotonic()
    half = msgspec.structs.replace(effort, time_limit_seconds=effort.time_limit_seconds / 2)
    roomy = budget.ram_bytes is None or budget.ram_bytes >= _keep_all_bytes(graph, costs, budget)
    beside = solve(graph, costs, budget, effort if roomy else half, method, minimize)
    slowed = (
        minimize == "seconds" and min(costs.compute_speed_beside, costs.transfer_speed_beside) < 1
    )
    if beside.status != "unknown" and (roomy or not slowed):
        return beside
    left = effort.time_limit_seconds - (time.monotonic() - started)
    rest = msgspec.structs.replace(effort, time_limit_seconds=max(left, 0.0))
    serial = msgspec.structs.replace(budget, transfers="serial")
    plan = solve(graph, costs, serial, rest, method, minimize)
    if beside.seconds is not None and (plan.seconds is None or beside.seconds <= plan.seconds):
        return beside
    if beside.seconds is not None or plan.status not in ("optimal", "feasible"):
        return plan
    why = "no schedule was found with transfers beside compute in this RAM: compute waits for them"
    return msgspec.structs.replace(plan, reason=why)


def _keep_all_bytes(graph: Graph, costs: Costs, budget: Budget) -> int:
    report = _ask(METHODS["keep-all"], graph, costs, budget, Effort())[1]
    return MAX_BYTES if report is None else report.peak_bytes


def _cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def solve(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    effort: Effort,
    method: str | None = None,
    minimize: Goal = "joules",
) -> Plan:
    """The same, with every value given. The planner answers, or the method named alone."""
    if method is not None and method not in (PLANNER, *METHODS):
        known = ", ".join((PLANNER, *METHODS))
        raise PoetError(f"there is no method {method!r}. There are {known}.")
    started = time.monotonic()
    floor = memory_floor(graph, costs, budget)
    impossible = _proof_of_none(graph, costs, budget, floor)
    if impossible:
        answer = _Answer(solution=Solution(status="infeasible", reason=impossible), solver="")
        return _as_plan(graph, costs, budget, floor, answer, started, minimize)
    best = _Answer(solution=Solution(status="unknown"), solver="")
    reasons = []
    for name in METHODS if method in (None, PLANNER) else [method]:
        solution, report = _ask(METHODS[name], graph, costs, budget, effort)
        if report is None or report.violation is not None:
            why = report.violation.message if report and report.violation else solution.reason
            reasons.append(f"{name}: {why}")
            continue
        if best.report is None or report.joules < best.report.joules:
            timed = msgspec.structs.replace(solution, first_seconds=time.monotonic() - started)
            best = _Answer(solution=timed, solver=name, report=report)
    if method in (None, PLANNER):
        best = _planned(graph, costs, budget, effort, best, started, minimize)
        if best.report is None and best.solution.status != "infeasible":
            reasons.append(f"{PLANNER}: {best.solution.reason}")
    if best.report is None and best.solution.status != "infeasible":
        hint = "Try more --ram, a later --deadline or more --time-limit."
        nothing = Solution(status="unknown", reason=f"{'; '.join(reasons)}. {hint}")
        best = _Answer(solution=nothing, solver="")
    return _as_plan(graph, costs, budget, floor, best, started, minimize)


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The best solution so far, who made it, and what the referee said."""

    solution: Solution
    solver: str
    report: Report | None = None


def _ask(
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
) -> _Answer:
    """What the planner makes of it, starting from the best of the simple makers."""
    from poet.planner.goals import fewest_bytes, seconds_as_joules
    from poet.planner.search import search  # numpy, scipy and a solver: not for `poet --help`

    spent = time.monotonic() - started
    left = msgspec.structs.replace(
        effort, time_limit_seconds=max(0.0, effort.time_limit_seconds - spent)
    )
    starts = (start.solution.schedule,) if start.report else ()
    if minimize == "bytes":
        schedule = fewest_bytes(graph, costs, budget, left, _quick(graph, costs, left))
        found = schedule or (starts[0] if starts else None)
        unknown = Solution(status="unknown", reason="no schedule was found")
        solution = Solution(status="feasible", schedule=found) if found else unknown
    else:
        prices = seconds_as_joules(costs, budget) if minimize == "seconds" else costs
        solution = search(graph, prices, budget, left, starts)
    if solution.status != "feasible":
        return _Answer(solution=solution, solver="")
    report = check(draft(graph, costs, budget, solution.schedule))
    if report.violation is not None:
        raise AssertionError(f"the planner returned a wrong schedule: {report.violation}")
    first = start.solution.first_seconds
    if first is None and solution.first_seconds is not None:
        first = spent + solution.first_seconds
    timed = msgspec.structs.replace(solution, first_seconds=first)
    untouched = start.report is not None and solution.schedule == start.solution.schedule
    solver = start.solver if untouched else f"{PLANNER} ({effort.solver})"
    return _Answer(solution=timed, solver=solver, report=report)


def _quick(graph: Graph, costs: Costs, effort: Effort) -> Callable[[Budget], Schedule | None]:
    """A fast way to any schedule within a budget: paging, then a second of search."""
    from poet.planner.search import search

    brief = msgspec.structs.replace(effort, time_limit_seconds=1.0, relative_gap=1.0, progress=None)

    def quick(budget: Budget) -> Schedule | None:
        simple, report = _ask(METHODS["paging"], graph, costs, budget, brief)
        if report is not None and report.valid:
            return simple.schedule
        return search(graph, costs, budget, brief).schedule or None

    return quick


def _smallest(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Budget:
    """The budget with the smallest RAM that a schedule was found for."""
    from poet.planner.goals import fewest_bytes

    half = msgspec.structs.replace(effort, time_limit_seconds=effort.time_limit_seconds / 2)
    schedule = fewest_bytes(graph, costs, budget, half, _quick(graph, costs, half))
    if schedule is None:
        return budget
    peak = check(draft(graph, costs, budget, schedule)).peak_bytes
    return msgspec.structs.replace(budget, ram_bytes=peak)


def _ram_bytes(ram: str | int | None, board: Device | None) -> int | None:
    if ram is not None:
        return parse_bytes(ram, "RAM budget")
    return board.available_bytes if board else None


def _deadline_seconds(deadline: str | float | None, costs: Costs) -> float | None:
    return None if deadline is None else parse_deadline(deadline, costs.keep_all_seconds)


def _usual_transfers(problem: object, board: Device | None) -> Transfers:
    if isinstance(problem, Instance):
        return "free"  # as the released code counts
    return "overlap" if board and board.overlap else "serial"


def _proof_of_none(graph: Graph, costs: Costs, budget: Budget, floor: Floor) -> str:
    stored = sum(graph.tensors[i].nbytes for i, place in budget.start.items() if place != "ram")
    if budget.store_bytes is not None and stored > budget.store_bytes:
        return (
            f"{stored:,} bytes are in the store when the step starts; it has "
            f"{budget.store_bytes:,}."
        )
    if budget.ram_bytes is not None and floor.nbytes > budget.ram_bytes:
        enough = f"{floor.nbytes // 1024}KiB" if floor.nbytes % 1024 == 0 else str(floor.nbytes)
        return (
            f"{printable(floor.cause)} needs {floor.nbytes:,} bytes at once; the budget is "
            f"{budget.ram_bytes:,}. Try --ram {enough}."
        )
    least, deadline = least_seconds(costs), budget.deadline_seconds
    if deadline is not None and least > deadline * (1 + 1e-9):
        return (
            f"running every op once takes {least:.6g} s; the deadline is {deadline:.6g} s. "
            "Try --deadline 1.0x or more."
        )
    return ""


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
        reached: dict[Goal, float] = {
            "joules": report.joules,
            "seconds": report.seconds,
            "bytes": report.peak_bytes,
        }
        bound, source = simple[minimize], "certified"
        if solution.bound_joules is not None and solution.bound_joules > bound:
            bound, source = solution.bound_joules, solution.bound_source
        value = reached[minimize]
        bounds[minimize] = bound = min(bound, value)
        gap = (value - bound) / value if value else 0.0
        status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
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
        gap=gap,
        baseline_joules=costs.keep_all_joules,
        floor_bytes=floor.nbytes,
        solve_seconds=time.monotonic() - started,
        first_seconds=solution.first_seconds if report else None,
        prices=solution.prices if minimize == "joules" else None,
        solver=answer.solver,
        reason=solution.reason,
        budget=budget,
        schedule=solution.schedule if report else (),
        graph=graph,
        costs=costs,
    )
