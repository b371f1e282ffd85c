"""The client: `plan`, `compare` and `frontier` of the library, solved by a service.

What is asked travels as a value: a model of the zoo by its name, everything else as a graph, which
is captured here where it is yours. Weights stay, and so does code. What comes back is a value of
the library, which the referee here has replayed. Ctrl-C is passed on, and gives the best so far.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from poet.devices import find_device
from poet.errors import PoetError
from poet.planning.compare import COMPARED
from poet.planning.frontier import Frontier
from poet.planning.problem import problem_of
from poet.planning.question import terms
from poet.planning.rows import Row
from poet.referee.replay import check
from poet.reports import waiting
from poet.server.answers import (
    Accepted,
    ComparisonAnswer,
    FrontierAnswer,
    Health,
    PlanAnswer,
)
from poet.server.asking import Event, Service
from poet.server.messages import CountFigures, PlanFigures
from poet.server.questions import ComparisonQuestion, FrontierQuestion, PlanQuestion, Question
from poet.values.device import Costs, Device
from poet.values.files import decode_json
from poet.values.graph import Graph, printable
from poet.values.instances import Instance
from poet.values.plan import Plan
from poet.values.profile import Profile
from poet.values.progress import CountProgress, SearchProgress
from poet.values.schedule import OPTIMAL_GAP, Goal, Params, Transfers
from poet.version import __version__

if TYPE_CHECKING:
    from poet.tracer.program import Program

Answer = TypeVar("Answer", PlanAnswer, ComparisonAnswer, FrontierAnswer)
Heard = Callable[[Event], None]
_log = logging.getLogger(__name__)


def connect(address: str, token: str | None = None) -> "Client":
    """The client of the service at an address, such as `"http://127.0.0.1:8000"`."""
    service = Service(address, token)
    told = service.ask("GET", "/api/health", patience_seconds=0.0)
    try:
        health = msgspec.json.decode(told, type=Health)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise PoetError(f"what answers at {address} is no POET service") from None
    if health.needs_token:
        wrong = "is not the one of" if token is not None else "is needed by"
        raise PoetError(f"a token {wrong} {address}: poet.connect({address!r}, token=…)")
    if health.version != __version__:
        _log.warning("%s is POET %s, and this is %s", address, health.version, __version__)
    return Client(service)


class Client:
    """A service. Its methods take what the functions of the same names take; how many threads and
    which solver are the service's own affair."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __repr__(self) -> str:
        return f"poet.connect({self._service.address!r})"

    def plan(
        self,
        problem: "Instance | Graph | Program | str",
        device: str | Device | None = None,
        ram: str | int | None = None,
        deadline: str | float | None = None,
        *,
        costs: Costs | Profile | None = None,
        transfers: Transfers | None = None,
        params: Params = "auto",
        paging: bool = True,
        recompute: bool = True,
        minimize: Goal = "joules",
        method: str | None = None,
        time_limit: float = 60.0,
        gap: float = OPTIMAL_GAP,
        seed: int = 0,
        work_limit: int | None = None,
        progress: Callable[[SearchProgress], None] | None = None,
    ) -> Plan:
        """`poet.plan`, there. Without `progress`, a terminal shows how far it is."""
        question = PlanQuestion(
            **_spoken(problem, device, costs, transfers),
            ram=ram,
            deadline=deadline,
            params=params,
            paging=paging,
            recompute=recompute,
            minimize=minimize,
            method=method,
            time_limit=time_limit,
            gap=gap,
            seed=seed,
            work_limit=work_limit,
        )
        with _planning(progress) as (heard, say):
            found = self._ended("plans", question, PlanAnswer, heard, say).plan
        assert found is not None
        _check(found)
        return found

    def compare(
        self,
        problem: "Instance | Graph | Program | str",
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
        """`poet.compare`, there."""
        question = ComparisonQuestion(
            **_spoken(problem, device, costs, transfers),
            ram=ram,
            deadline=deadline,
            params=params,
            methods=tuple(methods),
            time_limit=time_limit,
        )
        with _counting() as (heard, say):
            found = self._ended("comparisons", question, ComparisonAnswer, heard, say).comparison
        assert found is not None
        return list(found.rows)

    def frontier(
        self,
        problem: "Instance | Graph | Program | str",
        device: str | Device | None = None,
        deadline: str | float | None = None,
        *,
        points: int = 12,
        methods: Iterable[str] = COMPARED,
        costs: Costs | Profile | None = None,
        transfers: Transfers | None = None,
        params: Params = "auto",
        time_limit: float = 5.0,
    ) -> Frontier:
        """Energy against memory, as `poet frontier` has it: plans at so many budgets."""
        question = FrontierQuestion(
            **_spoken(problem, device, costs, transfers),
            deadline=deadline,
            params=params,
            points=points,
            methods=tuple(methods),
            time_limit=time_limit,
        )
        with _counting() as (heard, say):
            found = self._ended("frontiers", question, FrontierAnswer, heard, say).frontier
        assert found is not None
        return found

    def _ended(
        self,
        kind: str,
        question: Question,
        answer: type[Answer],
        heard: Heard,
        say: Callable[[str], None],
    ) -> Answer:
        """The job of a question, when it has ended with a result. Others who ask the same have the
        same job: where one of them cancels it, it is asked again."""
        body = _body(question)
        while True:
            job = self._asked(kind, body, say)
            stopped = False
            try:
                for event in self._service.events(f"{job}/events", say):
                    heard(event)
            except KeyboardInterrupt:
                stopped = True
                self._stop(job, say)
            found: Answer = decode_json(self._service.ask("GET", job, None, say), answer, "the job")
            has_result = any(
                getattr(found, field, None) is not None
                for field in ("plan", "comparison", "frontier")
            )
            if has_result and (found.status == "done" or stopped or found.error is not None):
                if found.error is not None:
                    _log.warning("the service %s", printable(found.error))
                return found
            if stopped:
                raise KeyboardInterrupt
            if found.status != "cancelled" or found.error is not None:
                raise PoetError(printable(found.error or f"the job is {found.status}"))
            say("somebody else has cancelled it; asking again")

    def _asked(self, kind: str, body: bytes, say: Callable[[str], None]) -> str:
        """The path of a job."""

        def ask(**terms: float) -> str:
            told = self._service.ask("POST", f"/api/{kind}", body, say, **terms)
            return f"/api/{kind}/{decode_json(told, Accepted, 'the answer').id}"

        try:
            return ask()
        except KeyboardInterrupt:  # nobody knows whether it was heard
            try:
                self._service.ask("DELETE", ask(patience_seconds=0.0), patience_seconds=0.0)
            except PoetError as error:
                _log.info("not asked: %s", error)
            raise

    def _stop(self, job: str, say: Callable[[str], None]) -> None:
        """Cancel, and wait until it has ended."""
        say("cancelling …")
        self._service.ask("DELETE", job, None, say)
        for _ in self._service.events(f"{job}/events", say):
            pass


class _Spoken(NamedTuple):
    heard: Heard
    say: Callable[[str], None]


@contextmanager
def _planning(progress: Callable[[SearchProgress], None] | None) -> Iterator[_Spoken]:
    """Whoever hears of a search: the caller, or a line of the terminal."""
    if progress is not None or not sys.stderr.isatty():
        told = progress or (lambda now: None)
        yield _Spoken(lambda event: _tell(event, told, lambda text: None), _log.info)
        return
    with waiting.line("asking …") as show:
        yield _Spoken(
            lambda event: _tell(event, lambda now: show(waiting.planning_text(now)), show), show
        )


def _tell(
    event: Event, progress: Callable[[SearchProgress], None], say: Callable[[str], None]
) -> None:
    if event.kind == "progress":
        now = decode_json(event.data, PlanFigures, "the progress")
        progress(
            SearchProgress(
                seconds=now.elapsed_seconds,
                joules=now.joules,
                bound_joules=now.bound_joules or 0.0,
            )
        )
    else:
        _say_other(event, say)


@contextmanager
def _counting() -> Iterator[_Spoken]:
    """The same of many plans."""
    if not sys.stderr.isatty():
        yield _Spoken(lambda event: None, _log.info)
        return
    with waiting.bar() as show:

        def say(text: str) -> None:
            show(text, 0, 0)

        yield _Spoken(lambda event: _count(event, show, say), say)


def _count(event: Event, show: CountProgress, say: Callable[[str], None]) -> None:
    if event.kind == "progress":
        now = decode_json(event.data, CountFigures, "the progress")
        show(printable(now.what), now.done, now.count)
    else:
        _say_other(event, say)


def _say_other(event: Event, say: Callable[[str], None]) -> None:
    if event.kind == "status":
        status = decode_json(event.data, dict[str, str], "the status").get("status")
        say("waiting for its turn …" if status == "queued" else "reading the step …")
    elif event.kind == "log":
        say(printable(decode_json(event.data, str, "the log")))


def _body(question: Question) -> bytes:
    for field in question.__struct_fields__:
        value = getattr(question, field)
        if isinstance(value, float) and not isfinite(value):  # which JSON has no word for
            raise PoetError(f"{field} is {value}; it must be a finite number")
    return msgspec.json.encode(question)


def _spoken(
    problem: "Instance | Graph | Program | str",
    device: str | Device | None,
    costs: Costs | Profile | None,
    transfers: Transfers | None,
) -> dict[str, Any]:
    """What a question says of the step, where it runs, and what it costs."""
    if isinstance(device, str) and (device.endswith(".toml") or os.sep in device):
        device = find_device(device)
    told: dict[str, Any] = {"device": device, "costs": costs, "transfers": transfers}
    if isinstance(problem, str) and not (problem.endswith(".json") or ".py:" in problem):
        return {**told, "model": problem}
    asked = terms(device, costs=costs)
    step = problem_of(problem, asked.runs_on)
    if step.traced is None:
        if step.costs is not None:  # an instance: as the library counts it
            told |= {"costs": costs or step.costs, "transfers": transfers or "free"}
        return {**told, "graph": step.graph}
    traced = step.traced
    apart = traced.rewritten(step.granularity, fuse_updates=False).graph
    return {
        **told,
        "graph": msgspec.structs.replace(
            traced, constants={i: bytes(len(each)) for i, each in traced.constants.items()}
        ),
        "granularity": step.granularity,
        "fuse_updates": step.graph.fingerprint != apart.fingerprint,
    }


def _check(plan: Plan) -> None:
    """Trust nobody."""
    if plan.schedule and not check(plan).claims_match:
        raise PoetError("the plan that came back is not what it says it is: the referee refuses it")
