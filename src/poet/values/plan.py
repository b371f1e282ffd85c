"""Plan: a schedule with all that is needed to replay it, and what is claimed of it.

A plan is self-contained: its file can be replayed with no other. What it says of itself (joules,
peak, bound) are claims; the referee decides.
"""

from math import inf

import msgspec

from poet.values.device import PLAIN, Costs
from poet.values.graph import MAX_BYTES, Graph, HasGraph, check_range, graph_of, printable
from poet.values.quantities import amount_text, bytes_text, goal_text, limit_text
from poet.values.schedule import (
    BoundSource,
    Budget,
    Compute,
    Free,
    Goal,
    PageIn,
    PageOut,
    Prices,
    Schedule,
    Status,
)


class Arena(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in RAM a plan for C has its tensors: an address for each block of `firmware.place`, in
    its order. Whoever uses them checks that no two blocks overlap."""

    nbytes: int
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        check_range("arena", self.nbytes, MAX_BYTES)


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
    (joules - bound_joules) / joules. The bound holds for every schedule in this order of the ops,
    `bound_any_order_joules` for every order, certified as well. `baseline_joules` is the energy of
    the step with all kept in RAM, `floor_bytes` a size below which no schedule exists, `solver`
    whatever made the schedule.
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
    bound_any_order_joules: float | None = None
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
    arena: Arena | None = None
    """None where nobody has looked for addresses yet."""

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

    @property
    def written(self) -> dict[int, int]:
        """The bytes that a step writes to the store, by tensor, in the order of first writes."""
        found: dict[int, int] = {}
        for step in self.schedule:
            if isinstance(step, Compute):
                for stream in self.costs.ops[step.op][step.variant].writes:
                    found[stream.tensor] = found.get(stream.tensor, 0) + stream.nbytes
            elif isinstance(step, PageOut):
                nbytes = self.graph.tensors[step.tensor].nbytes
                found[step.tensor] = found.get(step.tensor, 0) + nbytes
        return found

    @property
    def written_by_name(self) -> dict[str, int]:
        """The same by the tensors' names; those of one name together."""
        found: dict[str, int] = {}
        for i, nbytes in self.written.items():
            name = self.graph.tensors[i].name
            found[name] = found.get(name, 0) + nbytes
        return found

    def __str__(self) -> str:
        """A table for people."""
        rows = summary(self)
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


_NUMBERS = (
    "joules", "seconds", "peak_bytes", "bound_joules", "bound_seconds", "bound_bytes",
    "bound_any_order_joules", "gap", "baseline_joules", "floor_bytes", "solve_seconds",
    "first_seconds",
)  # fmt: skip


def draft(graph: Graph | HasGraph, costs: Costs, budget: Budget, schedule: Schedule) -> Plan:
    """A plan that claims nothing: what the referee needs to replay a schedule."""
    found = graph_of(graph)
    return Plan(status="unknown", budget=budget, schedule=schedule, graph=found, costs=costs)


def in_turns(plan: Plan) -> Plan:
    """The same schedule with transfers that computing waits for, and no deadline."""
    budget = msgspec.structs.replace(plan.budget, transfers="serial", deadline_seconds=None)
    return draft(plan.graph, plan.costs, budget, plan.schedule)


class PlanInterrupted(KeyboardInterrupt):
    """Ctrl-C while planning; `plan` is the best until then."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


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
        least = goal_text(plan.minimize, plan.bound)
        text = f"{least} in this op order ({plan.bound_source}), gap {plan.gap:.2%}"
        if plan.minimize == "bytes" and plan.status != "optimal":
            text = f"at least {least} is needed in this op order ({plan.bound_source})"
            text += "; the peak is the smallest found"
        rows.append(("least possible", text))
    if plan.bound_any_order_joules is not None:
        text = f"{amount_text(plan.bound_any_order_joules, 'J')} (certified)"
        rows.append(("in any order", text))
    if plan.seconds is not None:
        text = f"{amount_text(plan.seconds, 's')} ({budget.transfers} transfers"
        if budget.deadline_seconds is not None:
            text += f", deadline {amount_text(budget.deadline_seconds, 's')}"
        rows.append(("time", text + ")"))
    if plan.peak_bytes is not None:
        rows.append(("RAM peak", bytes_text(plan.peak_bytes)))
    if plan.arena is not None:
        rows.append(("arena", bytes_text(plan.arena.nbytes)))
    rows.append(("RAM budget", limit_text(budget.ram_bytes)))
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
