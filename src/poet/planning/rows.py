"""Rows: one method's answer to one question, asked of a worker.

Steps and terms are what all questions of a comparison, a curve or a sweep share; a question names
its own among them. It may begin with answers to others: what a schedule needs to be handed on comes
with each.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from math import inf
from typing import Any, Self

import msgspec

from poet.errors import PoetError
from poet.planner.proof.floor import least_joules
from poet.planning.plan import first_answer
from poet.planning.problem import Problem
from poet.planning.question import Question, Terms
from poet.planning.residency import questions
from poet.planning.solve import PLANNER
from poet.planning.workers import Tell
from poet.rewrites.granularity import Granularity
from poet.tracer.layout import Layout
from poet.values.device import Costs
from poet.values.graph import MAX_BYTES, Graph, check_range
from poet.values.plan import Plan, draft
from poet.values.schedule import BoundSource, Effort, Goal, Schedule, Start, Status

_LATELY = 8
"""So many steps on boards are kept as they are asked: each may take tens of megabytes."""


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


def lost_row(method: str, why: str) -> Row:
    """The row of a method whose worker was lost."""
    return Row(method=method, status="unknown", reason=f"{method}: {why}.")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A problem as it travels."""

    graph: Graph | None = None
    """None where it follows from what was captured."""
    costs: Costs | None = None
    traced: Layout | None = None
    granularity: Granularity = "planning"

    @classmethod
    def of(cls, problem: Problem) -> Self:
        traced = problem.traced
        return cls(
            graph=problem.graph if traced is None else None,
            costs=problem.costs,
            traced=traced,
            granularity=problem.granularity,
        )

    def problem(self) -> Problem:
        graph = self.graph
        if graph is None:
            assert self.traced is not None
            graph = self.traced.rewritten(self.granularity, False).graph
        return Problem(graph, costs=self.costs, traced=self.traced, granularity=self.granularity)


class Shared(msgspec.Struct, dict=True):
    """What all questions share, by name."""

    steps: dict[str, Step]
    terms: dict[str, Terms]

    @classmethod
    def of(cls, problem: Problem, terms: Terms) -> Self:
        """One step and its terms, which need no names."""
        return cls(steps={"": Step.of(problem)}, terms={"": terms})

    def places(self, step: str, terms: str) -> list[Question]:
        """The question for each place of parameters; those asked for lately are kept."""
        problems: dict[str, Problem] = self.__dict__.setdefault("problems", {})
        known: dict[tuple[str, str], list[Question]] = self.__dict__.setdefault("known", {})
        if step not in problems:
            problems[step] = self.steps[step].problem()
        if (step, terms) not in known:
            known[step, terms] = list(questions(problems[step], self.terms[terms]))
            if len(known) > _LATELY:
                del known[next(iter(known))]
        return known[step, terms]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One method, one question. `effort` has the fields of an `Effort`."""

    method: str | None = None
    minimize: Goal = "joules"
    step: str = ""
    terms: str = ""
    ram_bytes: int | None = None
    place: int | None = None
    """None: the first place of parameters with an answer."""
    effort: dict[str, Any]
    starts: "tuple[Found, ...]" = ()
    keeps: bool = False
    """Whether the same method's answer before it, which fits, is kept where it is better."""
    tells: bool = False
    """Whether its `SearchProgress` is told."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: its row, and what its schedule needs to be handed on."""

    row: Row
    schedule: Schedule
    graph: str
    start: dict[int, Start]
    costs: Costs | None = None
    """None where they are those of the question."""
    least_joules: float
    """What every schedule of its graph takes."""


def effort_fields(effort: Effort) -> dict[str, Any]:
    """An effort as it travels: `progress` stays with whoever asked."""
    fields = msgspec.structs.asdict(effort)
    del fields["progress"]
    return fields


def found_row(shared: Shared, ask: Ask, before: list[Found], tell: Tell) -> Found:
    """The answer. It may begin with those before it, and with the starts that came along."""
    places = shared.places(ask.step, ask.terms)
    if ask.place is not None:
        places = [places[ask.place]._replace(has_rival=False)]
    places = [place.within(ask.ram_bytes) for place in places]
    effort = Effort(**ask.effort, progress=tell if ask.tells else None)
    beginning = partial(_beginning, [*ask.starts, *before])
    plan = first_answer(places, effort, ask.method, ask.minimize, known=beginning)
    found = _found(plan, ask.method or PLANNER, places)
    same = [each for each in before if ask.keeps and each.row.method == found.row.method]
    return kept(same[0], found) if same else found


def kept(before: Found, found: Found) -> Found:
    """The better of two answers, of which the first is of less RAM, so that its schedule fits.

    It is put beside this budget's bound, or, where that is one for other ways to run ops, beside
    what every schedule takes.
    """
    ours, theirs = found.row, before.row
    if theirs.joules is None or (ours.joules is not None and ours.joules <= theirs.joules):
        return found
    bound = ours.bound_joules
    if before.graph != found.graph and theirs.method == PLANNER:
        bound = before.least_joules
    gap = (theirs.joules - bound) / theirs.joules if bound is not None and theirs.joules else None
    row = msgspec.structs.replace(
        theirs,
        bound_joules=bound,
        bound_source=ours.bound_source,
        gap=gap if bound is not None else theirs.gap,
        solve_seconds=ours.solve_seconds,
    )
    return msgspec.structs.replace(before, row=row)


def _found(plan: Plan, method: str, places: Sequence[Question]) -> Found:
    own = [place for place in places if _is_of(place, plan.graph.fingerprint, plan.budget.start)]
    usual = all(place.costs is plan.costs and place.tiled is None for place in own)
    return Found(
        row=row_of(method, plan),
        schedule=plan.schedule,
        graph=plan.graph.fingerprint,
        start=plan.budget.start,
        costs=None if usual else plan.costs,
        least_joules=least_joules(plan.costs),
    )


def _beginning(known: Sequence[Found], asked: Question) -> tuple[Question, tuple[Schedule, ...]]:
    """A question that knows the ways of the schedules it may begin with, and these."""
    same = [each for each in known if each.schedule and _is_of(asked, each.graph, each.start)]
    try:  # they may come from files
        for each in same:
            if each.costs is not None:
                each.costs.check_belongs(asked.graph)
                asked = asked.knowing(each.costs)
        for each in same:
            draft(asked.graph, asked.costs, asked.budget, each.schedule)
    except ValueError as error:
        raise PoetError(f"an answer to go on from does not fit this question: {error}") from None
    return asked, tuple(each.schedule for each in same)


def _is_of(asked: Question, graph: str, start: dict[int, Start]) -> bool:
    return asked.graph.fingerprint == graph and asked.budget.start == start


def index_of(asked: Question, places: Iterable[Question]) -> int:
    """Which of the places for parameters a question is asked with."""
    graph, start = asked.graph.fingerprint, asked.budget.start
    return next(at for at, place in enumerate(places) if _is_of(place, graph, start))
