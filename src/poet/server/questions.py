"""Questions: what a request may ask, spelled as `poet.plan` spells it, and refused where it is not.

Uploads are data: a graph, an instance, a board and costs are read into values that check
themselves. A model is a name of the zoo with options and a board a name of those that come along:
neither is ever a path, and nothing in a request is run.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from poet.baselines import METHODS
from poet.devices import device_names
from poet.errors import PoetError
from poet.planning.compare import COMPARED, check_names
from poet.planning.curves import MOST_POINTS
from poet.planning.problem import Problem, problem_of, read_problem
from poet.planning.question import MIN, Terms, terms
from poet.planning.solve import PLANNER
from poet.rewrites.granularity import Granularity
from poet.tracer.layout import Layout
from poet.values.device import Costs, Device
from poet.values.files import decode_json
from poet.values.graph import MAX_BYTES, Graph, printable
from poet.values.instances import Instance, InstanceFile
from poet.values.optimizers import parse_optimizer
from poet.values.profile import Profile
from poet.values.quantities import parse_bytes, parse_deadline, parse_share
from poet.values.schedule import OPTIMAL_GAP, Goal, Params, Transfers
from poet.zoo import parse

Word = Annotated[str, Meta(max_length=200)]
Seconds = Annotated[float, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]


class Asked(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What every question has: exactly one of `model`, `graph` and `instance`, and where it runs.

    `model` is a name of the zoo with options, such as `resnet18-cifar?batch=1`. A `graph` may be a
    captured step, which has all of its graphs: of a model and of such a step, `granularity` and
    `fuse_updates` choose one.
    """

    model: Word | None = None
    graph: Graph | Layout | None = None
    instance: InstanceFile | None = None
    optimizer: Word | None = None
    granularity: Granularity = "planning"
    fuse_updates: bool = False
    device: Word | Device | None = None
    costs: Costs | Profile | None = None
    deadline: Word | Seconds | None = None
    transfers: Transfers | None = None
    params: Params = "auto"
    time_limit: Seconds = 60.0
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0

    def __post_init__(self) -> None:
        given = [f for f in ("model", "graph", "instance") if getattr(self, f) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given) or 'nothing'} to plan is given; give one of model, graph, "
                "instance"
            )
        if self.optimizer is not None and self.model is None:
            raise ValueError("an optimizer is for a model; the step of an upload has its own")
        is_one_graph = self.instance is not None or isinstance(self.graph, Graph)
        if is_one_graph and (self.fuse_updates or self.granularity != "planning"):
            raise ValueError(
                "granularity and fuse_updates are for models and captured steps; an upload is the "
                "graph that it is"
            )


class PlanQuestion(Asked, frozen=True, kw_only=True):
    """A plan under a RAM budget and a deadline."""

    ram: Word | Bytes | None = None
    paging: bool = True
    recompute: bool = True
    minimize: Goal = "joules"
    method: Word | None = None
    gap: Annotated[float, Meta(ge=0, le=1)] = OPTIMAL_GAP
    work_limit: Annotated[int, Meta(ge=0, le=10_000)] | None = None


class ComparisonQuestion(Asked, frozen=True, kw_only=True):
    """POET and the baselines under one budget; `time_limit` is for each."""

    ram: Word | Bytes | None = None
    methods: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=len(COMPARED))] = COMPARED
    time_limit: Seconds = 20.0


class FrontierQuestion(Asked, frozen=True, kw_only=True):
    """Energy against memory; `time_limit` is for each plan."""

    points: Annotated[int, Meta(ge=2, le=MOST_POINTS)] = 12
    methods: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=len(COMPARED))] = COMPARED
    time_limit: Seconds = 5.0


Question = PlanQuestion | ComparisonQuestion | FrontierQuestion


def read_question(body: bytes, kind: type[Question], most_seconds: float) -> Question:
    """A question out of a request's body, checked as far as that can be done without solving."""
    question = decode_json(body, kind, "the request")
    if question.time_limit > most_seconds:
        limit = question.time_limit
        raise PoetError(
            f"time_limit is {limit:g}; this service plans for at most {most_seconds:g} s"
        )
    match question:
        case PlanQuestion():
            _check_method(question.method)
            _check_ram(question.ram)
        case ComparisonQuestion():
            check_names(question.methods)
            _check_ram(question.ram)
        case FrontierQuestion():
            check_names(question.methods)
    if question.deadline is not None:
        parse_deadline(question.deadline, 1.0)
    if question.optimizer is not None:
        parse_optimizer(question.optimizer)
    if question.model is not None:
        question = msgspec.structs.replace(question, model=parse(question.model).text)
    if question.device is None and question.costs is None and question.instance is None:
        raise PoetError("there are no costs: give a device, by its name or described, or costs")
    asked_terms(question)
    return _plainly(question)


def _plainly(question: Question) -> Question:
    """The same, so that it is written alike whether what is usual was said or not: what equals a
    default is left out only where it is the very same object."""
    usual = {
        field.name: field.default
        for field in msgspec.structs.fields(question)
        if getattr(question, field.name) == field.default
    }
    return msgspec.structs.replace(question, **usual)


def asked_terms(question: Question) -> Terms:
    """What is asked of a plan, in the words of planning."""
    ram = None if isinstance(question, FrontierQuestion) else question.ram
    free = question if isinstance(question, PlanQuestion) else None
    return terms(
        _board(question.device),
        ram,
        question.deadline,
        costs=question.costs,
        transfers=question.transfers,
        params=question.params,
        paging=free is None or free.paging,
        recompute=free is None or free.recompute,
    )


def asked_problem(question: Asked, board: Device | None) -> Problem:
    """The step to plan. A model is captured, unless it was before."""
    if question.instance is not None:
        file = question.instance
        return problem_of(Instance(graph=file.graph, costs=file.costs))
    if isinstance(question.graph, Graph):
        return problem_of(question.graph)
    granularity, fuse_updates = question.granularity, question.fuse_updates
    if question.graph is not None:
        graph = question.graph.rewritten(granularity, fuse_updates).graph
        return Problem(graph, traced=question.graph, granularity=granularity)
    assert question.model is not None
    return read_problem(
        parse(question.model).text,
        question.optimizer,
        board=board,
        granularity=granularity,
        fuse_updates=fuse_updates,
    )


def _board(device: str | Device | None) -> str | Device | None:
    if isinstance(device, str) and device.lower() not in device_names():
        raise PoetError(
            f"there is no board {printable(device)!r}. There are {', '.join(device_names())}; "
            "another can be described"
        )
    return device


def _check_method(name: str | None) -> None:
    if name is not None and name not in (PLANNER, *METHODS):
        known = ", ".join((PLANNER, *METHODS))
        raise PoetError(f"there is no method {printable(name)!r}. There are {known}.")


def _check_ram(ram: str | int | None) -> None:
    if ram is not None and ram != MIN and (isinstance(ram, int) or parse_share(ram) is None):
        parse_bytes(ram, "RAM budget")
