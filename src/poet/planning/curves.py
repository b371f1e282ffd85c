"""Curves: energy against memory as questions that workers answer.

The ends come first: the least RAM that a schedule is found for, wherever parameters may live, and
keep-all. Between them are budgets, and at each of them every method is a question of its own, which
needs the one at the budget before: a schedule that fits a budget fits a larger one, so that no
curve ever rises.
"""

from collections.abc import Sequence
from math import inf

import msgspec

from poet.errors import PoetError
from poet.planning.compare import in_turn, needs_of
from poet.planning.rows import Ask, Found, effort_fields
from poet.planning.solve import PLANNER
from poet.planning.turns import Task
from poet.values.schedule import Effort

MOST_POINTS = 200
_MANY = 20
"""So many times the smallest budget, and budgets are multiples of each other."""
KEEP_ALL = "keep-all"


class Ends(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of a curve."""

    floor_bytes: int
    """No schedule can use less."""
    keep_all_bytes: int
    keep_all_joules: float
    least: Found
    """In the least RAM, if it has a schedule."""

    @property
    def least_bytes(self) -> int:
        return self.least.row.peak_bytes or self.floor_bytes


def keep_all_task(ask: Ask) -> Task:
    """Everything in RAM, of which there is no end."""
    asked = msgspec.structs.replace(ask, method=KEEP_ALL, place=0, ram_bytes=None)
    return Task(KEEP_ALL, asked, what="the smallest budget")


def least_tasks(ask: Ask, whole: Found, places: int, effort: Effort) -> list[Task]:
    """A schedule in little RAM, for each place where parameters may live."""
    seconds = effort.time_limit_seconds / places
    part = effort_fields(msgspec.structs.replace(effort, time_limit_seconds=seconds))
    most = whole.row.peak_bytes
    if most is None:
        raise PoetError(f"the step cannot be run with all kept in RAM: {whole.row.reason}")
    asked = msgspec.structs.replace(ask, method=None, minimize="bytes", effort=part, ram_bytes=most)
    return [
        Task(("least", place), msgspec.structs.replace(asked, place=place))
        for place in range(places)
    ]


def ends_of(whole: Found, least: Sequence[Found]) -> Ends:
    found = min(least, key=lambda each: each.row.peak_bytes or inf)
    assert whole.row.peak_bytes is not None
    assert whole.row.joules is not None
    return Ends(
        floor_bytes=found.row.floor_bytes or whole.row.floor_bytes or 0,
        keep_all_bytes=whole.row.peak_bytes,
        keep_all_joules=whole.row.joules,
        least=found,
    )


def check_points(points: int) -> None:
    if not 2 <= points <= MOST_POINTS:
        raise PoetError(f"a frontier of {points} points; it must have from 2 to {MOST_POINTS}")


def budgets_between(least: int, most: int, points: int) -> Sequence[int]:
    """Closer together where RAM is short: there the curves are steep. Each a multiple of the one
    before where the largest is many times the smallest."""
    if least >= most:
        return [most]
    shares = [at / (points - 1) for at in range(points)]
    if most > _MANY * least:
        return sorted({round(least * (most / least) ** share) for share in shares})
    return sorted({least + round((most - least) * share**1.5) for share in shares})


def point_tasks(ask: Ask, names: Sequence[str], budgets: Sequence[int], ends: Ends) -> list[Task]:
    """Every method at every budget, in the order in which they are asked: by budget and name."""
    tasks = []
    for at, ram_bytes in enumerate(budgets):
        for name in in_turn(names):
            needs: list[tuple[int, str]] = [(at - 1, name)] if at else []
            needs += [(at, each) for each in needs_of(name, names)]
            knows_least = at == 0 and name == PLANNER and ends.least.schedule
            asked = msgspec.structs.replace(
                ask,
                method=name,
                ram_bytes=ram_bytes,
                starts=(ends.least,) if knows_least else (),
                keeps=True,
            )
            tasks.append(Task((at, name), asked, tuple(needs), what=name))
    return tasks
