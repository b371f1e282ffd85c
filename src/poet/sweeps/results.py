"""Results: what became of every cell of a sweep. None is left out.

A cell was `found`, is `infeasible` (proven), `none found` (in the time given), `lost` (its worker
died or was killed for what it took), or `not asked yet` (the sweep was interrupted).
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from poet.planning.compare import place, rows_of, surprises
from poet.planning.frontier import Frontier
from poet.planning.frontier import Point as FrontierPoint
from poet.planning.rows import Ask, Row, lost_row
from poet.sweeps.curves import At, Curve
from poet.sweeps.folder import Kept
from poet.values.schedule import Status

Outcome = Literal["found", "infeasible", "none found", "lost", "not asked yet"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
NOT_YET: Outcome = "not asked yet"


class Cell(NamedTuple):
    """One method at one budget."""

    row: Row
    outcome: Outcome
    version: str = ""
    """POET's, when it was made."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """All methods at one budget."""

    budget: str
    """As the grid has it: a size, a share, or which point of the curve."""
    ram_bytes: int
    cells: tuple[Cell, ...]

    def cell(self, method: str) -> Cell | None:
        return next((each for each in self.cells if each.row.method == method), None)


class CurveResults(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one device. `trouble` says why it has no points."""

    model: str
    device: str
    """As the grid has it; an instance has none."""
    graph: str
    costs: str
    """Where they hold."""
    transfers: str
    methods: tuple[str, ...]
    keep_all_bytes: int
    keep_all_joules: float
    points: tuple[Point, ...]
    trouble: str = ""

    @classmethod
    def of(
        cls, curve: Curve, points: Iterable[tuple[At, Sequence[Cell]]], trouble: str
    ) -> "CurveResults":
        asked = curve.asked
        return cls(
            model=asked.model,
            device=asked.device or "",
            graph=curve.graph,
            costs=curve.device,
            transfers=curve.transfers,
            methods=asked.methods,
            keep_all_bytes=curve.keep_all_bytes,
            keep_all_joules=curve.keep_all_joules,
            points=tuple(
                Point(
                    budget=at.text,
                    ram_bytes=at.ram_bytes,
                    cells=_in_order(asked.methods, cells),
                )
                for at, cells in points
            ),
            trouble=trouble,
        )

    @property
    def place(self) -> str:
        return place(self.graph, self.costs)

    @property
    def troubled(self) -> tuple[Cell, ...]:
        """A cell for each method where there are no budgets to ask at."""
        if not self.trouble:
            return ()
        outcome: Outcome = NOT_YET if self.trouble == NOT_YET else "none found"
        return tuple(
            Cell(Row(method=name, status="unknown", reason=self.trouble), outcome)
            for name in self.methods
        )

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (*(cell for point in self.points for cell in point.cells), *self.troubled)

    def count(self, outcome: Outcome) -> int:
        return sum(cell.outcome == outcome for cell in self.cells)

    def frontier(self) -> Frontier:
        """The same as `poet frontier` gives it."""
        floors = [cell.row.floor_bytes for cell in self.cells if cell.row.floor_bytes is not None]
        return Frontier(
            graph=self.graph,
            device=self.costs,
            transfers=self.transfers,
            methods=self.methods,
            points=tuple(
                FrontierPoint(
                    ram_bytes=point.ram_bytes, rows=tuple(cell.row for cell in point.cells)
                )
                for point in sorted(self.points, key=lambda each: each.ram_bytes)
            ),
            floor_bytes=min(floors, default=0),
            keep_all_bytes=self.keep_all_bytes,
            keep_all_joules=self.keep_all_joules,
            interrupted=any(cell.outcome == NOT_YET for cell in self.cells),
        )


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep."""

    curves: tuple[CurveResults, ...]
    interrupted: bool = False

    @property
    def cells(self) -> list[Cell]:
        return [cell for curve in self.curves for cell in curve.cells]

    @property
    def surprises(self) -> list[str]:
        """Baselines that are ahead of POET, in words."""
        return [
            f"{curve.place}, {point.ram_bytes:,} bytes: {text}"
            for curve in self.curves
            for point in curve.points
            for text in surprises([c.row for c in point.cells if c.outcome != NOT_YET])
        ]

    def count(self, outcome: Outcome) -> int:
        return sum(curve.count(outcome) for curve in self.curves)


def cell_of(asked: Ask, kept: Kept | None) -> Cell:
    """What became of a question."""
    method = asked.method or ""
    if kept is None:
        return Cell(Row(method=method, status="unknown", reason=f"{method}: {NOT_YET}."), NOT_YET)
    if kept.lost:
        return Cell(lost_row(method, kept.lost), "lost", kept.version)
    if kept.found is None:
        status: Status = "infeasible" if kept.proven else "unknown"
        row = Row(method=method, status=status, reason=kept.refused)
    else:
        row = kept.found.row
    if row.joules is not None:
        return Cell(row, "found", kept.version)
    proven = row.status == "infeasible"
    return Cell(row, "infeasible" if proven else "none found", kept.version)


def _in_order(methods: Sequence[str], cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """In the order of the methods; POET's time counts that of those it went on from."""
    by_name = {cell.row.method: cell for cell in cells}
    rows = rows_of(methods, {name: cell.row for name, cell in by_name.items()})
    timed = {row.method: row for row in rows}
    return tuple(by_name[name]._replace(row=timed[name]) for name in methods)
