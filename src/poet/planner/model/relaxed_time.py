"""Time in the relaxation (FORMULATION 6): the deadline, and the makespan of overlapped transfers.

Serial and free transfers have one row: the seconds that count end before the deadline, and idle
watts are part of every price. Where transfers run beside compute, idle watts and deadline are for
the makespan, a column of its own, and these hold for every schedule as the referee times it:

- it is at least all compute, where an op that streams takes as long as its streams at least;
- it is at least all that crosses a channel, and an op that streams holds its channels all along;
- compute works at a share of its speed while a transfer runs, so that the makespan is at least
  compute plus what each second of transfers takes from it;
- stage by stage: each takes as long as its own op; a page-in has crossed before the first op that
  reads it runs, so that what is loaded by stage t has crossed before op t, the last to run in it,
  begins, a page-in being counted in the stage of that reader; and what a stage from t on makes is
  written after stage t, and is read again after that.

A page-in is read later than it was issued at most; to count it there takes less RAM and nothing
else, as long as the store still has it, which rows by stages need (`_is_lasting`).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from poet.planner.model.matrix import Ints
from poet.values.device import Run

if TYPE_CHECKING:
    from poet.planner.model.relaxed import Relaxed, Way

LONGEST = 1e4
"""A makespan of so many times keep-all's is not looked at: bounds are not above its idle joules."""


@dataclass
class Time:
    """The rows of time, by their ids, and what their dual values stand for."""

    deadline_row: int = -1
    ends: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Columns, where transfers overlap: when each stage ends, the last of them the makespan."""
    unit_seconds: float = 1.0
    transfer_speed: float = 1.0
    compute: list[tuple[int, float]] = field(default_factory=list)
    """Rows in which a second of compute counts, and how much; so do those below."""
    page_in: list[tuple[int, float]] = field(default_factory=list)
    page_out: list[tuple[int, float]] = field(default_factory=list)
    most_joules: float = np.inf
    """Bounds above this are not claimed."""

    def crossing(self, seconds: float) -> float:
        """How long a transfer of so many seconds takes beside compute, in the rows' unit."""
        return seconds / self.transfer_speed / self.unit_seconds


def rows_6_time(relaxed: "Relaxed") -> Time:
    """6: what takes time ends before the deadline; of overlapped transfers the makespan."""
    budget, costs = relaxed.budget, relaxed.costs
    if budget.transfers != "overlap":
        return _deadline(relaxed)
    if budget.deadline_seconds is None and not costs.idle_watts:
        return Time()
    return _Makespan(relaxed).rows()


def _deadline(relaxed: "Relaxed") -> Time:
    deadline = relaxed.budget.deadline_seconds
    if deadline is None:
        return Time()
    builder, serial = relaxed.builder, relaxed.budget.transfers == "serial"
    unit = deadline or 1.0
    row = builder.new_rows(1, high=deadline / unit * (1 + 1e-9))

    def add(columns: Ints, seconds: float | np.ndarray) -> None:
        builder.add(np.full(columns.size, row[0]), columns, seconds / unit)

    for v, ways in enumerate(relaxed.ways):
        for way in ways:
            streams = (*way.run.reads, *way.run.writes)
            moving = sum(stream.seconds for stream in streams) if serial else 0.0
            add(way.columns, (way.run.seconds + moving) * relaxed.share[v])
    for i, price in enumerate(relaxed.costs.tensors if serial else ()):
        add(relaxed.load[i], price.in_seconds)
        add(relaxed.store[[i]], price.out_seconds)
    counted = [(int(row[0]), 1.0)]
    moved = counted if serial else []
    return Time(
        deadline_row=int(row[0]),
        unit_seconds=unit,
        compute=counted,
        page_in=moved,
        page_out=moved,
    )


class _Makespan:
    """One column for the makespan and one for the end of each stage, in units of keep-all's."""

    def __init__(self, relaxed: "Relaxed") -> None:
        self.relaxed, self.builder = relaxed, relaxed.builder
        budget, costs = relaxed.budget, relaxed.costs
        self.unit = costs.keep_all_seconds or 1.0
        most = LONGEST
        if budget.deadline_seconds is not None:
            most = budget.deadline_seconds / self.unit * (1 + 1e-9)
        self.most = most
        stages = relaxed.end + 1
        cost = np.zeros(stages)
        cost[-1] = relaxed.scale * costs.idle_watts * self.unit
        self.ends = self.builder.new_columns(stages, cost=cost, high=most)
        """When each stage ends; the last is the makespan."""
        self.time = Time(
            unit_seconds=self.unit,
            transfer_speed=costs.transfer_speed_in_overlap,
            ends=self.ends,
        )
        if budget.deadline_seconds is None:
            self.time.most_joules = costs.idle_watts * LONGEST * self.unit

    def rows(self) -> Time:
        self.compute()
        self.channels()
        self.contention()
        if self._is_lasting():
            self.arrivals()
            self.departures()
        return self.time

    def add_runs(self, row: int, way: str = "") -> None:
        """All runs in a row: those that hold the channel that way (either, if it is one)."""
        for v, ways in enumerate(self.relaxed.ways):
            for each in ways:
                self.add_run(row, v, each, _held(each.run, way, self.relaxed.costs.duplex))

    def add_run(self, row: int, v: int, way: "Way", seconds: float) -> None:
        share = self.relaxed.share[v] * seconds / self.unit
        self.builder.add(np.full(way.columns.size, row), way.columns, share)

    def add_pages(self, row: int, ways: tuple[str, ...], weight: float = 1.0) -> None:
        for i, price in enumerate(self.relaxed.costs.tensors):
            if "in" in ways:
                load = self.relaxed.load[i]
                took = weight * self.time.crossing(price.in_seconds)
                self.builder.add(np.full(load.size, row), load, took)
            if "out" in ways:
                took = weight * self.time.crossing(price.out_seconds)
                self.builder.add(np.array([row]), self.relaxed.store[[i]], took)
        for name, into in (("in", self.time.page_in), ("out", self.time.page_out)):
            if name in ways:
                into.append((row, weight / self.time.transfer_speed))

    def total(self) -> int:
        """A row of what the makespan is not below."""
        row = self.builder.new_rows(1, high=0.0)
        self.builder.add(row, self.ends[-1:], -1.0)
        return int(row[0])

    def compute(self) -> None:
        """Each stage takes as long as its own op, and all of them as long as all runs.

        Where there are windows, runs are counted in other stages than they are in.
        """
        rows = self.builder.new_rows(self.ends.size, high=0.0)
        self.builder.add(rows, self.ends, -1.0)
        self.builder.add(rows[1:], self.ends[:-1], 1.0)
        total = self.total()
        for v, ways in enumerate(self.relaxed.ways):
            for way in ways:
                taken = max(way.run.seconds, _held(way.run, "", self.relaxed.costs.duplex))
                self.builder.add(rows[[v]], way.columns[:1], taken / self.unit)
                self.add_run(total, v, way, taken)
        self.time.compute.append((total, 1.0))

    def channels(self) -> None:
        duplex = self.relaxed.costs.duplex
        for ways in (("in",), ("out",)) if duplex else (("in", "out"),):
            row = self.total()
            self.add_pages(row, ways)
            self.add_runs(row, ways[0] if duplex else "")

    def contention(self) -> None:
        lost = 1 - self.relaxed.costs.compute_speed_in_overlap
        if not lost:
            return
        duplex = self.relaxed.costs.duplex
        for ways in (("in",), ("out",)) if duplex else (("in", "out"),):
            row = self.total()
            self.add_pages(row, ways, lost)
            for v, runs in enumerate(self.relaxed.ways):
                for way in runs:
                    self.add_run(row, v, way, way.run.seconds)
            self.time.compute.append((row, 1.0))

    def _is_lasting(self) -> bool:
        """Whether nothing is written over in the store that a page-in could still be read from."""
        graph = self.relaxed.graph
        for old, heir in graph.heir.items():
            made, consumed = graph.producer[heir], graph.consumer[old]
            if made is not None and (consumed is None or consumed > made):
                return False
        return True

    def arrivals(self) -> None:
        """What is loaded by a stage has crossed before its own op, the last of it, begins."""
        builder, stages = self.builder, self.ends.size
        crossed = builder.new_columns(stages, high=self.most)
        sums = builder.new_rows(stages, low=0.0, high=0.0)
        builder.add(sums, crossed, -1.0)
        builder.add(sums[1:], crossed[:-1], 1.0)
        for i, price in enumerate(self.relaxed.costs.tensors):
            begin = int(self.relaxed.first[i]) + 1
            load = self.relaxed.load[i]
            took = self.time.crossing(price.in_seconds)
            builder.add(sums[begin : begin + load.size], load, took)
        rows = builder.new_rows(stages, high=0.0)
        builder.add(rows, crossed, 1.0)
        builder.add(rows, self.ends, -1.0)
        for v, ways in enumerate(self.relaxed.ways):
            for way in ways:
                builder.add(rows[[v]], way.columns[:1], way.run.seconds / self.unit)

    def departures(self) -> None:
        """What is made in a stage, or later, is written, and read again, after that stage."""
        builder, stages = self.builder, self.ends.size
        crossed = builder.new_columns(stages, high=self.most)
        sums = builder.new_rows(stages, low=0.0, high=0.0)
        builder.add(sums, crossed, -1.0)
        builder.add(sums[:-1], crossed[1:], 1.0)
        for i, price in enumerate(self.relaxed.costs.tensors):
            maker = int(self.relaxed.first[i])
            if maker < 0:
                continue
            took = self.time.crossing(price.out_seconds)
            builder.add(sums[[maker]], self.relaxed.store[[i]], took)
            if not self.relaxed.costs.duplex:
                load = self.relaxed.load[i]
                took = self.time.crossing(price.in_seconds)
                builder.add(np.full(load.size, sums[maker]), load, took)
        rows = builder.new_rows(stages, high=0.0)
        builder.add(rows, crossed, 1.0)
        builder.add(rows, self.ends, 1.0)
        builder.add(rows, np.full(stages, self.ends[-1]), -1.0)


def _held(run: Run, way: str, duplex: bool) -> float:
    """How long a run that streams that way (either, if empty) takes at least; 0 for others."""
    inward = sum(stream.seconds for stream in run.reads)
    outward = sum(stream.seconds for stream in run.writes)
    streaming = max(inward, outward) if duplex else inward + outward
    streams = {"in": bool(run.reads), "out": bool(run.writes)}
    used = streams[way] if way else any(streams.values())
    return max(run.seconds, streaming) if used else 0.0
