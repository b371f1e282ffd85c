"""Clocks: the time and the RAM of a replayed schedule, for the referee.

`ListClock` serves `serial` and `free` transfers: each instruction ends before the next begins.
`TimelineClock` serves `overlap`: transfers run beside compute, and RAM is a matter of time. Both
are told what each instruction does by the referee, which knows the rules; a clock knows none. It
answers with when that begins and ends.
"""

import heapq
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from poet.values.device import Run

Instant = tuple[float, int]
"""A second of the step, and the place in line among all that happens at that second."""
Interval = tuple[Instant, Instant]
Fetching = tuple[Instant, Instant, Instant]
"""A page-in: when it is issued, and has its bytes; when it begins; when it ends."""
START: Instant = (0.0, -2)
_FIRST = -1
"""The place of what a finished compute or transfer gives back: before anything else begins."""


class Moment(NamedTuple):
    """RAM in use from `seconds` on, by the doing of `instruction` (None: at the start)."""

    seconds: float
    ram_bytes: int
    instruction: int | None


class ListClock:
    """Time and RAM where each instruction ends before the next begins.

    With `transfers_count` false they take no time, as the released POET code has it.
    """

    def __init__(self, resident: int, transfers_count: bool) -> None:
        self.transfers_count = transfers_count
        self.makespan = 0.0
        self.resident = resident
        self.level = resident
        self.moments = [Moment(0.0, resident, None)]

    def _mark(self, at: int, level: int) -> None:
        self.level = level
        self.moments.append(Moment(self.makespan, level, at))

    def compute(
        self,
        at: int,
        run: Run,
        *,
        inputs: Iterable[int],
        consumed: Iterable[int],
        slots: Iterable[int],
        brings: int,
        transient: int,
        leaves: int,
    ) -> Interval:
        begin = (self.makespan, 2 * at)
        self._mark(at, self.resident + brings + transient)
        peak = self.level
        self.resident += brings - leaves
        self.makespan += run.seconds
        if self.transfers_count:
            self.makespan += sum(stream.seconds for stream in (*run.reads, *run.writes))
        if self.resident != peak:
            self._mark(at, self.resident)
        self.level = peak
        return begin, (self.makespan, 2 * at + 1)

    def page_out(self, at: int, i: int, slot: int, seconds: float) -> Interval:
        return self._transfer(at, seconds)

    def page_in(self, at: int, i: int, slot: int, seconds: float, nbytes: int) -> Fetching:
        self.resident += nbytes
        begin, end = self._transfer(at, seconds)
        return begin, begin, end

    def _transfer(self, at: int, seconds: float) -> Interval:
        begin = (self.makespan, 2 * at)
        self._mark(at, self.resident)
        self.makespan += seconds if self.transfers_count else 0.0
        return begin, (self.makespan, 2 * at + 1)

    def free(self, at: int, i: int, nbytes: int) -> Instant:
        self.resident -= nbytes
        self._mark(at, self.resident)
        return self.makespan, 2 * at

    def finish(self) -> Moment:
        """The moment of the peak: the earliest of the highest."""
        return max(self.moments, key=lambda moment: moment.ram_bytes)


class TimelineClock:
    """Time and RAM where transfers run beside compute.

    Instructions are issued in order, one after the other. What brings bytes, a compute or a
    page-in, waits until there is room for them: tensors that were freed hold their bytes until
    their transfers are done. What never fits is not waited for any further. A page-in has its bytes
    from when it is issued.

    What is issued after a compute starts no earlier than its end. A transfer waits for its channel,
    for an earlier transfer of the same slot, and then runs by itself. A compute waits for the
    page-ins of its inputs, for the page-outs of those it consumes, and, if it streams, for its
    slots and channels, which it holds until it ends.

    Compute keeps the share `compute_speed` of its speed while a transfer runs beside it. Transfers
    are taken to run beside compute throughout, at the share `transfer_speed` of theirs.
    """

    def __init__(
        self,
        resident: int,
        limit: int | None,
        duplex: bool,
        compute_speed: float = 1.0,
        transfer_speed: float = 1.0,
    ) -> None:
        self.limit = limit
        self.compute_speed, self.transfer_speed = compute_speed, transfer_speed
        self.issue_seconds = 0.0  # when the next instruction may be issued
        self.channel_free = {"in": 0.0, "out": 0.0}
        self.duplex = duplex
        self.slot_free: dict[int, float] = {}
        self.page_in_end: dict[int, float] = {}
        self.page_out_end: dict[int, float] = {}
        self.resident = self.level = resident
        self.makespan = 0.0
        self.releases: list[tuple[float, int, int]] = []  # a heap: when, by whose doing, bytes
        self.moments = [Moment(0.0, resident, None)]

    def compute(
        self,
        at: int,
        run: Run,
        *,
        inputs: Iterable[int],
        consumed: Iterable[int],
        slots: Iterable[int],
        brings: int,
        transient: int,
        leaves: int,
    ) -> Interval:
        waits = [self.issue_seconds]
        waits += [self.page_in_end.get(i, 0.0) for i in (*inputs, *consumed)]
        waits += [self.page_out_end.get(i, 0.0) for i in consumed]
        waits += [self.slot_free.get(slot, 0.0) for slot in slots]
        busy = {
            "in": sum(stream.seconds for stream in run.reads),
            "out": sum(stream.seconds for stream in run.writes),
        }
        used = [way for way, streams in (("in", run.reads), ("out", run.writes)) if streams]
        waits += [self.channel_free[way] for way in used]
        start = self._take(at, max(waits), brings + transient)
        streaming = max(busy.values()) if self.duplex else sum(busy.values())
        end = start + max(self._slowed(start, run.seconds), streaming)
        for way in used:
            self._hold_channel(way, end)
        for i in consumed:
            self._forget(i)
        heapq.heappush(self.releases, (end, at, transient + leaves))
        self.issue_seconds = end
        self.makespan = max(self.makespan, end)
        return (start, 2 * at), (end, _FIRST if end > start else 2 * at + 1)

    def _slowed(self, start: float, seconds: float) -> float:
        """How long compute takes from `start` on, beside the transfers that are under way then.

        Those follow one another without a gap: what is issued later waits for this compute.
        """
        busy = max(*self.channel_free.values(), start) - start
        share = self.compute_speed
        return min(seconds / share, seconds + (1 - share) * busy) if busy else seconds

    def page_out(self, at: int, i: int, slot: int, seconds: float) -> Interval:
        start, end = self._transfer("out", slot, seconds)
        self.page_out_end[i] = end
        return (start, 2 * at), (end, 2 * at + 1)

    def page_in(self, at: int, i: int, slot: int, seconds: float, nbytes: int) -> Fetching:
        self.issue_seconds = self._take(at, self.issue_seconds, nbytes)
        start, end = self._transfer("in", slot, seconds)
        self.page_in_end[i] = end
        return (self.issue_seconds, 2 * at), (start, 2 * at), (end, 2 * at + 1)

    def free(self, at: int, i: int, nbytes: int) -> Instant:
        now = self.issue_seconds
        done = max(now, self.page_in_end.get(i, 0.0), self.page_out_end.get(i, 0.0))
        self._forget(i)
        if done > now:
            heapq.heappush(self.releases, (done, at, nbytes))
            return done, _FIRST
        self._release(now)
        self._change(now, -nbytes, at)
        return now, 2 * at

    def finish(self) -> Moment:
        """The moment of the peak: the earliest of the highest."""
        self._release(inf)
        return max(self.moments, key=lambda moment: moment.ram_bytes)

    def _take(self, at: int, since: float, nbytes: int) -> float:
        """Have so many bytes more, from `since` on or as soon as they fit; says when."""
        self._release(since)
        if self.limit is not None:
            while self.resident + nbytes > self.limit and self.releases:
                since = self.releases[0][0]
                self._release(since)
        self._change(since, nbytes, at)
        return since

    def _release(self, until: float) -> None:
        while self.releases and self.releases[0][0] <= until:
            seconds, at, nbytes = heapq.heappop(self.releases)
            self._change(seconds, -nbytes, at)

    def _change(self, seconds: float, nbytes: int, at: int) -> None:
        self.resident += nbytes
        self.level = self.resident
        self.moments.append(Moment(seconds, self.resident, at))

    def _transfer(self, way: str, slot: int, seconds: float) -> tuple[float, float]:
        start = max(self.issue_seconds, self.channel_free[way], self.slot_free.get(slot, 0.0))
        end = start + seconds / self.transfer_speed
        self._hold_channel(way, end)
        self.slot_free[slot] = end
        self.makespan = max(self.makespan, end)
        return start, end

    def _hold_channel(self, way: str, end: float) -> None:
        for each in (way,) if self.duplex else ("in", "out"):
            self.channel_free[each] = end

    def _forget(self, i: int) -> None:
        for times in (self.page_in_end, self.page_out_end):
            times.pop(i, None)
