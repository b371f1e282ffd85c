"""Comparisons: one question, asked of POET and of every baseline, and the referee's numbers.

POET plans from a cold start: no baseline's schedule is there to lean on. A baseline that comes out
ahead of POET is named, and so is one that is below the bound POET claims, which can only be a wrong
bound or a schedule that leaves the stage structure.
"""

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from poet.baselines import METHODS
from poet.errors import PoetError
from poet.planning.plan import answer, asked_of, cores
from poet.planning.question import Problem, Question, Terms, problem_of, terms
from poet.planning.solve import PLANNER
from poet.values.device import Costs, Device
from poet.values.graph import MAX_BYTES, Graph, check_range
from poet.values.instances import Instance
from poet.values.plan import Plan
from poet.values.profile import Profile
from poet.values.progress import CountProgress
from poet.values.schedule import BoundSource, Effort, Params, Status, Transfers

if TYPE_CHECKING:
    from poet.tracer.program import Program

COMPARED = (PLANNER, *(name for name in METHODS if name != "paging-greedy"))
"""The methods of a comparison, in the order of its rows."""
_EQUAL = 1e-9


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one method came to."""

    method: str
    status: Status
    joules: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    recomputed: int | None = None
    """Runs of ops beyond the first of each."""
    paged_bytes: int | None = None
    """Moved to and from the store."""
    solve_seconds: float | None = None
    first_seconds: float | None = None
    bound_joules: float | None = None
    bound_source: BoundSource | None = None
    gap: float | None = None
    baseline_joules: float | None = None
    floor_bytes: int | None = None
    transfers: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, int | float) and field != "gap":
                check_range(field, value, MAX_BYTES if isinstance(value, int) else inf)


def comparing(time_limit: float, threads: int, seed: int = 0) -> Effort:
    """How hard to try in a comparison: a plan that is as good as the best is not good enough."""
    return Effort(time_limit_seconds=time_limit, threads=threads, seed=seed, relative_gap=1e-6)


def compare(
    problem: "Problem | Instance | Graph | Program | str",
    device: str | Device | None = None,
    ram: str | int | None = None,
    deadline: str | float | None = None,
    *,
    methods: Iterable[str] = COMPARED,
    costs: Costs | Profile | None = None,
    transfers: Transfers | None = None,
    params: Params = "auto",
    time_limit: float = 20.0,
) -> list[Row]:
    """POET and the baselines on one problem, a row each; `time_limit` is for each plan.

    All have their parameters in the same place: with `params="auto"`, the first in which any method
    finds a schedule. Ctrl-C gives the rows that are there.
    """
    asked = terms(device, ram, deadline, costs=costs, transfers=transfers, params=params)
    effort = comparing(time_limit, cores())
    return compared(problem_of(problem, asked.runs_on), asked, effort, methods).rows


class Comparison(NamedTuple):
    """The question that was asked of everyone, and what each method came to."""

    asked: Question
    rows: list[Row]
    interrupted: bool = False


def compared(
    problem: Problem,
    asked: Terms,
    effort: Effort,
    methods: Iterable[str] = COMPARED,
    progress: CountProgress | None = None,
) -> Comparison:
    """The same in values. Each method has the whole of the effort to itself.

    Ctrl-C ends it with the methods that were done, or, where there are none, is raised.
    """
    names = tuple(methods)
    check_names(names)
    found: Comparison | None = None
    try:
        for question in asked_of(problem, asked, effort):
            rows: list[Row] = []
            for done, name in enumerate(names):
                if progress is not None:
                    progress(name, done, len(names))
                rows.append(row_of(name, answer(question, effort, name)))
                found = Comparison(question, rows)
            if any(row.joules is not None for row in rows):
                break
    except KeyboardInterrupt:
        if found is None:
            raise
        return found._replace(interrupted=True)
    assert found is not None
    return found


def check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in COMPARED:
            raise PoetError(f"there is no method {name!r}. There are {', '.join(COMPARED)}.")


def row_of(method: str, plan: Plan) -> Row:
    """A plan as a row; only POET's has a bound of its own."""
    own = method == PLANNER
    found = bool(plan.schedule)
    return Row(
        method=method,
        status=plan.status if own or not found else "feasible",
        joules=plan.joules,
        seconds=plan.seconds,
        peak_bytes=plan.peak_bytes,
        recomputed=plan.recomputed if found else None,
        paged_bytes=plan.paged_bytes if found else None,
        solve_seconds=plan.solve_seconds,
        first_seconds=plan.first_seconds,
        bound_joules=plan.bound_joules if own else None,
        bound_source=plan.bound_source if own else None,
        gap=plan.gap if own else None,
        baseline_joules=plan.baseline_joules,
        floor_bytes=plan.floor_bytes,
        transfers=plan.budget.transfers,
        reason=plan.reason,
    )


def place(graph: str, device: str) -> str:
    """Which step it is, and where it runs; an instance is named after both already."""
    return graph if device.startswith("as in ") else f"{graph} on {device}"


def surprises(rows: Iterable[Row]) -> list[str]:
    """Baselines that use less than POET's plan, or than its bound, in words."""
    by_name = {row.method: row for row in rows}
    ours = by_name.get(PLANNER)
    if ours is None:
        return []
    found = []
    for row in by_name.values():
        if row is ours or row.joules is None or row.transfers != ours.transfers:
            continue
        if ours.joules is None:
            found.append(f"{row.method} found a schedule where POET found none")
            continue
        if ours.bound_joules is not None and row.joules < ours.bound_joules * (1 - _EQUAL):
            found.append(
                f"{row.method} is below POET's bound: {row.joules:.6g} J, bound "
                f"{ours.bound_joules:.6g} J. The bound is wrong, or the ops are in another order"
            )
        elif row.joules < ours.joules * (1 - _EQUAL):
            gap = "" if ours.gap is None else f", within POET's gap of {ours.gap:.2%}"
            found.append(f"{row.method} is {1 - row.joules / ours.joules:.3%} ahead of POET{gap}")
    return found
