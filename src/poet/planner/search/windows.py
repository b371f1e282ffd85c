"""Large-neighbourhood search: small exact models around the best schedule.

Most of the model is held at the incumbent; a window is freed and solved by the integer solver: the
stages of a stretch of the step, all that concerns a run of neighbouring tensors, or both at once.
Windows that solve quickly grow, those that do not shrink. Whatever comes out is decoded, and judged
by the caller.
"""

import math
import random

import numpy as np
import numpy.typing as npt

from poet.planner.backends import Backend, Limits
from poet.planner.incumbent import Incumbent
from poet.planner.model.build import Model, build_model
from poet.planner.model.points import column_spans, decode, encode
from poet.planner.model.staged import Staged
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget

FEWEST, MOST, FIRST = 150, 6000, 800
"""Columns that a window frees, at least, at most and at first. They follow how windows fare, so
these matter little: by hand, the first two tried at half and double (docs/decisions/006)."""
SMALLER, LARGER = 0.8, 1.15
"""After a window that was not solved, and after one that was: in balance at eight solved for five
that are not. By hand."""


class Windows:
    """One neighbourhood search; holds a model that contains the incumbent's runs."""

    def __init__(
        self,
        incumbent: Incumbent,
        costs: Costs,
        budget: Budget,
        backend: Backend,
        seed: int,
        window: int,
    ) -> None:
        self.incumbent, self.budget, self.backend = incumbent, budget, backend
        self.graph, self.costs = incumbent.graph, costs
        self.random = random.Random(seed)
        self.window = window
        self.free_columns = float(FIRST)
        self.model: Model | None = None
        self.pairs: set[tuple[int, int]] = set()

    def improve(self, staged: Staged, seconds: float, nodes: int | None = None) -> Staged | None:
        """A different core from one freed window, or None if the window has nothing better."""
        model = self._model_for(staged)
        values = encode(model, self.graph, self.costs, self.budget, staged)
        free = self._window()
        milp = model.milp
        held = milp.integer | (self.spans.first_stage >= 0)
        low = np.where(free | ~held, milp.low, values)
        high = np.where(free | ~held, milp.high, values)
        small, columns, fixed = milp.restricted(low, high)
        now = float(milp.cost @ values)
        limits = Limits(
            seconds=seconds,
            nodes=nodes,
            seed=self.random.randrange(1 << 30),
            cutoff=now - fixed - 1e-6,
            relative_gap=1e-4,
            log_file=self.incumbent.next_log(),
            stop=lambda: self.incumbent.called_off,
        )
        answer = self.backend.solve_integer(small, limits)
        self._adapt(answer.status)
        if answer.values is None or answer.objective is None:
            return None
        if answer.objective > now - fixed - 1e-7:
            return None
        whole = low.copy()
        whole[columns] = answer.values
        return decode(model, whole)

    def whole(
        self, staged: Staged | None, window: int, seconds: float, nodes: int | None = None
    ) -> tuple[Staged | None, bool]:
        """The model with few recomputations and nothing held; and whether it was solved out."""
        model = build_model(
            self.graph,
            self.costs,
            self.budget,
            unit_bytes=_exact_unit(self.graph, self.budget),
            window=window,
            also=[(v, t) for v, t in _pairs(staged) if t > v],
            check=self.incumbent.check,
        )
        cutoff = None
        if staged is not None:
            point = encode(model, self.graph, self.costs, self.budget, staged)
            cutoff = float(model.milp.cost @ point) - 1e-6
        limits = Limits(
            seconds=seconds,
            nodes=nodes,
            seed=self.random.randrange(1 << 30),
            cutoff=cutoff,
            relative_gap=2e-5,
            log_file=self.incumbent.next_log(),
            stop=lambda: self.incumbent.called_off,
        )
        answer = self.backend.solve_integer(model.milp, limits)
        proven = answer.status in ("optimal", "infeasible")
        return (None if answer.values is None else decode(model, answer.values)), proven

    def _adapt(self, status: str) -> None:
        factors = {"stopped": SMALLER, "optimal": LARGER, "infeasible": LARGER}
        factor = factors.get(status, 1.0)
        self.free_columns = min(MOST, max(FEWEST, self.free_columns * factor))

    def _model_for(self, staged: Staged) -> Model:
        pairs = _pairs(staged)
        if self.model is None or not pairs <= self.pairs:
            self.pairs |= pairs
            self.model = build_model(
                self.graph,
                self.costs,
                self.budget,
                unit_bytes=_exact_unit(self.graph, self.budget),
                window=self.window,
                also=[(v, t) for v, t in self.pairs if t > v],
                check=self.incumbent.check,
            )
            self.spans = column_spans(self.model)
        return self.model

    def _window(self) -> npt.NDArray[np.bool_]:
        """A random window of about `free_columns` whole-number columns."""
        kind = self.random.choice(("stages", "stages", "tensors", "both"))
        assert self.model is not None
        milp, spans = self.model.milp, self.spans
        ops, tensors = len(self.graph.ops), len(self.graph.tensors)
        store = spans.last_stage - spans.first_stage >= ops
        middle_stage = self.random.randrange(ops)
        middle_tensor = self.random.randrange(tensors)
        free = np.zeros(milp.cost.size, dtype=bool)
        reach = 1
        while True:
            stages = (spans.first_stage <= middle_stage + reach) & (
                spans.last_stage >= middle_stage - reach
            )
            about = np.abs(spans.tensor - middle_tensor) <= reach
            if kind == "stages":
                wider = stages | store
            elif kind == "tensors":
                wider = about
            else:
                wider = (stages | store) & (np.abs(spans.tensor - middle_tensor) <= 4 * reach)
            wider &= spans.first_stage >= 0
            if (wider & milp.integer).sum() > self.free_columns and reach > 1:
                return free
            free = wider
            if reach > max(ops, tensors):
                return free
            reach = max(reach + 1, int(reach * 1.2))


def _pairs(staged: Staged | None) -> set[tuple[int, int]]:
    """Which op runs in which stage."""
    if staged is None:
        return set()
    return {(step.op, t) for t, runs in enumerate(staged.runs) for step in runs}


def _exact_unit(graph: Graph, budget: Budget) -> float:
    """A unit in which sizes are whole, or at least of moderate size, and nothing is rounded."""
    sizes = [tensor.nbytes for tensor in graph.tensors if tensor.nbytes]
    unit = float(math.gcd(*sizes)) if sizes else 1.0
    limit = float(budget.ram_bytes or max(sizes, default=1))
    return max(unit, limit / 1e5)
