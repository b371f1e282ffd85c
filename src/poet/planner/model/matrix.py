"""A mixed-integer program as arrays, and the small builder that fills them.

Columns and rows are handed out as arrays of ids; coefficients are collected as triplets and become
a sparse matrix at the end. An id of -1 stands for a variable that does not exist: its coefficients
vanish, so that a block of rows can be written for a whole range of stages at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Milp:
    """min cost·x  subject to  row_low ≤ A x ≤ row_high,  low ≤ x ≤ high,  x[integer] whole."""

    cost: Floats
    low: Floats
    high: Floats
    integer: npt.NDArray[np.bool_]
    matrix: sparse.csr_matrix
    row_low: Floats
    row_high: Floats
    row_ids: Ints
    """The builder's ids of the rows that are left; rows that say nothing are not."""

    def restricted(self, low: Floats, high: Floats) -> "tuple[Milp, Ints, float]":
        """The same with tighter bounds, fixed columns folded into the rows.

        Returns the small program, the ids of the columns that are left, and the fixed cost.
        """
        free = np.flatnonzero(low < high)
        fixed = np.where(low < high, 0.0, low)
        shift = self.matrix @ fixed
        columns = self.matrix.tocsc()[:, free].tocsr()
        rows = np.flatnonzero(np.diff(columns.indptr) > 0)
        small = Milp(
            cost=self.cost[free],
            low=low[free],
            high=high[free],
            integer=self.integer[free],
            matrix=columns[rows],
            row_low=self.row_low[rows] - shift[rows],
            row_high=self.row_high[rows] - shift[rows],
            row_ids=self.row_ids[rows],
        )
        return small, free, float(self.cost @ fixed)


class Builder:
    """Collects columns, rows and coefficients. `check` is called all along, and may raise."""

    def __init__(self, check: Callable[[], object] = lambda: None) -> None:
        self.check = check
        self.cost: list[Floats] = []
        self.low: list[Floats] = []
        self.high: list[Floats] = []
        self.integer: list[npt.NDArray[np.bool_]] = []
        self.row_low: list[Floats] = []
        self.row_high: list[Floats] = []
        self.columns = 0
        self.rows = 0
        self.triplets: list[tuple[Ints, Ints, Floats]] = []

    def new_columns(
        self,
        count: int,
        *,
        cost: float | Floats = 0.0,
        low: float | Floats = 0.0,
        high: float | Floats = 1.0,
        integer: bool = False,
    ) -> Ints:
        self.check()
        self.cost.append(np.broadcast_to(np.asarray(cost, dtype=np.float64), (count,)))
        self.low.append(np.broadcast_to(np.asarray(low, dtype=np.float64), (count,)))
        self.high.append(np.broadcast_to(np.asarray(high, dtype=np.float64), (count,)))
        self.integer.append(np.full(count, integer))
        self.columns += count
        return np.arange(self.columns - count, self.columns)

    def new_rows(self, count: int, low: float = -np.inf, high: float = np.inf) -> Ints:
        self.row_low.append(np.full(count, low))
        self.row_high.append(np.full(count, high))
        self.rows += count
        return np.arange(self.rows - count, self.rows)

    def add(self, rows: Ints, columns: Ints, value: float | Floats) -> None:
        """Coefficients `value` at (rows, columns), where both exist."""
        self.check()
        there = (rows >= 0) & (columns >= 0)
        values = np.broadcast_to(np.asarray(value, dtype=np.float64), rows.shape)[there]
        self.triplets.append((rows[there], columns[there], values))

    def finish(self) -> Milp:
        none = np.zeros(0, dtype=np.int64)
        triplets = [(none, none, np.zeros(0)), *self.triplets]
        rows, columns, values = (np.concatenate(part) for part in zip(*triplets, strict=True))
        matrix = sparse.coo_matrix(
            (values, (rows, columns)), shape=(self.rows, self.columns)
        ).tocsr()
        row_low, row_high = (
            np.concatenate([np.zeros(0), *r]) for r in (self.row_low, self.row_high)
        )
        # A row without columns says nothing, unless it asks for the impossible.
        says = (np.diff(matrix.indptr) > 0) | (row_low > 0) | (row_high < 0)
        return Milp(
            cost=np.concatenate(self.cost),
            low=np.concatenate(self.low),
            high=np.concatenate(self.high),
            integer=np.concatenate(self.integer),
            matrix=matrix[says],
            row_low=row_low[says],
            row_high=row_high[says],
            row_ids=np.flatnonzero(says),
        )
