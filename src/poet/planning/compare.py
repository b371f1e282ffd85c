"""Comparisons: one question, asked of POET and of every baseline, and the referee's numbers.

`checkmate` and `paging` are POET's own search with a freedom taken away. Where they are asked, POET
is asked after them and goes on from what they found, so that it is never behind itself by luck; its
time counts theirs. Otherwise it plans from a cold start: no other baseline's schedule is there to
lean on. A baseline that comes out ahead of POET is named, and so is one that is below the bound
POET claims, which can only be a wrong bound or a schedule that leaves the stage structure.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from poet.baselines import METHODS
from poet.errors import PoetError
from poet.planning.executor import ONE_BY_ONE, Executor, Limits
from poet.planning.plan import asked_of, cores
from poet.planning.problem import Problem, problem_of
from poet.planning.question import MIN, Question, Terms, terms
from poet.planning.residency import questions
from poet.planning.rows import Ask, Row, Shared, effort_fields, found_row, index_of, lost_row
from poet.planning.solve import PLANNER
from poet.planning.turns import Outcome, Task
from poet.values.device import Costs, Device
from poet.values.graph import Graph
from poet.values.instances import Instance
from poet.values.profile import Profile
from poet.values.progress import CountProgress, SearchProgress
from poet.values.schedule import Effort, Params, Transfers

if TYPE_CHECKING:
    from poet.tracer.program import Program

COMPARED = (PLANNER, *(name for name in METHODS if name != "paging-greedy"))
"""The methods of a comparison, in the order of its rows."""
LEANED_ON = ("checkmate", "paging")
"""POET's own search, narrowed: what POET goes on from."""
_EQUAL = 1e-9


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
    limits: Limits = ONE_BY_ONE,
) -> Comparison:
    """The same in values. Each method has the whole of the effort to itself, in a worker process: a
    method that is lost there says so in its row.

    Ctrl-C ends it with the methods that were done, or, where there are none, is raised.
    """
    names = tuple(methods)
    check_names(names)
    found: Comparison | None = None
    with Executor(found_row, Shared.of(problem, asked), limits) as executor:
        try:
            for at, question in enumerate(asked_of(problem, asked, effort)):
                rows: dict[str, Row] = {}
                if asked.ram == MIN:
                    at = index_of(question, questions(problem, asked))

                def told(task: Task, done: Mapping[str, Row] = rows) -> None:
                    if progress is not None:
                        progress(task.what, len(done), len(names))

                tasks = _tasks(names, at, question, effort)
                for outcome in executor.run(tasks, began=told, heard=hearing(effort)):
                    name = str(outcome.key)
                    rows[name] = row_from(outcome, name)
                    found = Comparison(question, rows_of(names, rows))
                if any(row.joules is not None for row in rows.values()):
                    break
        except KeyboardInterrupt:
            if found is None:
                raise
            return found._replace(interrupted=True)
    assert found is not None
    return found


def _tasks(names: Iterable[str], place: int, question: Question, effort: Effort) -> list[Task]:
    turns = list(dict.fromkeys(in_turn(names)))
    return [
        Task(
            name,
            Ask(
                method=name,
                place=place,
                ram_bytes=question.budget.ram_bytes,
                effort=effort_fields(effort),
                tells=effort.progress is not None,
            ),
            needs_of(name, turns),
            what=name,
        )
        for name in turns
    ]


def hearing(effort: Effort) -> Callable[[Task, Any], None]:
    """Whoever hears what a worker's search says."""

    def heard(task: Task, value: Any) -> None:
        if effort.progress is not None:
            effort.progress(msgspec.convert(value, SearchProgress))

    return heard


def row_from(outcome: Outcome, method: str) -> Row:
    """What became of a method, as a row; an error is raised."""
    if outcome.lost:
        return lost_row(method, outcome.lost)
    row: Row = outcome.answer.row
    return row


def in_turn(names: Iterable[str]) -> list[str]:
    """The order in which methods are asked: POET after those that it goes on from."""
    return sorted(names, key=lambda name: (name not in LEANED_ON, name != PLANNER))


def needs_of(name: str, asked: Iterable[str]) -> tuple[str, ...]:
    """The methods that one goes on from, of those that are asked the same question."""
    return tuple(each for each in LEANED_ON if name == PLANNER and each in asked)


def rows_of(names: Iterable[str], found: Mapping[str, Row]) -> list[Row]:
    """The rows of what was asked so far, in the order of their names."""
    rows = [found[name] for name in names if name in found]
    before = sum(found[name].solve_seconds or 0.0 for name in LEANED_ON if name in found)

    def timed(row: Row) -> Row:
        seconds = before + (row.solve_seconds or 0.0)
        return msgspec.structs.replace(row, solve_seconds=seconds)

    return [timed(row) if row.method == PLANNER else row for row in rows]


def check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in COMPARED:
            raise PoetError(f"there is no method {name!r}. There are {', '.join(COMPARED)}.")


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
