"""Curves: a grid's models on their devices, as questions that workers answer.

Each question's key is a digest of all that its answer depends on: graphs, costs and budgets of the
places for parameters, method, RAM and effort, and the questions whose answers it goes on from. What
it is called in the grid is not part of it.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from poet.errors import PoetError
from poet.planning.compare import in_turn, needs_of, place
from poet.planning.curves import (
    Ends,
    budgets_between,
    ends_of,
    keep_all_task,
    least_tasks,
    point_tasks,
)
from poet.planning.defaults import optimizer_for
from poet.planning.problem import Problem
from poet.planning.question import MIN, Question
from poet.planning.residency import in_bytes
from poet.planning.rows import Ask, Found, Shared, Step, effort_fields, found_row
from poet.planning.solve import PLANNER
from poet.planning.turns import Task
from poet.sweeps.grid import Asked, Questions
from poet.values.quantities import parse_bytes, short_bytes_text
from poet.values.schedule import Effort

_KEY_LETTERS = 32


class At(NamedTuple):
    """A budget of a curve: as the grid has it, and in bytes."""

    text: str
    ram_bytes: int


class Curve:
    """One model on one device: what is shared by its questions, and the questions."""

    def __init__(
        self, number: int, asked: Asked, problem: Problem, shared: Shared, effort: Effort
    ) -> None:
        self.asked, self.problem, self.effort = asked, problem, effort
        self.ask = Ask(effort=effort_fields(effort), step=asked_step(asked), terms=str(number))
        self._shared = shared
        places = shared.places(self.ask.step, self.ask.terms)
        self.place_count = len(places)
        self.graph, self.device = places[0].graph.name, places[0].costs.device
        self.transfers = places[0].budget.transfers
        self.keep_all_bytes = places[0].keep_all_bytes
        self.keep_all_joules = places[0].costs.keep_all_joules
        self.digest = _digest([_of_place(each) for each in places])
        self._whole = self._kept_all() if self.has_ends else None

    @property
    def place(self) -> str:
        return place(self.graph, self.device)

    @property
    def has_ends(self) -> bool:
        """Whether the least RAM must be known before its budgets are."""
        return self.asked.points is not None or MIN in self.asked.amounts

    def least(self) -> list[Task]:
        """Schedules in little RAM, which tell where the curve begins."""
        if not self.has_ends:
            return []
        assert self._whole is not None
        tasks = least_tasks(self.ask, self._whole, self.place_count, self.effort)
        what = f"{self.asked.place}: the smallest budget"
        return [Task(self._key(task, ()), task.asked, (), what) for task in tasks]

    def ends(self, least: Sequence[Found]) -> Ends | None:
        return ends_of(self._whole, least) if self._whole is not None and least else None

    def budgets(self, ends: Ends | None) -> list[At]:
        points = self.asked.points
        if points is not None:
            assert ends is not None
            found = budgets_between(ends.least_bytes, ends.keep_all_bytes, points)
            return [At(f"{at + 1} of {len(found)}", each) for at, each in enumerate(found)]
        return [At(str(each), self._bytes(each, ends)) for each in self.asked.amounts]

    def tasks(self, budgets: Sequence[At], ends: Ends | None) -> "list[list[Task]]":
        """Every method at every budget, a list for each, in the order in which they are asked."""
        names = self.asked.methods
        if self.asked.points is not None:
            assert ends is not None
            made = point_tasks(self.ask, names, [each.ram_bytes for each in budgets], ends)
        else:
            made = self._apart(budgets, ends)
        keys: dict[object, str] = {}
        started = tuple(task.key for task in self.least())
        found: list[list[Task]] = [[] for _ in budgets]
        for task in made:
            at, name = task.key
            needs = tuple(keys[each] for each in task.needs)
            keys[task.key] = self._key(task, (*needs, *(started if task.asked.starts else ())))
            size = short_bytes_text(budgets[at].ram_bytes)
            what = f"{self.asked.place}, {size}: {name}"
            found[at].append(Task(keys[task.key], task.asked, needs, what))
        return found

    def _apart(self, budgets: Sequence[At], ends: Ends | None) -> list[Task]:
        """Budgets that were listed: each has its questions to itself."""
        tasks = []
        for at, budget in enumerate(budgets):
            for name in in_turn(self.asked.methods):
                knows_least = budget.text == MIN and name == PLANNER and ends is not None
                asked = msgspec.structs.replace(
                    self.ask,
                    method=name,
                    ram_bytes=budget.ram_bytes,
                    starts=(ends.least,) if knows_least and ends and ends.least.schedule else (),
                )
                needs = tuple((at, each) for each in needs_of(name, self.asked.methods))
                tasks.append(Task((at, name), asked, needs))
        return tasks

    def _bytes(self, amount: str | int, ends: Ends | None) -> int:
        if amount == MIN:
            assert ends is not None
            return ends.least_bytes
        terms = msgspec.structs.replace(self.asked.terms, ram=amount)
        return parse_bytes(in_bytes(self.problem, terms).ram or 0)

    def _kept_all(self) -> Found:
        return found_row(self._shared, keep_all_task(self.ask).asked, [], lambda value: None)

    def _key(self, task: Task, needs: Iterable[str]) -> str:
        asked = msgspec.structs.replace(task.asked, step="", terms="", starts=())
        return _digest([self.digest, asked, *needs])


def curves_of(
    questions: Questions,
    cache: bool = True,
    began: Callable[[str, int, int], None] = lambda what, done, count: None,
) -> tuple[Shared, list[Curve]]:
    """What all questions share, and the curves; models are captured where that is needed."""
    problems: dict[str, Problem] = {}
    shared = Shared(steps={}, terms={})
    curves = []
    for number, asked in enumerate(questions.curves):
        began(f"preparing {asked.place}", number, len(questions.curves))
        step = asked_step(asked)
        if step not in problems:
            problems[step] = asked.problem(cache)
            shared.steps[step] = Step.of(problems[step])
        shared.terms[str(number)] = asked.terms
        try:
            curves.append(Curve(number, asked, problems[step], shared, questions.effort))
        except PoetError as error:
            raise PoetError(f"{asked.place}: {error}") from None
    return shared, curves


def asked_step(asked: Asked) -> str:
    """The name of its step: models that are trained alike have one."""
    return f"{asked.source} {asked.optimizer or optimizer_for(asked.terms.runs_on)}"


def _of_place(question: Question) -> object:
    return [question.graph.fingerprint, question.costs, question.budget, question.either]


def _digest(value: object) -> str:
    return sha256(msgspec.json.encode(value)).hexdigest()[:_KEY_LETTERS]
