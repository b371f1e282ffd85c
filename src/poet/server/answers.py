"""Answers: what the service says, and the schema of it."""

from typing import Any, Literal

import msgspec

from poet.planning.frontier import Frontier
from poet.server.jobs import Job, Jobs, Status
from poet.server.messages import CountFigures, PlanFigures
from poet.server.questions import Question
from poet.server.work import Compared
from poet.values.device import Device
from poet.values.plan import Plan


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was refused, for people."""

    error: str


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Where the answer will be, or is already."""

    id: str
    status: Status


class Checked(msgspec.Struct, frozen=True):
    """The request can be asked."""

    valid: Literal[True] = True


class PlanAnswer(PlanFigures, frozen=True, kw_only=True):
    """A job and what it came to so far. `ahead` jobs are begun before it; `plan` is there once it
    has ended with one, also where it was cancelled."""

    id: str
    status: Status
    error: str | None
    ahead: int
    plan: Plan | None


class ComparisonAnswer(CountFigures, frozen=True, kw_only=True):
    """The same of a comparison."""

    id: str
    status: Status
    error: str | None
    ahead: int
    comparison: Compared | None


class FrontierAnswer(CountFigures, frozen=True, kw_only=True):
    """The same of a frontier."""

    id: str
    status: Status
    error: str | None
    ahead: int
    frontier: Frontier | None


class LogLines(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a job's log, and where the next ones begin."""

    lines: tuple[str, ...]
    next: int


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What may follow a model's name."""

    name: str
    default: str | int | float
    allowed: str
    help: str


class Model(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    options: tuple[Choice, ...]


class Models(msgspec.Struct, frozen=True):
    models: tuple[Model, ...]


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """`targets` are those that C can be written for, and this machine."""

    devices: tuple[Device, ...]
    targets: tuple[str, ...]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the service takes jobs, and its limits. `needs_token`: this client gave none."""

    status: Literal["ok", "stopping"]
    version: str
    needs_token: bool
    unfinished: int
    plan_seconds: float
    upload_bytes: int
    methods: tuple[str, ...]


class Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be remembered, in a cookie, for pages that cannot send a header."""

    token: str


def of_job(job: Job, jobs: Jobs, field: str, whole: bool = True) -> bytes:
    """A job as one of the three answers: `field` is what its result is called there."""
    told: dict[str, Any] = {}
    if job.figures is not None:
        told = msgspec.json.decode(job.figures, type=dict[str, Any])
    result = jobs.result(job) if whole and job.has_ended else None
    answer = {
        **msgspec.to_builtins(CountFigures() if field != "plan" else PlanFigures()),
        **told,
        "id": job.id,
        "status": job.status,
        "error": job.error,
        "ahead": jobs.ahead(job) if job.status == "queued" else 0,
        field: None if result is None else msgspec.Raw(result),
    }
    return msgspec.json.encode(answer)


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One of the things that may be asked: its path, its question and its answer.

    `field` is what its result is called in the answer. `results` are what can be had of it: the
    last part of the path, and the media type.
    """

    path: str
    field: str
    question: type[Question]
    answer: type[msgspec.Struct]
    result: type[msgspec.Struct]
    results: dict[str, str]
