"""Schedule: the machine language of a training step. Budget: what is asked. Plan: both, with
claims.

Four instructions are the whole language. `Compute` runs an op; `PageOut` copies a tensor to the
store and `PageIn` copies it back; only `Free`, and an op that consumes its input, remove one from
RAM. Everything that makes a schedule makes this, and everything that uses one reads only this.

A `Plan` is self-contained: its file can be replayed with no other. What it says of itself (joules,
peak, bound) are claims; the referee decides.
"""

from collections.abc import Callable
from importlib import import_module
from math import inf
from typing import Any, Literal, get_args

import msgspec

from poet.values.device import PLAIN, Costs
from poet.values.graph import MAX_BYTES, Graph, check_range, printable
from poet.values.quantities import amount_text, bytes_text

Transfers = Literal["serial", "overlap", "free"]
Start = Literal["ram", "store", "both"]
End = Literal["ram", "store", "both", "either"]
Status = Literal["optimal", "feasible", "infeasible", "unknown"]
BoundSource = Literal["certified", "solver"]
Goal = Literal["joules", "seconds", "bytes"]
Params = Literal["resident", "paged", "streamed"]

OPTIMAL_GAP = 1e-4
LASTING = ("parameter", "buffer", "optimizer_state")
"""The roles of what is there from one step to the next."""


class Compute(
    msgspec.Struct,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="do",
    tag="compute",
):
    """Run an op, in one of its variants."""

    op: int
    variant: str = PLAIN


class PageOut(
    msgspec.Struct,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    tag_field="do",
    tag="page_out",
):
    """Copy a tensor from RAM to the store."""

    tensor: int


class PageIn(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="do", tag="page_in"
):
    """Copy a tensor from the store to RAM."""

    tensor: int


class Free(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="do", tag="free"
):
    """Remove a tensor from RAM. A copy in the store stays."""

    tensor: int


Instruction = Compute | PageOut | PageIn | Free
Schedule = tuple[Instruction, ...]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of a schedule. None means no limit.

    `start` says where each tensor without a producer is when the step starts; `end` where a tensor
    must be when it ends (`either`: at least one of the two). A tensor not in `end` is not wanted.
    """

    ram_bytes: int | None = None
    store_bytes: int | None = None
    deadline_seconds: float | None = None
    transfers: Transfers = "serial"
    start: dict[int, Start] = {}
    end: dict[int, End] = {}
    recompute: bool = True
    paging: bool = True

    def __post_init__(self) -> None:
        for field in ("ram_bytes", "store_bytes"):
            nbytes = getattr(self, field)
            if nbytes is not None:
                check_range(field, nbytes, MAX_BYTES)
        if self.deadline_seconds is not None:
            check_range("deadline_seconds", self.deadline_seconds)
        for field, kind, values in (
            ("transfers", Transfers, [self.transfers]),
            ("start", Start, self.start.values()),
            ("end", End, self.end.values()),
        ):
            for value in values:
                if value not in get_args(kind):
                    raise ValueError(f"{field} is {value!r}; it must be one of {get_args(kind)}")

    def check_belongs(self, graph: Graph) -> None:
        """Refuse a budget that does not say where this graph's tensors start, or names others."""
        for i in self.end:
            if not 0 <= i < len(graph.tensors):
                raise ValueError(
                    f"end names tensor {i}; the graph has tensors 0 to {len(graph.tensors) - 1}"
                )
        wrong = self.start.keys() - set(graph.given)
        if wrong:
            raise ValueError(f"start names tensor {min(wrong)}, which does not exist at the start")
        missing = set(graph.given) - self.start.keys()
        if missing:
            raise ValueError(f"start does not say where {graph.tensor_text(min(missing))} is")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a schedule maker has come."""

    seconds: float
    joules: float | None
    bound_joules: float


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how hard a schedule maker may try.

    With a `work_limit` work is counted instead of timed, and the answer repeats for a seed.
    """

    time_limit_seconds: float = 60.0
    relative_gap: float = OPTIMAL_GAP
    threads: int = 1
    seed: int = 0
    work_limit: int | None = None
    solver: str = "highs"
    solver_log: str | None = None
    """A folder for the solver's own logs, one file a solve."""
    progress: Callable[[Progress], None] | None = None


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """What every schedule maker returns. No schedule is a status with a reason, never None.

    `feasible` is the maker's word until the referee has replayed the schedule; `infeasible` means
    proven; `unknown` that this maker found none, for the reason given.
    """

    status: Status
    schedule: Schedule = ()
    reason: str = ""
    bound_joules: float | None = None
    bound_source: BoundSource | None = None
    first_seconds: float | None = None
    prices: "Prices | None" = None


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a little more would save, by the dual values of the relaxation behind the bound."""

    joules_per_byte: float
    joules_per_second: float


Maker = Callable[[Graph, Costs, Budget, Effort], Solution]
"""The signature that all ways to get a schedule share."""


class Plan(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    dict=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="poet-plan/1",
):
    """A schedule with all that is needed to replay it, and what is claimed of it.

    `minimize` is what was asked for, and `gap` how far it is from its bound, as a share of it:
    (joules - bound_joules) / joules. `baseline_joules` is the energy of the step with all kept in
    RAM, `floor_bytes` a size below which no schedule exists, `solver` whatever made the schedule.
    """

    status: Status
    minimize: Goal = "joules"
    joules: float | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    bound_joules: float | None = None
    bound_seconds: float | None = None
    bound_bytes: int | None = None
    bound_source: BoundSource | None = None
    gap: float | None = None
    baseline_joules: float | None = None
    floor_bytes: int | None = None
    solve_seconds: float | None = None
    first_seconds: float | None = None
    prices: Prices | None = None
    solver: str = ""
    reason: str = ""
    budget: Budget
    schedule: Schedule = ()
    graph: Graph
    costs: Costs

    def __post_init__(self) -> None:
        for field in _NUMBERS:
            value = getattr(self, field)
            if value is not None and field != "gap":
                check_range(field, value, MAX_BYTES if field.endswith("_bytes") else inf)
        if self.bound is not None and self.bound_source is None:
            raise ValueError(f"bound_{self.minimize} is given without bound_source")
        self.costs.check_belongs(self.graph)
        self.budget.check_belongs(self.graph)
        _check_instructions(self)

    @property
    def bound(self) -> float | None:
        """The bound on what is minimised."""
        bound: float | None = getattr(self, f"bound_{self.minimize}")
        return bound

    @property
    def recomputed(self) -> int:
        """Runs of ops beyond the first of each."""
        return sum(isinstance(step, Compute) for step in self.schedule) - len(self.graph.ops)

    @property
    def streamed_runs(self) -> tuple[Compute, ...]:
        """Runs of ops that read or write tensors of the store in tiles."""
        return tuple(
            step for step in self.schedule if isinstance(step, Compute) and step.variant != PLAIN
        )

    @property
    def paged_bytes(self) -> int:
        """What the schedule moves to and from the store, whole or streamed."""
        moved = 0
        for step in self.schedule:
            if isinstance(step, Compute):
                moved += self.costs.ops[step.op][step.variant].stream_bytes
            elif not isinstance(step, Free):
                moved += self.graph.tensors[step.tensor].nbytes
        return moved

    def plot(self) -> Any:
        """RAM over the step and where every tensor is, as a plotly figure for notebooks."""
        # Values know nothing of the rooms above them, and plotly is an extra.
        return import_module("poet.reports.page.charts").plot(self)

    def __str__(self) -> str:
        """A table for people."""
        rows = summary(self)
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


_NUMBERS = (
    "joules", "seconds", "peak_bytes", "bound_joules", "bound_seconds", "bound_bytes", "gap",
    "baseline_joules", "floor_bytes", "solve_seconds", "first_seconds",
)  # fmt: skip


def draft(graph: Graph, costs: Costs, budget: Budget, schedule: Schedule) -> Plan:
    """A plan that claims nothing: what the referee needs to replay a schedule."""
    return Plan(status="unknown", budget=budget, schedule=schedule, graph=graph, costs=costs)


def summary(plan: Plan) -> list[tuple[str, str]]:
    """The plan for people: labels and texts, in reading order."""
    budget, rows = plan.budget, [("graph", printable(plan.graph.name)), ("status", plan.status)]
    if plan.reason:
        rows.append(("reason", plan.reason))
    if plan.joules is not None:
        text = amount_text(plan.joules, "J")
        if plan.baseline_joules:
            text += f" ({plan.joules / plan.baseline_joules:.2%} of keep-all)"
        rows.append(("energy", text))
    if plan.bound is not None and plan.gap is not None:
        least = bytes_text(int(plan.bound))
        if plan.minimize != "bytes":
            least = amount_text(plan.bound, plan.minimize[0].upper().replace("S", "s"))
        text = f"{least} ({plan.bound_source}), gap {plan.gap:.2%}"
        rows.append(("least possible", text))
    if plan.seconds is not None:
        text = f"{amount_text(plan.seconds, 's')} ({budget.transfers} transfers"
        if budget.deadline_seconds is not None:
            text += f", deadline {amount_text(budget.deadline_seconds, 's')}"
        rows.append(("time", text + ")"))
    if plan.peak_bytes is not None:
        rows.append(("RAM peak", bytes_text(plan.peak_bytes)))
    asked = "no limit" if budget.ram_bytes is None else bytes_text(budget.ram_bytes)
    rows.append(("RAM budget", asked))
    if plan.floor_bytes is not None:
        rows.append(("RAM floor", bytes_text(plan.floor_bytes)))
    if plan.schedule:
        rows.append(("schedule", _schedule_text(plan)))
    if plan.solver:
        took = "" if plan.solve_seconds is None else f", {plan.solve_seconds:.2f} s"
        rows.append(("made by", plan.solver + took))
    return rows


def _schedule_text(plan: Plan) -> str:
    count = dict.fromkeys((Compute, PageOut, PageIn, Free), 0)
    for instruction in plan.schedule:
        count[type(instruction)] += 1
    return (
        f"{len(plan.schedule):,} instructions: {len(plan.graph.ops):,} ops, "
        f"{plan.recomputed:,} recomputed, "
        f"{count[PageOut]:,} paged out, {count[PageIn]:,} paged in"
    )


def places(
    graph: Graph, params: Params = "resident", keep_inputs: bool = False
) -> tuple[dict[int, Start], dict[int, End]]:
    """Where tensors start and must end, by role: the usual `start` and `end` of a Budget.

    Parameters, buffers and optimizer state start in RAM (`resident`) or in the store (`paged`,
    `streamed`), and they, or what they become, end there. Inputs start in RAM and are not wanted
    after, unless `keep_inputs` says that somebody holds them there. Outputs end in RAM.
    """
    home: Literal["ram", "store"] = "ram" if params == "resident" else "store"
    heir = {t.becomes: i for i, t in enumerate(graph.tensors) if t.becomes is not None}
    start: dict[int, Start] = {}
    end: dict[int, End] = {}
    for i in graph.given:
        lasting = graph.tensors[i].role in LASTING
        start[i] = home if lasting else "ram"
        if lasting:
            end[heir.get(i, i)] = home
        elif keep_inputs and graph.tensors[i].role == "input":
            end[i] = "ram"
    for i, tensor in enumerate(graph.tensors):
        if tensor.role == "output":
            end.setdefault(i, "ram")
    return start, end


def _check_instructions(plan: Plan) -> None:
    ops, tensors = len(plan.graph.ops), len(plan.graph.tensors)
    variants = plan.costs.ops
    for at, instruction in enumerate(plan.schedule):
        if isinstance(instruction, Compute):
            if not 0 <= instruction.op < ops:
                raise ValueError(
                    f"schedule[{at}] runs op {instruction.op}; the graph has ops 0 to {ops - 1}"
                )
            if instruction.variant not in variants[instruction.op]:
                raise ValueError(
                    f"schedule[{at}] runs op {instruction.op} as {instruction.variant!r}; its "
                    f"variants are {', '.join(sorted(variants[instruction.op]))}"
                )
        elif not 0 <= instruction.tensor < tensors:
            raise ValueError(
                f"schedule[{at}] names tensor {instruction.tensor}; the graph has tensors "
                f"0 to {tensors - 1}"
            )
