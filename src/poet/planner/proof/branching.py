"""Branch and bound on the relaxation, every leaf certified.

Best bound first. A node is a set of columns held at 0 or 1; its linear program is solved warm from
the node before, and its bound is recomputed from dual values like every other (an infeasible node's
from its dual ray), so the tree as a whole proves what it claims without the solver's word. Which
column to branch on is learned: the first time a column is met both sides are tried, later its
record serves.

Columns that say "in RAM when this stage begins" or "goes to the store" come first: holding one of
them decides more than a single recomputation among many.

Several workers may grow one tree. Each has a session of its own and takes the open node with the
lowest bound that nobody has in hand; what is in hand counts for the tree's bound as it was.
"""

import heapq
import itertools
import threading
from typing import NamedTuple

import numpy as np

from poet.planner.backends import Answer, Backend, Limits, LinearSession
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


class Node(NamedTuple):
    """A leaf that is open; the root, before it is solved, has no values."""

    bound: float
    order: int
    held: dict[int, float]
    values: Floats | None


class Tree:
    """The open leaves of one milp. `bound` never falls."""

    def __init__(self, model: Relaxation, backend: Backend, limits: Limits) -> None:
        self.milp = model.milp
        self.backend, self.limits = backend, limits
        self.sessions: dict[int, LinearSession] = {}
        self.order = itertools.count()
        self.open: list[Node] = [Node(-np.inf, next(self.order), {}, None)]
        self.in_hand: dict[int, float] = {}
        """Of the nodes that are being branched, by their order."""
        self.closed = np.inf
        self.whole: Floats | None = None
        self.gains: dict[tuple[int, float], tuple[float, int]] = {}
        self.weight = np.ones(self.milp.cost.size)
        self.weight[model.first_choices] = KEEP_WEIGHT
        self.lock = threading.Lock()

    @property
    def bound(self) -> float:
        """No solution of the program costs less."""
        with self.lock:
            lowest = self.open[0].bound if self.open else np.inf
            return min(lowest, self.closed, *self.in_hand.values())

    @property
    def is_free(self) -> bool:
        """Whether there is a node to branch that nobody has in hand."""
        with self.lock:
            return bool(self.open) and self.open[0].bound < self.closed

    @property
    def done(self) -> bool:
        return not self.in_hand and not self.is_free

    @property
    def lowest(self) -> Floats | None:
        """The values of the open leaf with the lowest bound."""
        with self.lock:
            return self.open[0].values if self.open else None

    def step(self, cutoff: float, seconds: float, who: int = 0) -> None:
        """Open one node and close or branch it. Leaves above `cutoff` are of no interest."""
        with self.lock:
            if not self.open:
                return
            node = heapq.heappop(self.open)
            self.in_hand[node.order] = node.bound
        session = self._session(who)
        if node.values is None:
            self._replace(node, [({}, *self._solve(session, {}, seconds))], cutoff)
            return
        column, children = self._branch(session, node, cutoff, seconds)
        if column < 0:  # out of time: the node stays as it was
            with self.lock:
                del self.in_hand[node.order]
                heapq.heappush(self.open, node)
            return
        leaves = [
            ({**node.held, column: side}, answer, max(node.bound, certified))
            for side, (answer, certified) in children.items()
        ]
        self._replace(node, leaves, cutoff)

    def _session(self, who: int) -> LinearSession:
        if who not in self.sessions:
            self.sessions[who] = self.backend.session(self.milp, self.limits)
        return self.sessions[who]

    def _replace(
        self, node: "Node", leaves: list[tuple[dict[int, float], Answer, float]], cutoff: float
    ) -> None:
        """What a node in hand was split into."""
        with self.lock:
            for held, answer, bound in leaves:
                self._add(held, answer, bound, cutoff)
            del self.in_hand[node.order]

    def _add(self, held: dict[int, float], answer: Answer, bound: float, cutoff: float) -> None:
        if bound >= cutoff or answer.values is None:
            self.closed = min(self.closed, bound)
            return
        if not self._fractional(answer.values).size:
            if bound < self.closed:
                self.whole = answer.values
            self.closed = min(self.closed, bound)
            return
        heapq.heappush(self.open, Node(bound, next(self.order), held, answer.values))

    def _solve(
        self, session: LinearSession, held: dict[int, float], seconds: float
    ) -> tuple[Answer, float]:
        low, high = self.milp.low.copy(), self.milp.high.copy()
        for column, side in held.items():
            low[column] = high[column] = side
        answer = session.solve(low, high, seconds)
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
        self, session: LinearSession, node: "Node", cutoff: float, seconds: float
    ) -> tuple[int, dict[float, tuple[Answer, float]]]:
        """The column to branch on and its two sides solved; -1 if time ran out."""
        bound, values = node.bound, node.values
        assert values is not None
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
                answer, certified = self._solve(session, {**node.held, column: side}, seconds)
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
