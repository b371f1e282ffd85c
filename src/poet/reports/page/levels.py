"""Levels: RAM by kind along one of the two rulers, for whoever draws it as a stack."""

from typing import Literal, NamedTuple

import msgspec

from poet.reports.page.history import StepHistory
from poet.reports.page.palette import KINDS, MemoryKind

Ruler = Literal["slots", "seconds"]


class Levels(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of each kind from each place on, until the next. Kinds with none are left out."""

    places: tuple[float, ...]
    instructions: tuple[int | None, ...]
    kinds_bytes: dict[MemoryKind, tuple[int, ...]]

    @property
    def total_bytes(self) -> list[int]:
        return [sum(levels) for levels in zip(*self.kinds_bytes.values(), strict=True)]

    def stacked_bytes(self) -> dict[MemoryKind, list[int]]:
        """The upper edge of each kind, bottom first."""
        below = [0] * len(self.places)
        edges = {}
        for kind, levels in self.kinds_bytes.items():
            below = [a + b for a, b in zip(below, levels, strict=True)]
            edges[kind] = below
        return edges


def levels(history: StepHistory, ruler: Ruler) -> Levels:
    """A point after each change and one at the end.

    Of what happens at one place only the highest level and the last are kept: dips that last no
    time would be drawn as scratches.
    """
    changes = history.changes_in_time if ruler == "seconds" else history.changes
    now = dict.fromkeys(KINDS, 0)
    points: list[_Point] = []
    for change in changes:
        for kind, delta in change.deltas_bytes:
            now[kind] += delta
        place = change.seconds if ruler == "seconds" else change.slot
        point = _Point(place, change.instruction, tuple(now.values()))
        if len(points) > 1 and points[-2].place == points[-1].place == place:
            del points[-2 if sum(points[-2].levels) < sum(points[-1].levels) else -1]
        points.append(point)
    end = history.seconds if ruler == "seconds" else len(history.events)
    points.append(_Point(end, None, tuple(now.values())))
    by_kind = zip(KINDS, zip(*(point.levels for point in points), strict=True), strict=True)
    return Levels(
        places=tuple(point.place for point in points),
        instructions=tuple(point.instruction for point in points),
        # A step in which nothing ever takes a byte still has a stack: an empty one.
        kinds_bytes={kind: each for kind, each in by_kind if any(each)}
        or {"activation": (0,) * len(points)},
    )


class _Point(NamedTuple):
    place: float
    instruction: int | None
    levels: tuple[int, ...]
