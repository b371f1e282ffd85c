"""Running: a sweep from its questions to its results.

First the least RAM of each curve, then every method at every budget; whatever is on disk already is
not asked again, and each answer is there before the next is waited for. Who answers, workers of
this machine or of a cluster, is handed in. A cell that is lost costs itself alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from poet.errors import PoetError
from poet.planning.curves import Ends
from poet.planning.rows import Found, Shared
from poet.planning.turns import Outcome, Task
from poet.sweeps.curves import At, Curve, curves_of
from poet.sweeps.folder import Folder, Kept
from poet.sweeps.grid import Questions
from poet.sweeps.results import NOT_YET, CurveResults, Results, cell_of
from poet.values.progress import CountProgress


class Team(Protocol):
    """Whoever answers: an executor of this machine, or a cluster."""

    def run(
        self,
        tasks: Iterable[Task],
        known: Mapping[Any, Any] = {},
        *,
        began: Callable[[Task], None] = ...,
    ) -> Iterator[Outcome]: ...


Teams = Callable[[Shared], AbstractContextManager[Team]]


def sweep(
    questions: Questions,
    folder: Path,
    team: Teams,
    progress: CountProgress = lambda what, done, count: None,
    cache: bool = True,
    retry: bool = False,
) -> Results:
    """The answers to all questions, of which those that the folder has are not asked again.

    With `retry` what was lost is asked again, and what went on without it. Ctrl-C gives what is
    there, or, where that is nothing, is raised.
    """
    with Folder(folder) as kept:
        shared, curves = curves_of(questions, cache, progress)
        running = _Running(kept, questions, progress, retry)
        try:
            with team(shared) as workers:
                return running.results(curves, workers)
        except KeyboardInterrupt:
            if not running.known:
                raise
        return running.told(interrupted=True)


class _Running:
    """A sweep on its way."""

    def __init__(
        self, folder: Folder, questions: Questions, progress: CountProgress, retry: bool
    ) -> None:
        self.folder, self.progress, self.retry = folder, progress, retry
        self.total, self.done = questions.cells, 0
        self.known: dict[str, Kept] = {}
        """What became of each question, without its schedule."""
        self.again: set[str] = set()
        self.curves: list[tuple[Curve, list[At], list[list[Task]], str]] = []

    def results(self, curves: list[Curve], team: Team) -> Results:
        least: dict[int, list[Task]] = {}
        trouble: dict[int, str] = {}
        for at, curve in enumerate(curves):
            self.progress(f"preparing {curve.asked.place}", at, len(curves))
            try:
                least[at] = curve.least()
            except PoetError as error:
                least[at], trouble[at] = [], str(error)
        self.total += sum(map(len, least.values()))
        self.curves = [(curve, [], [], NOT_YET) for curve in curves]
        self.answer([task for tasks in least.values() for task in tasks], team)
        self.total -= sum(curve.asked.cells for curve in curves)
        for at, curve in enumerate(curves):
            ends = self._ends(curve, least[at])
            if curve.has_ends and ends is None:
                why = trouble.get(at) or self._why(least[at])
                self.curves[at] = (curve, [], [], f"the smallest budget was not found: {why}")
                continue
            budgets = curve.budgets(ends)
            self.curves[at] = (curve, budgets, curve.tasks(budgets, ends), "")
        cells = [task for each in self.curves for tasks in each[2] for task in tasks]
        self.total += len(cells)
        self.answer(cells, team)
        return self.told()

    def answer(self, tasks: list[Task], team: Team) -> None:
        """Ask what is not known yet, and keep what becomes of it."""
        open_tasks = [task for task in tasks if not self._knows(task)]
        self.done += len(tasks) - len(open_tasks)
        asked = {task.key: task for task in open_tasks}
        needed = {key for task in open_tasks for key in task.needs} - asked.keys()
        answers = {key: found for key in needed if (found := self._answer(key)) is not None}
        ready = [
            task._replace(needs=tuple(k for k in task.needs if k in asked or k in answers))
            for task in open_tasks
        ]

        def began(task: Task) -> None:
            self.progress(task.what, self.done, self.total)

        for outcome in team.run(ready, answers, began=began):
            kept = Kept.of(outcome, asked[outcome.key].what)
            self.folder.keep(outcome.key, kept)
            self._note(outcome.key, kept)
            self.done += 1
        self.progress("done", self.done, self.total)

    def _knows(self, task: Task) -> bool:
        kept = self.folder.find(task.key)
        if kept is None:
            return False
        if self.retry and (kept.lost or self.again.intersection(task.needs)):
            self.again.add(task.key)
            return False
        self._note(task.key, kept)
        return True

    def _note(self, key: str, kept: Kept) -> None:
        self.known[key] = kept.without_schedule()

    def _answer(self, key: str) -> Found | None:
        kept = self.folder.find(key)
        return None if kept is None else kept.found

    def _ends(self, curve: Curve, least: list[Task]) -> Ends | None:
        found = [self._answer(task.key) for task in least]
        return curve.ends([each for each in found if each is not None])

    def _why(self, least: list[Task]) -> str:
        kept = [self.known[task.key] for task in least if task.key in self.known]
        return next((each.lost or each.refused for each in kept), "it was not asked for")

    def told(self, interrupted: bool = False) -> Results:
        """What is known by now."""
        curves = []
        for curve, budgets, tasks, trouble in self.curves:
            points = [
                (budget, [cell_of(task.asked, self.known.get(task.key)) for task in row])
                for budget, row in zip(budgets, tasks, strict=True)
            ]
            curves.append(CurveResults.of(curve, points, trouble))
        return Results(curves=tuple(curves), interrupted=interrupted)
