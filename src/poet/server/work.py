"""Work: a question answered, in the words of planning; told as it goes.

What is told of a search is its latest incumbent and bound, whenever one of them changes. Ctrl-C,
which is how the service cancels, ends work with the best so far.
"""

import time
from collections.abc import Callable
from math import inf

import msgspec

from poet.errors import PoetError
from poet.planning.advice import advised_bytes
from poet.planning.compare import compared, comparing
from poet.planning.frontier import Frontier, frontier
from poet.planning.plan import plan_for
from poet.planning.rows import Row
from poet.server.messages import CountFigures, Ended, EndStatus, Message, PlanFigures, Progress
from poet.server.questions import (
    ComparisonQuestion,
    FrontierQuestion,
    PlanQuestion,
    Question,
    asked_problem,
    asked_terms,
)
from poet.values.plan import Plan, PlanInterrupted
from poet.values.progress import SearchProgress
from poet.values.schedule import Effort

Tell = Callable[[Message], None]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison: a row for each method that was asked."""

    rows: tuple[Row, ...]
    interrupted: bool = False


def perform(question: Question, threads: int, tell: Tell) -> Ended:
    """The end of a job: its result, or why there is none."""
    try:
        match question:
            case PlanQuestion():
                return _plan(question, threads, tell)
            case ComparisonQuestion():
                return _comparison(question, threads, tell)
            case FrontierQuestion():
                return _frontier(question, threads, tell)
    except KeyboardInterrupt:
        return Ended(status="cancelled")
    except PoetError as error:
        return Ended(status="failed", error=str(error))
    except MemoryError:
        return Ended(status="failed", error="needs more memory than a job may take here")


def _plan(question: PlanQuestion, threads: int, tell: Tell) -> Ended:
    started = time.monotonic()
    asked = asked_terms(question)
    effort = Effort(
        time_limit_seconds=question.time_limit,
        relative_gap=question.gap,
        threads=threads,
        seed=question.seed,
        work_limit=question.work_limit,
        progress=_Searching(question, tell),
    )
    status: EndStatus = "done"
    try:
        problem = asked_problem(question, asked.runs_on)
        plan = plan_for(problem, asked, effort, question.minimize, question.method)
    except PlanInterrupted as stopped:
        status, plan = "cancelled", stopped.plan
    return Ended(status=status, figures=_raw(_figures(plan, started)), result=_raw(plan))


def _figures(plan: Plan, started: float) -> PlanFigures:
    return PlanFigures(
        elapsed_seconds=time.monotonic() - started,
        outcome=plan.status,
        joules=plan.joules,
        bound_joules=plan.bound_joules,
        gap=plan.gap,
        seconds=plan.seconds,
        peak_bytes=plan.peak_bytes,
        enough_bytes=None if plan.schedule else advised_bytes(plan.reason),
    )


def _comparison(question: ComparisonQuestion, threads: int, tell: Tell) -> Ended:
    counting = _Counting(tell)
    asked = asked_terms(question)
    effort = comparing(question.time_limit, threads, question.seed)
    problem = asked_problem(question, asked.runs_on)
    found = compared(problem, asked, effort, question.methods, counting)
    return _counted(Compared(rows=tuple(found.rows), interrupted=found.interrupted), counting)


def _frontier(question: FrontierQuestion, threads: int, tell: Tell) -> Ended:
    counting = _Counting(tell)
    asked = asked_terms(question)
    effort = comparing(question.time_limit, threads, question.seed)
    problem = asked_problem(question, asked.runs_on)
    found = frontier(problem, asked, effort, question.points, question.methods, counting)
    return _counted(found, counting)


class _Searching:
    """Tells of a search what has changed. Where seconds or bytes are made small, the search counts
    them as if they were joules, and only the gap says the same."""

    def __init__(self, question: PlanQuestion, tell: Tell) -> None:
        self._goal, self._tell, self._started = question.minimize, tell, time.monotonic()
        self._last: tuple[float | None, float] | None = None

    def __call__(self, now: SearchProgress) -> None:
        told = now.joules, now.bound_joules
        if told == self._last:
            return
        self._last = told
        gap = None
        if now.joules:
            gap = max(0.0, 1 - now.bound_joules / now.joules)
        in_joules = self._goal == "joules"
        figures = PlanFigures(
            elapsed_seconds=time.monotonic() - self._started,
            joules=now.joules if in_joules else None,
            bound_joules=now.bound_joules if in_joules and now.bound_joules < inf else None,
            gap=gap,
        )
        self._tell(Progress(_raw(figures)))


class _Counting:
    """Tells how many plans are made."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._started = tell, time.monotonic()
        self.last = CountFigures()

    def __call__(self, what: str, done: int, count: int) -> None:
        elapsed = time.monotonic() - self._started
        self.last = CountFigures(elapsed_seconds=elapsed, what=what, done=done, count=count)
        self._tell(Progress(_raw(self.last)))

    def ended(self, whole: bool) -> CountFigures:
        done = self.last.count if whole else self.last.done
        elapsed = time.monotonic() - self._started
        return msgspec.structs.replace(self.last, elapsed_seconds=elapsed, what="", done=done)


def _counted(found: Compared | Frontier, counting: _Counting) -> Ended:
    whole = not found.interrupted
    return Ended(
        status="done" if whole else "cancelled",
        figures=_raw(counting.ended(whole)),
        result=_raw(found),
    )


def _raw(value: msgspec.Struct) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
