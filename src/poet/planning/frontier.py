"""Frontiers: energy against memory, from the least RAM that a schedule was found for to keep-all.

Budgets are taken from small to large, and each plan starts from its neighbour's: a schedule that
fits a budget fits a larger one, so that no curve ever rises. The knee is the budget from which on
more RAM buys little: the point farthest below the straight line between the ends.
"""

from collections.abc import Iterable, Sequence
from math import inf

import msgspec

from poet.errors import PoetError
from poet.planner.proof.floor import least_joules
from poet.planning.compare import COMPARED, Row, check_names, place, row_of
from poet.planning.plan import answer, first_answer
from poet.planning.question import Problem, Question, Terms
from poet.planning.residency import questions
from poet.planning.solve import PLANNER
from poet.values.plan import Plan
from poet.values.progress import CountProgress
from poet.values.schedule import Effort, Schedule

MOST_POINTS = 200
_MANY = 20
"""So many times the smallest budget, and budgets are multiples of each other."""


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
) -> Frontier:
    """Plans of every method at budgets from the smallest possible to keep-all.

    Where parameters may live in several places, each method takes the first that fits a budget, as
    `poet.plan` does: all in RAM at the largest, and at the smallest as little as can be. Ctrl-C
    ends it with the budgets that all methods were asked at, or, where there are none, is raised.
    """
    places = list(questions(problem, terms))
    asked = places[0]
    names = tuple(dict.fromkeys(methods))
    check_names(names)
    if not 2 <= points <= MOST_POINTS:
        raise PoetError(f"a frontier of {points} points; it must have from 2 to {MOST_POINTS}")
    whole = answer(asked.within(None), effort, "keep-all")
    if whole.peak_bytes is None or whole.joules is None:
        raise PoetError(f"the step cannot be run with all kept in RAM: {whole.reason}")
    report = progress or (lambda name, done, count: None)
    total = 1 + points * len(names)
    report("the smallest budget", 0, total)
    least = _least(places, whole.peak_bytes, effort)
    floor = least.floor_bytes or whole.floor_bytes or 0
    start = least.peak_bytes or floor
    best: dict[str, Plan] = {}
    made: list[Point] = []
    budgets = _budgets(start, whole.peak_bytes, points)
    try:
        for at, ram_bytes in enumerate(budgets):
            rows = []
            for nth, name in enumerate(names):
                report(name, 1 + at * len(names) + nth, total)
                before = best.get(name)
                known = least if at == 0 and name == PLANNER and least.schedule else before
                plan = _first(places, ram_bytes, effort, name, known)
                if before is not None and _is_better(before, plan):
                    plan = _kept(before, plan)
                if plan.schedule:
                    best[name] = plan
                rows.append(row_of(name, plan))
            made.append(Point(ram_bytes=ram_bytes, rows=tuple(rows)))
        report("done", total, total)
    except KeyboardInterrupt:
        if not made:
            raise
    return Frontier(
        graph=asked.graph.name,
        device=asked.costs.device,
        transfers=asked.budget.transfers,
        methods=names,
        points=tuple(made),
        floor_bytes=floor,
        keep_all_bytes=whole.peak_bytes,
        keep_all_joules=whole.joules,
        interrupted=len(made) < len(budgets),
    )


def _least(places: Sequence[Question], most: int, effort: Effort) -> Plan:
    """The plan in the least RAM, wherever parameters may live."""
    part = msgspec.structs.replace(
        effort, time_limit_seconds=effort.time_limit_seconds / len(places)
    )
    found = [answer(each.within(most), part, None, "bytes") for each in places]
    return min(found, key=lambda plan: plan.peak_bytes or inf)


def _first(
    places: Sequence[Question], ram_bytes: int, effort: Effort, name: str, known: Plan | None
) -> Plan:
    """The plan of the first place that has one within a budget."""

    def beginning(asked: Question) -> tuple[Question, tuple[Schedule, ...]]:
        is_same = known is not None and known.graph is asked.graph
        if is_same and known is not None and known.budget.start == asked.budget.start:
            return asked.knowing(known.costs), (known.schedule,)
        return asked, ()

    return first_answer((each.within(ram_bytes) for each in places), effort, name, known=beginning)


def _budgets(least: int, most: int, points: int) -> Sequence[int]:
    """Closer together where RAM is short: there the curves are steep. Each a multiple of the one
    before where the largest is many times the smallest."""
    if least >= most:
        return [most]
    shares = [at / (points - 1) for at in range(points)]
    if most > _MANY * least:
        return sorted({round(least * (most / least) ** share) for share in shares})
    return sorted({least + round((most - least) * share**1.5) for share in shares})


def _is_better(before: Plan, plan: Plan) -> bool:
    return plan.joules is None or (before.joules is not None and before.joules < plan.joules)


def _kept(before: Plan, plan: Plan) -> Plan:
    """The neighbour's schedule, under this budget and beside this budget's bound, or, where that is
    one for other ways to run ops, beside what every schedule takes."""
    bound, joules = plan.bound_joules, before.joules
    any_order = plan.bound_any_order_joules
    if before.graph is not plan.graph:
        bound, any_order = least_joules(before.costs), None
    gap = (joules - bound) / joules if bound is not None and joules else None
    return msgspec.structs.replace(
        before,
        budget=msgspec.structs.replace(before.budget, ram_bytes=plan.budget.ram_bytes),
        bound_joules=bound,
        bound_source=plan.bound_source,
        bound_any_order_joules=any_order,
        gap=gap if bound is not None else before.gap,
        solve_seconds=plan.solve_seconds,
    )
