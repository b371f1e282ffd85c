"""Planning: the question a person asks, joined to whoever answers it and to the referee.

`plan` gathers graph, costs and budget; refuses what is provably impossible; asks the schedule
makers; has every schedule replayed; and returns the best valid one as a Plan whose claims are the
referee's numbers. It makes no schedule itself.
"""

import time
from math import isfinite
from typing import Literal, get_args

import msgspec

from poet.baselines import METHODS
from poet.device import Costs, Device
from poet.devices import find_device
from poet.errors import PoetError
from poet.files import decode_json, format_of, read_bytes
from poet.graph import Graph, printable
from poet.instances import Instance, decode_instance
from poet.planner.floor import Floor, least_joules, least_seconds, memory_floor
from poet.quantities import parse_bytes, parse_deadline
from poet.referee import Report, check
from poet.schedule import OPTIMAL_GAP, Budget, Effort, Plan, Solution, Transfers, draft, places


def plan(
    problem: Instance | Graph | str,
    device: str | Device | None = None,
    ram: str | int | None = None,
    deadline: str | float | None = None,
    *,
    costs: Costs | None = None,
    transfers: Transfers | None = None,
    params: Literal["resident", "paged"] = "resident",
    paging: bool = True,
    recompute: bool = True,
    method: str | None = None,
    time_limit: float = 60.0,
) -> Plan:
    """The least-energy schedule found for a problem under a RAM budget and a deadline.

    A problem is an `Instance`, which carries its costs, a `Graph`, which needs `costs`, or the path
    of a file with one of the two. `ram` is bytes or a size such as `"256 KiB"`, by default what the
    board has left for tensors; without a board there is no limit. `deadline` is `"20s"`, a number
    of seconds, or `"1.5x"` the keep-all step. `method` asks one schedule maker alone.

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
    ):
        if value not in kinds:
            raise PoetError(f"{what} is {value!r}; it must be one of {', '.join(map(str, kinds))}")
    graph, costs = _graph_and_costs(problem, costs)
    board = find_device(device) if isinstance(device, str) else device
    start, end = places(graph, params)
    budget = Budget(
        ram_bytes=_ram_bytes(ram, board),
        store_bytes=board.store_bytes if board else None,
        deadline_seconds=_deadline_seconds(deadline, costs),
        transfers=transfers or _usual_transfers(problem, board),
        start=start,
        end=end,
        paging=paging,
        recompute=recompute,
    )
    return solve(graph, costs, budget, Effort(time_limit_seconds=time_limit), method)


def read_problem(path: str) -> Instance | Graph:
    """An instance or a graph from a .json file."""
    if not path.endswith(".json"):
        raise PoetError(f"{path!r} is not a .json file: give an instance or a graph")
    data = read_bytes(path)
    if format_of(data, path) is None:
        return decode_instance(data, path)
    return decode_json(data, Graph, path)


def solve(
    graph: Graph, costs: Costs, budget: Budget, effort: Effort, method: str | None = None
) -> Plan:
    """The same, with every value given. Asks all makers, or the one named."""
    if method is not None and method not in METHODS:
        raise PoetError(f"there is no method {method!r}. There are {', '.join(METHODS)}.")
    started = time.monotonic()
    floor = memory_floor(graph, costs, budget)
    no_schedule = _Answer(solution=Solution(status="unknown"), solver="", seconds=0.0)
    impossible = _proof_of_none(costs, budget, floor)
    if impossible:
        answer = msgspec.structs.replace(
            no_schedule, solution=Solution(status="infeasible", reason=impossible)
        )
        return _as_plan(graph, costs, budget, floor, answer, started)
    best, reasons = no_schedule, []
    for name in [method] if method else METHODS:
        try:
            solution = METHODS[name](graph, costs, budget, effort)
        except KeyboardInterrupt:
            if best.report is None:
                raise
            break  # the best so far is the answer
        report, reason = None, solution.reason
        if solution.status == "feasible":
            report = check(draft(graph, costs, budget, solution.schedule))
            reason = report.violation.message if report.violation else ""
        if report is None or not report.valid:
            reasons.append(f"{name}: {reason}")
        elif best.report is None or report.joules < best.report.joules:
            seconds = time.monotonic() - started
            best = _Answer(solution=solution, solver=name, seconds=seconds, report=report)
    if best.report is None:
        nothing = Solution(status="unknown", reason="; ".join(reasons))
        best = msgspec.structs.replace(no_schedule, solution=nothing)
    return _as_plan(graph, costs, budget, floor, best, started)


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The best solution so far, who made it, when, and what the referee said."""

    solution: Solution
    solver: str
    seconds: float
    report: Report | None = None


def _graph_and_costs(problem: Instance | Graph, costs: Costs | None) -> tuple[Graph, Costs]:
    if isinstance(problem, Instance):
        graph, costs = problem.graph, costs or problem.costs
    elif costs is None:
        raise PoetError(f"the graph {problem.name!r} has no costs: give `costs` (--costs FILE)")
    else:
        graph = problem
    try:
        costs.check_belongs(graph)
    except ValueError as error:
        raise PoetError(str(error)) from None
    return graph, costs


def _ram_bytes(ram: str | int | None, board: Device | None) -> int | None:
    if ram is not None:
        return parse_bytes(ram, "RAM budget")
    return board.available_bytes if board else None


def _deadline_seconds(deadline: str | float | None, costs: Costs) -> float | None:
    return None if deadline is None else parse_deadline(deadline, costs.keep_all_seconds)


def _usual_transfers(problem: Instance | Graph, board: Device | None) -> Transfers:
    if isinstance(problem, Instance):
        return "free"  # as the released code counts
    return "overlap" if board and board.overlap else "serial"


def _proof_of_none(costs: Costs, budget: Budget, floor: Floor) -> str:
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
    graph: Graph, costs: Costs, budget: Budget, floor: Floor, answer: _Answer, started: float
) -> Plan:
    report, solution = answer.report, answer.solution
    status, gap, bound = solution.status, None, None
    if report is not None:
        bound = max(least_joules(costs), solution.bound_joules or 0.0)
        gap = max(0.0, (report.joules - bound) / report.joules) if report.joules else 0.0
        status = "optimal" if gap <= OPTIMAL_GAP else "feasible"
    return Plan(
        status=status,
        joules=report.joules if report else None,
        seconds=report.seconds if report else None,
        peak_bytes=report.peak_bytes if report else None,
        bound_joules=bound,
        bound_source="certified" if bound is not None else None,
        gap=gap,
        baseline_joules=costs.keep_all_joules,
        floor_bytes=floor.nbytes,
        solve_seconds=time.monotonic() - started,
        first_seconds=answer.seconds if report else None,
        solver=answer.solver,
        reason=solution.reason,
        budget=budget,
        schedule=solution.schedule if report else (),
        graph=graph,
        costs=costs,
    )
