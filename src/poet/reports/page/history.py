"""History: a replayed plan for the eye. Who is where at each instruction and at each second.

The referee says whether a plan holds and what it costs, but keeps only totals. This listens while
it replays, and writes down what a picture needs: the start and end of each instruction, every
change of RAM split by role, and for each tensor the stretches of the step in which it is in RAM, in
the store, in both, being made or being moved.

There are two rulers. By *slots* instruction n takes the place from n to n + 1, whatever its
duration. By *seconds* it takes the time that the clock gives it; under overlapped transfers things
then end in another order than that of the list.

It knows no rule: what an instruction does is told by the referee, and nothing that cannot happen.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from poet.referee.clocks import START, Instant
from poet.referee.observer import Computed, Freed, Observer, Paged, Places
from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.reports.page.palette import MemoryKind, TensorState
from poet.values.plan import Plan

Action = Literal["compute", "recompute", "page_out", "page_in", "free"]


class Event(NamedTuple):
    """One instruction: what it does to which op or tensor, and when."""

    action: Action
    target: int
    start_seconds: float
    end_seconds: float


class RamChange(NamedTuple):
    """RAM changes by these bytes, kind by kind, from a slot and a second on."""

    slot: int
    seconds: float
    order: int
    """Among the changes at the same second."""
    instruction: int | None
    deltas_bytes: tuple[tuple[MemoryKind, int], ...]


class Span(NamedTuple):
    """A tensor is in one state from `start` to `end`, in slots or in seconds."""

    state: TensorState
    start: float
    end: float


class StepHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that happens in a step. Spans are listed by tensor id."""

    events: tuple[Event, ...]
    changes: tuple[RamChange, ...]
    """In the order of the list."""
    slot_spans: tuple[tuple[Span, ...], ...]
    second_spans: tuple[tuple[Span, ...], ...]
    seconds: float

    @property
    def changes_in_time(self) -> list[RamChange]:
        return sorted(self.changes, key=lambda change: (change.seconds, change.order))


def record(plan: Plan) -> tuple[Report, StepHistory]:
    """Have the referee replay a plan, as far as it can be done, and write down what happens."""
    recorder = _Recorder(plan)
    report = check(plan, recorder)
    return report, recorder.history(report.seconds)


Marks = list[tuple[float, TensorState | None]]


def _spans(marks: Marks, end: float) -> Iterator[Span]:
    """The stretches between marks; equal neighbours are one, empty ones are left out."""
    open_state: TensorState | None = None
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


class _Recorder(Observer):
    """Listens to a replay."""

    def __init__(self, plan: Plan) -> None:
        self.tensors = plan.graph.tensors
        self.events: list[Event] = []
        self.changes: list[RamChange] = []
        self.slot_marks: list[Marks] = [[(0.0, None)] for _ in self.tensors]
        self.second_marks: list[Marks] = [[(0.0, None)] for _ in self.tensors]

    def history(self, seconds: float) -> StepHistory:
        last = len(self.events)
        return StepHistory(
            events=tuple(self.events),
            changes=tuple(self.changes),
            slot_spans=tuple(tuple(_spans(marks, last)) for marks in self.slot_marks),
            second_spans=tuple(tuple(_spans(marks, seconds)) for marks in self.second_marks),
            seconds=seconds,
        )

    def on_start(self, places: Places) -> None:
        in_ram = [i for i, place in places.items() if place != "store"]
        self.change(0, START, None, self.by_kind(in_ram))
        self.settle(places, 0, 0.0)

    def on_compute(self, at: int, run: Computed) -> None:
        start, end = run.begin[0], run.end[0]
        self.events.append(Event("recompute" if run.recomputed else "compute", run.op, start, end))
        copies = sum(self.tensors[i].nbytes for i in run.second_copies)
        workspace: Counter[MemoryKind] = Counter({"workspace": run.workspace_bytes + copies})
        brought = self.by_kind(run.brought)
        left = self.by_kind([*run.leaving, *(pair.input for pair in run.taken_over)])
        seated = self.by_kind(pair.output for pair in run.taken_over)
        self.change(at, run.begin, at, brought, workspace)
        self.change(at + 1, run.end, at, seated, less=(workspace, left))
        making: TensorState = "recomputing" if run.recomputed else "computing"
        for i in run.made:
            self.mark(i, making, at, start)
        for i in run.streamed_in:
            self.mark(i, "paging", at, start)
        self.settle(run.places, at + 1, end)

    def on_page_out(self, at: int, page: Paged) -> None:
        self.page("page_out", at, page)

    def on_page_in(self, at: int, page: Paged) -> None:
        self.change(at, page.issued, at, self.by_kind([page.tensor]))
        self.page("page_in", at, page)

    def on_free(self, at: int, free: Freed) -> None:
        seconds = free.end[0]
        self.events.append(Event("free", free.tensor, seconds, seconds))
        self.change(at, free.end, at, less=(self.by_kind([free.tensor]),))
        self.mark(free.tensor, free.place, at, seconds)

    def page(self, action: Action, at: int, page: Paged) -> None:
        start, end = page.begin[0], page.end[0]
        self.events.append(Event(action, page.tensor, start, end))
        self.mark(page.tensor, "paging", at, start)
        self.settle(page.places, at + 1, end)

    def settle(self, places: Places, slot: float, seconds: float) -> None:
        """Where tensors are from now on, while nothing is done to them."""
        for i, place in places.items():
            self.mark(i, place, slot, seconds)

    def mark(self, i: int, state: TensorState | None, slot: float, seconds: float) -> None:
        for marks, at in ((self.slot_marks[i], slot), (self.second_marks[i], seconds)):
            # Bytes that an earlier transfer was to give back later are in use again.
            while marks and marks[-1][0] > at:
                marks.pop()
            marks.append((at, state))

    def by_kind(self, ids: Iterable[int]) -> Counter[MemoryKind]:
        sums: Counter[MemoryKind] = Counter()
        for i in ids:
            sums[self.tensors[i].role] += self.tensors[i].nbytes
        return sums

    def change(
        self,
        slot: int,
        when: Instant,
        instruction: int | None,
        *more: Counter[MemoryKind],
        less: tuple[Counter[MemoryKind], ...] = (),
    ) -> None:
        sums: Counter[MemoryKind] = Counter()
        for group in more:
            sums.update(group)
        for group in less:
            sums.subtract(group)
        deltas = tuple((kind, delta) for kind, delta in sums.items() if delta)
        self.changes.append(RamChange(slot, *when, instruction, deltas))
