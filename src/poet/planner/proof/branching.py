"""Branch and bound on the relaxation, every leaf certified.

Best bound first. A node is a set of columns held at 0 or 1; its linear program is solved warm from
the node before, and its bound is recomputed from dual values like every other (an infeasible node's
from its dual ray), so the tree as a whole proves what it claims without the solver's word. Which
column to branch on is learned: the first time a column is met both sides are tried, later its
record serves.

Columns that say "in RAM when this stage begins" or "goes to the store" come first: holding one of
them decides more than a single recomputation among many.
"""

import heapq
import itertools

import numpy as np

from poet.planner.backends import Answer, Backend, Limits
from poet.planner.model.matrix import Floats
from poet.planner.model.relaxed import Relaxation
from poet.planner.proof.certificate import ray_bound, safe_bound

CANDIDATES = 16
"""Columns without a record that are tried on both sides at each node: enough for the bounds of
docs/decisions/005. Tried at 8 and 32 (006)."""
RANKED = 5 * CANDIDATES
"""Of so many columns, those nearest to a half, records are looked at."""
WHOLE = 1e-6
"""A value so near to a whole number is one: the solvers' own tolerance."""
KEEP_WEIGHT = 3.0
"""How much nearer to a whole number a keep or store may be than another column and still come
first. By hand."""


class Tree:
    """The open leaves of one milp. `bound` never falls."""

    def __init__(self, model: Relaxation, backend: Backend, limits: Limits) -> None:
        self.milp = model.milp
        self.session = backend.session(self.milp, limits)
        self.order = itertools.count()
        self.open: list[tuple[float, int, dict[int, float], Floats]] = []
        self.closed = np.inf
        self.whole: Floats | None = None
        self.gains: dict[tuple[int, float], tuple[float, int]] = {}
        self.weight = np.ones(self.milp.cost.size)
        self.weight[model.first_choices] = KEEP_WEIGHT
        self.started = False

    @property
    def bound(self) -> float:
        """No solution of the program costs less."""
        return min(self.open[0][0] if self.open else np.inf, self.closed)

    @property
    def done(self) -> bool:
        return self.started and (not self.open or self.open[0][0] >= self.closed)

    def step(self, cutoff: float, seconds: float) -> None:
        """Open one node and close or branch it. Leaves above `cutoff` are of no interest."""
        if not self.started:
            self.started = True
            self._add({}, self._solve({}, seconds), cutoff)
            return
        bound, _, held, values = heapq.heappop(self.open)
        column, children = self._branch(bound, held, values, cutoff, seconds)
        if column < 0:  # out of time: the node stays as it was
            heapq.heappush(self.open, (bound, next(self.order), held, values))
            return
        for side, (answer, certified) in children.items():
            self._add({**held, column: side}, (answer, max(bound, certified)), cutoff)

    def _add(self, held: dict[int, float], solved: tuple[Answer, float], cutoff: float) -> None:
        answer, bound = solved
        if bound >= cutoff or answer.values is None:
            self.closed = min(self.closed, bound)
            return
        if not self._fractional(answer.values).size:
            if bound < self.closed:
                self.whole = answer.values
            self.closed = min(self.closed, bound)
            return
        heapq.heappush(self.open, (bound, next(self.order), held, answer.values))

    def _solve(self, held: dict[int, float], seconds: float) -> tuple[Answer, float]:
        low, high = self.milp.low.copy(), self.milp.high.copy()
        for column, side in held.items():
            low[column] = high[column] = side
        answer = self.session.solve(low, high, seconds)
        if answer.duals is None:
            return answer, -np.inf
        if answer.ray is not None:
            return answer, ray_bound(self.milp, answer.duals, answer.ray, low, high)
        return answer, safe_bound(self.milp, answer.duals, low, high)

    def _fractional(self, values: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        distance = np.abs(values - np.round(values))
        found: np.ndarray[tuple[int], np.dtype[np.int64]] = np.flatnonzero(
            self.milp.integer & (distance > WHOLE)
        )
        return found

    def _branch(
        self, bound: float, held: dict[int, float], values: Floats, cutoff: float, seconds: float
    ) -> tuple[int, dict[float, tuple[Answer, float]]]:
        """The column to branch on and its two sides solved; -1 if time ran out."""
        fractional = self._fractional(values)
        closeness = np.minimum(values[fractional], 1 - values[fractional])
        ranked = fractional[np.argsort(-closeness * self.weight[fractional], kind="stable")]
        ranked = ranked[:RANKED]
        best: tuple[float, int, dict[float, tuple[Answer, float]]] = (-1.0, -1, {})
        known = sorted(
            (c for c in ranked if (c, 0.0) in self.gains and (c, 1.0) in self.gains),
            key=lambda c: -self._score(*(self._expected(int(c), s, values) for s in (0.0, 1.0))),
        )
        fresh = [c for c in ranked if (c, 0.0) not in self.gains][:CANDIDATES]
        for column in (*(int(c) for c in known[:1]), *(int(c) for c in fresh)):
            sides = {}
            for side in (0.0, 1.0):
                answer, certified = self._solve({**held, column: side}, seconds)
                if answer.status in ("stopped", "failed"):
                    return best[1], best[2]
                sides[side] = answer, certified
                distance = abs(values[column] - side)
                gain, count = self.gains.get((column, side), (0.0, 0))
                seen = min(max(0.0, certified - bound), cutoff - bound) / max(distance, WHOLE)
                self.gains[column, side] = ((gain * count + seen) / (count + 1), count + 1)
            rises = [min(max(0.0, sides[s][1] - bound), cutoff - bound) for s in (0.0, 1.0)]
            score = self._score(*rises)
            if score > best[0]:
                best = score, column, sides
            if min(rises) >= cutoff - bound:
                break
        return best[1], best[2]

    def _expected(self, column: int, side: float, values: Floats) -> float:
        return self.gains[column, side][0] * abs(float(values[column]) - side)

    def _score(self, down: float, up: float) -> float:
        return max(down, 1e-7) * max(up, 1e-7)
