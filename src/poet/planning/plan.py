"""Planning: the question a person asks, as graph, costs and budget, and its answer.

`plan` gathers the values and has them solved (`solve`); where nobody said how transfers take time,
it tries both ways.
"""

import os
import time
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, get_args

import msgspec

from poet.baselines import STARTS
from poet.costs.analytic import analytic, with_workspaces
from poet.costs.streams import with_streams
from poet.devices import find_device
from poet.errors import PoetError
from poet.planning.problems import graph_and_costs, read_problem
from poet.planning.solve import ask, quick_search, solve
from poet.referee.replay import check
from poet.values.device import Costs, Device
from poet.values.graph import MAX_BYTES, Graph
from poet.values.instances import Instance
from poet.values.plan import Plan, draft
from poet.values.profile import Profile
from poet.values.quantities import parse_bytes, parse_deadline
from poet.values.schedule import (
    OPTIMAL_GAP,
    Budget,
    Effort,
    Goal,
    Params,
    Progress,
    Schedule,
    Transfers,
    places,
)

if TYPE_CHECKING:
    from poet.tracer.program import Program


def plan(
    problem: "Instance | Graph | Program | str",
    device: str | Device | None = None,
    ram: str | int | None = None,
    deadline: str | float | None = None,
    *,
    costs: Costs | Profile | None = None,
    transfers: Transfers | None = None,
    params: Params | None = None,
    fused: "Callable[[], Instance | Graph | Program] | None" = None,
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
    the least energy there.

    `params` says where parameters and optimizer state are between steps: `resident` in RAM, `paged`
    in the store, or there and `streamed`, which lets ops read them in tiles. By default they are in
    RAM if a schedule is found for that, and else streamed. To be updated in tiles a parameter needs
    a graph with fused updates: that of a model by name is captured so where it is streamed, and
    `fused` gives it for other problems.

    With `keep_inputs` the batch is in RAM at the end, too. `method` asks
    one schedule maker alone. `work_limit` counts work instead of seconds, so that an answer repeats
    for a `seed`.

    A problem without a schedule gives a Plan too: its `status` is `infeasible` (proven) or
    `unknown` and its `reason` says why.
    """
    if not (isfinite(time_limit) and time_limit >= 0):
        raise PoetError(f"the time limit is {time_limit}; it must be 0 seconds or more")
    if minimize not in get_args(Goal):
        raise PoetError(f"minimize is {minimize!r}; it must be one of {', '.join(get_args(Goal))}")
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
    if isinstance(problem, str):
        name, given = problem, costs is not None or problem.endswith(".json")
        problem = read_problem(name, fuse_updates=params == "streamed" and not given)
        fused = None if given else lambda: read_problem(name, fuse_updates=True)
    best: Plan | None = None
    for how in ("resident", "streamed") if params is None else (params,):
        if best is not None:
            if not _would_fit_streamed(best, device, costs):
                break
            problem = problem if fused is None else fused()
        asked = question(
            problem,
            device,
            None if ram == "min" else ram,
            deadline,
            costs=costs,
            transfers=transfers,
            params=how,
            keep_inputs=keep_inputs,
            paging=paging,
            recompute=recompute,
        )
        if ram == "min":
            smallest = _smallest(asked.graph, asked.costs, asked.budget, effort)
            asked = asked._replace(budget=smallest)
        if isinstance(costs, Profile) and method is None and not _is_roomy(asked):
            best = _by_rates_first(asked, costs, effort, minimize)
        else:
            best = answer(asked, effort, method, minimize)
        if best.schedule:
            break
    assert best is not None
    return best


def _would_fit_streamed(
    plan: Plan, device: str | Device | None, costs: Costs | Profile | None
) -> bool:
    """Whether a plan that was not found with all parameters in RAM may be found without."""
    return (
        (device is not None or isinstance(costs, Profile))
        and plan.budget.paging
        and plan.budget.ram_bytes is not None
        and any(plan.graph.tensors[i].role != "input" for i in plan.graph.given)
    )


class Question(NamedTuple):
    """What is asked. `either`: nobody said how transfers take time, so serial ones will do, too."""

    graph: Graph
    costs: Costs
    budget: Budget
    either: bool


def question(
    problem: "Instance | Graph | Program | str",
    device: str | Device | None = None,
    ram: str | int | None = None,
    deadline: str | float | None = None,
    *,
    costs: Costs | Profile | None = None,
    transfers: Transfers | None = None,
    params: Params = "resident",
    keep_inputs: bool = False,
    paging: bool = True,
    recompute: bool = True,
) -> Question:
    """The values behind the words of `plan`."""
    if isinstance(problem, str):
        fuse = params == "streamed" and costs is None
        problem = read_problem(problem, fuse_updates=fuse)
    for what, value, kinds in (
        ("transfers", transfers, (None, *get_args(Transfers))),
        ("params", params, get_args(Params)),
    ):
        if value not in kinds:
            raise PoetError(f"{what} is {value!r}; it must be one of {', '.join(map(str, kinds))}")
    board = find_device(device) if isinstance(device, str) else device
    if isinstance(costs, Profile):
        board = board or costs.device
        costs = costs.costs
    graph, costs = graph_and_costs(problem, costs, board)
    if params == "streamed":
        if board is None:
            raise PoetError("streamed parameters need a device, whose store they are read from")
        costs = with_streams(costs, graph, board)
    start, end = places(graph, params, keep_inputs)
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
    return Question(graph, costs, budget, transfers is None and budget.transfers == "overlap")


def answer(
    asked: Question,
    effort: Effort,
    method: str | None = None,
    minimize: Goal = "joules",
    starts: tuple[Schedule, ...] = (),
) -> Plan:
    """The best plan found. `starts` are schedules that the planner may begin with."""
    graph, costs, budget, either = asked
    if either:
        return _overlap_or_serial(graph, costs, budget, effort, method, minimize, starts)
    return solve(graph, costs, budget, effort, method, minimize, starts)


def _by_rates_first(asked: Question, profile: Profile, effort: Effort, minimize: Goal) -> Plan:
    """Plan by the machine's rates for a while, then go on from there with what was measured.

    Measured seconds differ from op to op for no reason that a search could follow, and it ends in
    worse valleys: ResNet-18 in 60 % of its RAM came out 1 % slower than by rates alone.
    """
    graph, costs = asked.graph, asked.costs
    smooth = with_workspaces(analytic(graph, profile.device), costs)
    if any(len(variants) > 1 for variants in costs.ops):
        smooth = with_streams(smooth, graph, profile.device)
    started = time.monotonic()
    part = msgspec.structs.replace(effort, time_limit_seconds=_BY_RATES * effort.time_limit_seconds)
    first = answer(
        asked._replace(costs=msgspec.structs.replace(costs, ops=smooth.ops)), part, None, minimize
    )
    left = effort.time_limit_seconds - (time.monotonic() - started)
    rest = msgspec.structs.replace(effort, time_limit_seconds=max(0.0, left))
    if not first.schedule:
        return answer(asked, rest, None, minimize)
    # Whether transfers run beside compute is settled by now.
    asked = asked._replace(
        budget=msgspec.structs.replace(asked.budget, transfers=first.budget.transfers), either=False
    )
    return answer(asked, rest, None, minimize, (first.schedule,))


_BY_RATES = 0.4


def _is_roomy(asked: Question) -> bool:
    """Whether everything can be kept in RAM."""
    ram_bytes = asked.budget.ram_bytes
    return ram_bytes is None or ram_bytes >= _keep_all_bytes(*asked[:3])


def _overlap_or_serial(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    effort: Effort,
    method: str | None,
    minimize: Goal,
    starts: tuple[Schedule, ...],
) -> Plan:
    """Transfers beside compute where that fits and is as good; else compute waits for them.

    Nobody asked for the one or the other. Beside compute, a page-out holds its bytes while the next
    ops run, and a store that is slow against the compute never lets go of them in time; and where
    the two slow each other down, taking turns may be faster. Turns are the easier problem, so they
    are planned first, and the search for transfers beside compute begins with what was found.
    """
    if _is_roomy(Question(graph, costs, budget, either=True)):
        return solve(graph, costs, budget, effort, method, minimize, starts)
    started = time.monotonic()
    half = msgspec.structs.replace(effort, time_limit_seconds=effort.time_limit_seconds / 2)
    in_turns = msgspec.structs.replace(budget, transfers="serial")
    serial = solve(graph, costs, in_turns, half, method, minimize, starts)
    left = effort.time_limit_seconds - (time.monotonic() - started)
    rest = msgspec.structs.replace(effort, time_limit_seconds=max(left, 0.0))
    if serial.schedule:
        starts = (*starts, serial.schedule)
    beside = solve(graph, costs, budget, rest, method, minimize, starts)
    if not beside.schedule:
        if not serial.schedule:
            return beside
        why = (
            "no schedule was found with transfers beside compute in this RAM: compute waits for "
            "them"
        )
        return msgspec.structs.replace(serial, reason=why)
    if not serial.schedule:
        return beside
    field = {"joules": "joules", "seconds": "seconds", "bytes": "peak_bytes"}[minimize]
    ours, theirs = getattr(beside, field), getattr(serial, field)
    return beside if ours <= theirs * (1 + 1e-9) else serial


def _keep_all_bytes(graph: Graph, costs: Costs, budget: Budget) -> int:
    report = ask(STARTS["keep-all"], graph, costs, budget, Effort())[1]
    return MAX_BYTES if report is None else report.peak_bytes


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _smallest(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Budget:
    """The budget with the smallest RAM that a schedule was found for."""
    from poet.planner.search.objectives import fewest_bytes

    half = msgspec.structs.replace(effort, time_limit_seconds=effort.time_limit_seconds / 2)
    schedule = fewest_bytes(graph, costs, budget, half, quick_search(graph, costs, half))
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
