"""Peaks: what is in RAM, by kind, when most is, with everything kept for as long as it is used."""

import msgspec

from poet.baselines.keep_all import keep_all
from poet.errors import PoetError
from poet.planning.question import Question
from poet.referee.observer import Computed, Freed, Observer, Places
from poet.referee.replay import check
from poet.values.graph import Graph, Role
from poet.values.plan import draft
from poet.values.schedule import Effort


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What is in RAM at the peak, by kind. Gradients are those of parameters and of activations."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    buffer_bytes: int
    input_bytes: int
    activation_bytes: int
    workspace_bytes: int
    """What the op at the peak takes beside its inputs and outputs."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """A step with everything kept: the most RAM at once, where that is, and of what."""

    peak_bytes: int
    op: str
    parts: Parts
    joules: float
    seconds: float


def peak_of(question: Question) -> Peak:
    """The step with everything kept, in parts at its peak."""
    graph, costs = question.graph, question.costs
    budget = msgspec.structs.replace(question.budget, transfers="serial", store_bytes=None)
    schedule = keep_all(graph, costs, budget, Effort()).schedule
    seen = _AtPeak(graph)
    report = check(draft(graph, costs, budget, schedule), seen)
    if not report.valid:
        assert report.violation is not None
        raise PoetError(f"the step cannot be run with all kept in RAM: {report.violation.message}")
    held = seen.highest
    return Peak(
        peak_bytes=report.peak_bytes,
        op=seen.where,
        parts=Parts(
            parameter_bytes=held.get("parameter", 0),
            gradient_bytes=held.get("gradient", 0),
            optimizer_state_bytes=held.get("optimizer_state", 0),
            buffer_bytes=held.get("buffer", 0),
            input_bytes=held.get("input", 0),
            activation_bytes=held.get("activation", 0) + held.get("output", 0),
            workspace_bytes=report.peak_bytes - sum(held.values()),
        ),
        joules=report.joules,
        seconds=report.seconds,
    )


class _AtPeak(Observer):
    """What is in RAM, by role, when most is."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._there: dict[Role, int] = {}
        self._most = -1
        self.highest: dict[Role, int] = {}
        self.where = "the step's start"

    def on_start(self, places: Places) -> None:
        for i, place in places.items():
            if place in ("ram", "both"):
                self._add(i, 1)
        self._look("the step's start", 0)

    def on_compute(self, at: int, run: Computed) -> None:
        for i in run.brought:
            self._add(i, 1)
        op = self._graph.ops[run.op]
        copies = sum(self._graph.tensors[i].nbytes for i in run.second_copies)
        self._look(f"{op.name} ({op.phase})", run.workspace_bytes + copies)
        for pair in run.taken_over:
            self._add(pair.input, -1)
            self._add(pair.output, 1)
        for i in run.leaving:
            self._add(i, -1)

    def on_free(self, at: int, free: Freed) -> None:
        self._add(free.tensor, -1)

    def _add(self, i: int, sign: int) -> None:
        tensor = self._graph.tensors[i]
        self._there[tensor.role] = self._there.get(tensor.role, 0) + sign * tensor.nbytes

    def _look(self, where: str, beside: int) -> None:
        now = sum(self._there.values()) + beside
        if now > self._most:
            self._most, self.highest, self.where = now, dict(self._there), where
