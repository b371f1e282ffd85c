"""Ledger: what a tape tells the machine about bytes.

A tape that counts tells of each op and tensor, so that the machine looks at real storages. Once a
whole step has shown that these are as planned, and where nothing but the tape moves tensors, all
that is counted between its stops follows from the plan: one line then tells of a whole stretch.
"""

from collections.abc import Iterable

from poet.runtime.step.source import Source, written
from poet.values.graph import Graph


class Ledger:
    """Adds to the lines of a tape. `looked_up` are tensors whose bytes no plan knows."""

    def __init__(
        self, graph: Graph, lines: list[Source], looked_up: Iterable[int], counts: bool
    ) -> None:
        self._graph, self._lines, self._counts = graph, lines, counts
        self._looked_up = set(looked_up)
        self._stretch: _Stretch | None = None

    def room(self, k: int, nbytes: int) -> None:
        """Op k is about to take so many bytes."""
        if self._counts:
            self._line("machine.room({}, {})", k, nbytes)
        else:
            self._now().reach(k, nbytes)

    def made(self, i: int) -> None:
        """A tensor is there."""
        if self._is_looked_up(i):
            self.end()
            self._line("machine.made({}, t{})", i, i)
        else:
            self._now().live_bytes += self._graph.tensors[i].nbytes

    def seat(self, new: int, old: int) -> None:
        """A tensor has taken over the bytes of another."""
        self._line("del t{}", old)
        if self._is_looked_up(old):
            self._looked_up.add(new)
            self._line("machine.seat({}, {})", new, old)

    def free(self, i: int) -> None:
        """A tensor goes."""
        if self._is_looked_up(i):
            self.end()
            self._line("machine.free({}, t{})", i, i)
        else:
            self._now().live_bytes -= self._graph.tensors[i].nbytes
        self._line("del t{}", i)

    def end(self) -> None:
        """The stretch ends here: the machine may look at its count, or others change it."""
        if self._stretch is not None:
            self._lines.insert(self._stretch.start, self._stretch.line())
            self._stretch = None

    def _now(self) -> "_Stretch":
        if self._stretch is None:
            self._stretch = _Stretch(len(self._lines))
        return self._stretch

    def _is_looked_up(self, i: int) -> bool:
        return self._counts or i in self._looked_up

    def _line(self, template: str, *parts: int | str) -> None:
        self._lines.append(written(template, *parts))


class _Stretch:
    """What is known of the bytes of some lines, from `start` on, beside those before them."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.live_bytes = 0
        self._most_bytes = self._most_op = 0

    def reach(self, k: int, nbytes: int) -> None:
        if self.live_bytes + nbytes > self._most_bytes:
            self._most_bytes, self._most_op = self.live_bytes + nbytes, k

    def line(self) -> Source:
        made, freed = max(0, self.live_bytes), max(0, -self.live_bytes)
        parts = (self._most_op, self._most_bytes, made, freed)
        return written("machine.stretch({}, {}, {}, {})", *parts)
