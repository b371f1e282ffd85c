"""Frontiers: energy against memory, from the least RAM that a schedule was found for to keep-all.

Budgets are taken from small to large, and each plan starts from its neighbour's (`curves`). The
knee is the budget from which on more RAM buys little: the point farthest below the straight line
between the ends.
"""

from collections.abc import Iterable, Sequence

import msgspec

from poet.planning.compare import (
    COMPARED,
    check_names,
    hearing,
    place,
    row_from,
    rows_of,
)
from poet.planning.curves import (
    budgets_between,
    check_points,
    ends_of,
    keep_all_task,
    least_tasks,
    point_tasks,
)
from poet.planning.executor import ONE_BY_ONE, Executor, Limits
from poet.planning.problem import Problem
from poet.planning.question import Terms
from poet.planning.residency import questions
from poet.planning.rows import Ask, Row, Shared, effort_fields, found_row
from poet.planning.solve import PLANNER
from poet.planning.turns import Task
from poet.values.progress import CountProgress
from poet.values.schedule import Effort


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """All methods at one budget."""

    ram_bytes: int
    rows: tuple[Row, ...]

    def row(self, method: str) -> Row | None:
        return next((row for row in self.rows if row.method == method), None)


class Frontier(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="poet-frontier/1"
):
    """The points, from the smallest budget to the largest."""

    graph: str
    device: str
    transfers: str
    methods: tuple[str, ...]
    points: tuple[Point, ...]
    floor_bytes: int
    """No schedule can use less."""
    keep_all_bytes: int
    keep_all_joules: float
    interrupted: bool = False
    """Ctrl-C came before the largest budget."""

    @property
    def place(self) -> str:
        return place(self.graph, self.device)

    @property
    def smallest_bytes(self) -> int | None:
        """The smallest budget that POET has a schedule for."""
        return next(
            (p.ram_bytes for p in self.points if (r := p.row(PLANNER)) and r.joules is not None),
            None,
        )

    @property
    def knee(self) -> Point | None:
        """Where POET's curve bends most; none where there are fewer than three points of it."""
        found = [(p, r.joules) for p in self.points if (r := p.row(PLANNER)) and r.joules]
        if len(found) < 3:
            return None
        (first, top), (last, bottom) = found[0], found[-1]
        wide, high = last.ram_bytes - first.ram_bytes, top - bottom
        if not (wide and high):
            return None

        def below_the_line(point: Point, joules: float) -> float:
            return 1 - (point.ram_bytes - first.ram_bytes) / wide - (joules - bottom) / high

        return max(found, key=lambda each: below_the_line(*each))[0]


def frontier(
    problem: Problem,
    terms: Terms,
    effort: Effort,
    points: int = 12,
    methods: Iterable[str] = COMPARED,
    progress: CountProgress | None = None,
    limits: Limits = ONE_BY_ONE,
) -> Frontier:
    """Plans of every method at budgets from the smallest possible to keep-all.

    Where parameters may live in several places, each method takes the first that fits a budget, as
    `poet.plan` does: all in RAM at the largest, and at the smallest as little as can be. Plans are
    made by worker processes, by default one after the other; `limits` says how many at once. Ctrl-C
    ends it with the budgets that all methods were asked at, or, where there are none, is raised.
    """
    places = list(questions(problem, terms))
    names = tuple(dict.fromkeys(methods))
    check_names(names)
    check_points(points)
    ask = Ask(effort=effort_fields(effort), tells=effort.progress is not None)
    done, total = 0, 1 + points * len(names)

    def told(task: Task) -> None:
        if progress is not None and task.what:
            progress(task.what, done, total)

    rows: dict[int, dict[str, Row]] = {}
    budgets: Sequence[int] = ()
    with Executor(found_row, Shared.of(problem, terms), limits) as executor:
        try:
            (whole,) = executor.run([keep_all_task(ask)], began=told, heard=hearing(effort))
            tasks = least_tasks(ask, whole.answer, len(places), effort)
            least = list(executor.run(tasks, heard=hearing(effort)))
            ends = ends_of(whole.answer, [each.answer for each in least])
            budgets = budgets_between(ends.least_bytes, ends.keep_all_bytes, points)
            done = 1
            tasks = point_tasks(ask, names, budgets, ends)
            for outcome in executor.run(tasks, began=told, heard=hearing(effort)):
                at, name = outcome.key
                rows.setdefault(at, {})[name] = row_from(outcome, name)
                done += 1
            if progress is not None:
                progress("done", total, total)
        except KeyboardInterrupt:
            if len(rows.get(0, ())) < len(names):
                raise
    made = tuple(
        Point(ram_bytes=ram_bytes, rows=tuple(rows_of(names, rows[at])))
        for at, ram_bytes in enumerate(budgets)
        if all(len(rows.get(each, ())) == len(names) for each in range(at + 1))
    )
    return Frontier(
        graph=places[0].graph.name,
        device=places[0].costs.device,
        transfers=places[0].budget.transfers,
        methods=names,
        points=made,
        floor_bytes=ends.floor_bytes,
        keep_all_bytes=ends.keep_all_bytes,
        keep_all_joules=ends.keep_all_joules,
        interrupted=len(made) < len(budgets),
    )
