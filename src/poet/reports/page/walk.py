"""The walk: a plan replayed for the eye. Who is where at each instruction and at each second.

The referee says whether a plan holds and what it costs, but keeps only totals. This walk goes
through the same instructions with the same clocks and writes down what a picture needs: the start
and end of each instruction, every change of RAM split by role, and for each tensor the stretches of
the step in which it is in RAM, in the store, in both, being made or being moved.

There are two rulers. By *slots* instruction n takes the place from n to n + 1, whatever its
duration. By *seconds* it takes the time that the clock gives it; under overlapped transfers things
then end in another order than that of the list.

It judges nothing: a plan must have been replayed by the referee, and the walk stops where that
replay stopped.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from poet.referee.clocks import ListClock, TimelineClock
from poet.referee.replay import check
from poet.referee.verdict import LIMITS, Report
from poet.reports.page.palette import Kind, State
from poet.values.plan import Plan, draft
from poet.values.schedule import Compute, PageIn, PageOut

Action = Literal["compute", "recompute", "page_out", "page_in", "free"]


class Step(NamedTuple):
    """One instruction: what it does to which op or tensor, and when."""

    action: Action
    target: int
    start_seconds: float
    end_seconds: float


class Change(NamedTuple):
    """RAM changes by these bytes, kind by kind, from a slot and a second on."""

    slot: int
    seconds: float
    order: int
    """Among the changes at the same second."""
    instruction: int | None
    deltas_bytes: tuple[tuple[Kind, int], ...]


class Span(NamedTuple):
    """A tensor is in one state from `start` to `end`, in slots or in seconds."""

    state: State
    start: float
    end: float


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """All that happens in a step. Spans are listed by tensor id."""

    steps: tuple[Step, ...]
    changes: tuple[Change, ...]
    """In the order of the list."""
    slot_spans: tuple[tuple[Span, ...], ...]
    second_spans: tuple[tuple[Span, ...], ...]
    seconds: float

    @property
    def changes_in_time(self) -> list[Change]:
        return sorted(self.changes, key=lambda change: (change.seconds, change.order))


def walk(plan: Plan, report: Report) -> Walk:
    """Go through a plan that the referee has replayed, as far as that replay went."""
    last = _length(plan, report)
    walker = _Walker(plan)
    for at, instruction in enumerate(plan.schedule[:last]):
        if isinstance(instruction, Compute):
            walker.compute(at, instruction)
        elif isinstance(instruction, PageOut):
            walker.page_out(at, instruction.tensor)
        elif isinstance(instruction, PageIn):
            walker.page_in(at, instruction.tensor)
        else:
            walker.free(at, instruction.tensor)
    seconds = walker.clock.makespan
    return Walk(
        steps=tuple(walker.steps),
        changes=tuple(walker.changes),
        slot_spans=tuple(tuple(_spans(marks, last)) for marks in walker.slot_marks),
        second_spans=tuple(tuple(_spans(marks, seconds)) for marks in walker.second_marks),
        seconds=seconds,
    )


def _length(plan: Plan, report: Report) -> int:
    """How many instructions the referee's replay could do."""
    broken = report.violation
    if broken is not None and broken.rule in LIMITS:
        # A limit does not end a replay, but what did may come after it: ask without limits.
        roomy = msgspec.structs.replace(
            plan.budget, ram_bytes=None, store_bytes=None, deadline_seconds=None
        )
        broken = check(draft(plan.graph, plan.costs, roomy, plan.schedule)).violation
    if broken is None or broken.instruction is None:
        return len(plan.schedule)
    return broken.instruction


Marks = list[tuple[float, State | None]]

_PLACES: dict[tuple[bool, bool], State | None] = {
    (True, True): "both",
    (True, False): "ram",
    (False, True): "store",
    (False, False): None,
}
"""By whether a tensor is in RAM and whether it is in the store."""


def _spans(marks: Marks, end: float) -> Iterator[Span]:
    """The stretches between marks; equal neighbours are one, empty ones are left out."""
    open_state: State | None = None
    open_start = 0.0
    for n, (start, state) in enumerate(marks):
        until = marks[n + 1][0] if n + 1 < len(marks) else end
        if until <= start or state == open_state:
            continue
        if open_state is not None:
            yield Span(open_state, open_start, start)
        open_state, open_start = state, start
    if open_state is not None and open_start < end:
        yield Span(open_state, open_start, end)


class _Walker:
    """The state of the step, in the words of the referee's rules."""

    def __init__(self, plan: Plan) -> None:
        self.graph, self.costs, budget = plan.graph, plan.costs, plan.budget
        tensors = self.graph.tensors
        self.nbytes = [tensor.nbytes for tensor in tensors]
        self.slot = [i if t.becomes is None else t.becomes for i, t in enumerate(tensors)]
        self.in_ram = {i for i, place in budget.start.items() if place != "store"}
        self.slot_holds: dict[int, int | None] = {
            i: i for i, place in budget.start.items() if place != "ram"
        }
        self.has_run: set[int] = set()
        resident = sum(self.nbytes[i] for i in self.in_ram)
        self.clock: ListClock | TimelineClock
        if budget.transfers == "overlap":
            self.clock = TimelineClock(
                resident,
                self.costs.duplex,
                self.costs.compute_speed_in_overlap,
                self.costs.transfer_speed_in_overlap,
            )
        else:
            self.clock = ListClock(resident, transfers_count=budget.transfers == "serial")
        self.steps: list[Step] = []
        self.slot_marks: list[Marks] = [[(0.0, self.steady(i))] for i in range(len(tensors))]
        self.second_marks: list[Marks] = [list(marks) for marks in self.slot_marks]
        self.changes = [Change(0, 0.0, -2, None, self.by_kind(self.in_ram))]

    def steady(self, i: int) -> State | None:
        """Where a tensor is while nothing is done to it."""
        return _PLACES[i in self.in_ram, self.is_stored(i)]

    def is_stored(self, i: int) -> bool:
        return self.slot_holds.get(self.slot[i]) == i

    def by_kind(self, ids: Iterable[int], sign: int = 1) -> tuple[tuple[Kind, int], ...]:
        sums: dict[Kind, int] = {}
        for i in ids:
            kind = self.graph.tensors[i].role
            sums[kind] = sums.get(kind, 0) + sign * self.nbytes[i]
        return tuple(sums.items())

    def mark(self, i: int, state: State | None, slot: float, seconds: float) -> None:
        for marks, at in ((self.slot_marks[i], slot), (self.second_marks[i], seconds)):
            # Bytes that an earlier transfer was to give back later are in use again.
            while marks and marks[-1][0] > at:
                marks.pop()
            marks.append((at, state))

    def change(
        self,
        slot: int,
        seconds: float,
        order: int,
        instruction: int,
        *deltas: tuple[tuple[Kind, int], ...],
    ) -> None:
        sums: dict[Kind, int] = {}
        for kind, delta in (each for group in deltas for each in group):
            sums[kind] = sums.get(kind, 0) + delta
        kept = tuple((kind, delta) for kind, delta in sums.items() if delta)
        self.changes.append(Change(slot, seconds, order, instruction, kept))

    def order(self, back: int) -> int:
        """Where the clock put its `back`-th last change among those of the same second."""
        return self.clock.changes[-back][1] if isinstance(self.clock, TimelineClock) else 0

    def compute(self, at: int, instruction: Compute) -> None:
        k = instruction.op
        op, run = self.graph.ops[k], self.costs.ops[k][instruction.variant]
        streamed_in = {stream.tensor for stream in run.reads}
        streamed_out = {stream.tensor for stream in run.writes}
        missing = [
            i
            for i in op.outputs
            if not (self.is_stored(i) if i in streamed_out else i in self.in_ram)
        ]
        seated = {p.output: p.input for p in op.in_place if p.input not in streamed_in}
        arrivals = [i for i in missing if i not in streamed_out]
        brought = [i for i in arrivals if i not in seated]
        copies = [
            i for i in op.outputs if i not in missing and i not in seated and i not in streamed_out
        ]
        taken_over = [seated[i] for i in arrivals if i in seated]
        leaving = [i for i in op.consumed if i in self.in_ram and i not in taken_over]
        transient = run.workspace_bytes + sum(self.nbytes[i] for i in copies)
        before = self.clock.makespan
        self.clock.compute(
            at,
            run,
            inputs=[i for i in op.inputs if i not in streamed_in],
            consumed=op.consumed,
            slots=[self.slot[s.tensor] for s in (*run.reads, *run.writes)],
            brings=sum(self.nbytes[i] for i in brought),
            transient=transient,
            leaves=sum(self.nbytes[i] for i in leaving),
        )
        start, end = before, self.clock.makespan
        if isinstance(self.clock, TimelineClock):
            start, end = self.clock.changes[-2][0], self.clock.issue_seconds
        again: Action = "recompute" if k in self.has_run else "compute"
        self.has_run.add(k)
        self.steps.append(Step(again, k, start, end))
        self.change(
            at, start, self.order(2), at, self.by_kind(brought), (("workspace", transient),)
        )
        self.change(
            at + 1,
            end,
            self.order(1),
            at,
            (("workspace", -transient),),
            self.by_kind(leaving, -1),
            self.by_kind(taken_over, -1),
            self.by_kind(i for i in arrivals if i in seated),
        )
        making: State = "recomputing" if again == "recompute" else "computing"
        for i in missing:
            self.mark(i, making, at, start)
        for i in streamed_in:
            self.mark(i, "paging", at, start)
        for i in op.consumed:
            self.in_ram.discard(i)
            if self.is_stored(i):
                self.slot_holds[self.slot[i]] = None
        self.in_ram.update(arrivals)
        touched = {*missing, *op.consumed, *streamed_in, *streamed_out}
        for i in streamed_out:
            touched |= self.put_in_store(i)
        for i in touched:
            self.mark(i, self.steady(i), at + 1, end)

    def put_in_store(self, i: int) -> set[int]:
        """Returns the tensors whose place this changes: what was in the slot is overwritten."""
        old = self.slot_holds.get(self.slot[i])
        self.slot_holds[self.slot[i]] = i
        return {i} if old is None else {i, old}

    def page_out(self, at: int, i: int) -> None:
        seconds, before = self.costs.tensors[i].out_seconds, self.clock.makespan
        self.clock.page_out(at, i, self.slot[i], seconds)
        start, end = before, self.clock.makespan
        if isinstance(self.clock, TimelineClock):
            end = self.clock.page_out_end[i]
            start = max(0.0, end - seconds / self.clock.transfer_speed)
        self.steps.append(Step("page_out", i, start, end))
        self.mark(i, "paging", at, start)
        for each in self.put_in_store(i):
            self.mark(each, self.steady(each), at + 1, end)

    def page_in(self, at: int, i: int) -> None:
        before = self.clock.makespan
        self.clock.page_in(at, i, self.slot[i], self.costs.tensors[i].in_seconds, self.nbytes[i])
        start, end = before, self.clock.makespan
        if isinstance(self.clock, TimelineClock):
            start, end = self.clock.page_in_start[i], self.clock.page_in_end[i]
        self.steps.append(Step("page_in", i, start, end))
        self.change(at, start, self.order(1), at, self.by_kind([i]))
        self.mark(i, "paging", at, start)
        self.in_ram.add(i)
        self.mark(i, self.steady(i), at + 1, end)

    def free(self, at: int, i: int) -> None:
        self.clock.free(at, i, self.nbytes[i])
        now = self.clock.makespan
        if isinstance(self.clock, TimelineClock):
            now = self.clock.changes[-1][0]
        self.steps.append(Step("free", i, now, now))
        self.change(at, now, self.order(1), at, self.by_kind([i], -1))
        self.in_ram.remove(i)
        self.mark(i, self.steady(i), at, now)
