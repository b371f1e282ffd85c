"""Bounds that rise: linear relaxations of the model, then branch and bound, all certified.

First what crosses a few ops at which RAM is scarce (crossing.py): a small program at any number of
ops. Then all stages: a small `window` leaves most recomputations without their inputs
(reach.masks), which makes a program that is solved in well under a second and whose optimum is
already close to the whole model's; larger windows and other units of bytes follow while they help.
Then trees of branches (branching.py) on the best of the one kind and on the largest of the other
that is solved quickly. Every bound is recomputed from dual values (certificate.py), so a solver
that errs can make it worse but not wrong.
"""

import math
import time
from collections.abc import Iterator

import numpy as np

from poet.planner.backends import Backend, Limits
from poet.planner.incumbent import Incumbent, TimePrices
from poet.planner.model.crossing import crossing
from poet.planner.model.matrix import Floats
from poet.planner.model.relax import relaxation
from poet.planner.model.relaxed import Relaxation
from poet.planner.proof.any_order import any_order_bound
from poet.planner.proof.certificate import ray_bound, reduced_costs, safe_bound
from poet.planner.proof.chooser import Chooser
from poet.planner.proof.grove import Grove
from poet.planner.proof.leaning import leaning
from poet.planner.proof.scarce import excess_bytes, scarce_ops
from poet.values.schedule import Prices

WINDOWS = (4, 8, 16, 32, 64, 128, 256)
"""The smallest already gives nearly the whole model's bound in a fiftieth of the time (formulation
§8: bert-m4, 110.75 of 110.93 % in 0.3 of 16 s); each next one doubles the price of being sure."""
QUICK_SECONDS, TREE_WINDOW = 0.4, 8
"""A program solved so quickly, with no larger window, is small enough to branch on: many cheap
branches raise the bound more than few dear ones. Tried at half and double (docs/decisions/006)."""
TREE_CHOSEN, TREE_COLUMNS = 10, 5_000
"""The most ops and columns of a program that is kept for a tree because it is small. U-Net at
221 MB, 17 s of a tree: 109.3 with 2 ops, 109.8 with 6, 110.8 with 9, 109.7 with 15."""
EXACT_OPS = 60
"""Up to so many ops the whole model, too, is small enough to branch on: linear-m4 has
2,474 columns with 27, vgg16-m4 22,724 with 81. By hand, between the two."""
HELPS = 0.01
"""A larger window that takes less than this share off the gap ends the climb: the next one costs at
least twice as much. By hand, tried at 0.003 and 0.03."""
UNKNOWN = 1.02
"""So many times the bound is what a schedule may take, while there is none. By hand."""
BEHIND = 0.3
"""Larger windows are tried where the smallest comes so near to the crossings' bound, as a share of
the gap: a window of 40 adds a fiftieth of bert-m4's (formulation §8). By hand."""


FAR = 0.12
"""Of the gap: no tree grows on a relaxation that is farther below the best one. By hand: for U-Net
that leaves out windows, for resnet18_cifar-m4 at 330,000 B crossings."""


class Bounds:
    """Rising bounds for one problem. Each `step` solves one program, until `done`."""

    def __init__(self, incumbent: Incumbent, backend: Backend) -> None:
        self.incumbent, self.backend = incumbent, backend
        self.best_unit: int | None = None
        self.excess = excess_bytes(incumbent.graph, incumbent.costs, incumbent.budget)
        self.cut_stages = (int(np.argmax(self.excess)) + 1,) if self.excess.size else ()
        """After the op beside which most bytes wait, were everything kept."""
        self.best = 0.0
        self.leant = 0.0
        self.counted = incumbent.effort.work_limit is not None
        self.quick_window: int | None = WINDOWS[1] if self.counted else None
        self.crossings: list[Relaxation] = []
        self.roots: list[float] = []
        self.window_root = 0.0
        self.unit = 1
        """Of bytes, in crossings."""
        self.grove: Grove | None = None
        self.steps = self._climb()
        self.spent_seconds = 0.0
        self.last_seconds = 0.0
        self.climbing = True
        self.done = False

    def step(self) -> None:
        started = time.monotonic()
        try:
            next(self.steps)
        except StopIteration:
            self.done = True
        self.last_seconds = time.monotonic() - started
        self.spent_seconds += self.last_seconds

    def _climb(self) -> Iterator[None]:
        inc = self.incumbent
        units = candidate_units(inc)
        yield from self._cross(units)
        yield from self._choose()
        found = any_order_bound(inc.graph, inc.costs, inc.budget, self.backend)
        inc.any_order_joules = found.joules
        if inc.prices is None:
            inc.prices = Prices(joules_per_byte=found.joules_per_byte, joules_per_second=0.0)
        inc.raise_bound(found.joules, "certified")
        yield
        yield from self._widen(units)
        self.climbing = False
        ops, unit = len(inc.graph.ops), self.best_unit or units[0]
        best = max((*self.roots, self.window_root))
        gap = max(0.0, (inc.best.joules if inc.best else 2 * best) - best)
        models = [
            model
            for model, root in zip(self.crossings, self.roots, strict=True)
            if best - root <= FAR * gap
        ]
        near = self.quick_window is not None and best - self.window_root <= FAR * gap
        if near or not models:
            models.append(self._relaxation(self.quick_window or WINDOWS[0], unit))
        yield from self._branch(models)
        if ops <= EXACT_OPS:
            yield from self._branch([self._relaxation(None, unit)])

    def _cross(self, units: list[int]) -> Iterator[None]:
        """What crosses the ops at which RAM is scarce; more of them while that helps or is small.

        With more ops a linear relaxation may be lower and a tree higher, so two are kept for trees:
        the best, and the largest that is small.
        """
        inc = self.incumbent
        best, self.unit = 0.0, units[0]
        if inc.budget.ram_bytes is None:
            return
        for chosen in scarce_ops(self.excess):
            before = best
            for each in units if not best else [self.unit]:
                model = self._crossing(chosen, each)
                joules = self._solve(model)
                if joules > best:
                    best, self.unit = joules, each
                    self.crossings = [model, *self.crossings[1:]]
                    self.roots = [joules, *self.roots[1:]]
                yield
            if not self.crossings:
                return
            is_small = len(chosen) <= TREE_CHOSEN and model.milp.cost.size <= TREE_COLUMNS
            if is_small and model is not self.crossings[0]:
                self.crossings = [self.crossings[0], model]
                self.roots = [self.roots[0], joules]
            elif best <= before:
                return

    def _choose(self) -> Iterator[None]:
        """Crossings of ops that are chosen one after the other, each the best to add."""
        inc = self.incumbent
        if not self.crossings:
            return
        model = self.crossings[0]

        def bound_of(ops: tuple[int, ...]) -> float:
            nonlocal model
            model = self._crossing(ops, unit)
            return self._solve(model) if model.milp.cost.size <= TREE_COLUMNS else math.nan

        def most() -> float:
            return inc.best.joules if inc.best else UNKNOWN * self.best

        unit, start = self.unit, next(scarce_ops(self.excess))
        candidates = np.flatnonzero(self.excess > 0).tolist()
        chooser = Chooser(candidates, start, bound_of(start), bound_of, most)
        while not chooser.done:
            chooser.step()
            yield
        if len(chooser.chosen) > len(start):
            root = bound_of(chooser.chosen)
            self.crossings.append(model)
            self.roots.append(root)

    def _crossing(self, ops: tuple[int, ...], unit: int) -> Relaxation:
        inc = self.incumbent
        return crossing(
            inc.graph, inc.costs, inc.budget, ops, unit_bytes=unit, check=inc.check
        ).relaxation

    def _widen(self, units: list[int]) -> Iterator[None]:
        """All stages, with windows that grow."""
        inc, crossed, best = self.incumbent, self.best, 0.0
        for unit in units:
            joules = self._solve_window(WINDOWS[0], unit)
            if joules > best:
                best, self.best_unit = joules, unit
            self.window_root = best
            yield
        for window in WINDOWS[1:]:
            gap = (inc.best.joules if inc.best else 2 * crossed) - crossed
            if window >= len(inc.graph.ops) or crossed - best > BEHIND * max(gap, 0.0):
                return
            before = best
            best = max(best, self._solve_window(window, self.best_unit or units[0]))
            self.window_root = best
            yield
            gap = inc.best.joules - best if inc.best else best
            if window > 8 and best - before < HELPS * max(gap, 0.0):
                return

    def _branch(self, models: list[Relaxation]) -> Iterator[None]:
        """Grow trees until all are done."""
        self.grove = Grove(self.incumbent, self.backend, models, self._limits(seconds=1e9))
        while not self.incumbent.finished and not self.grove.done:
            self.grove.step()
            yield

    def help(self, who: int) -> None:
        """A step of the trees beside the worker who raises the bound, who is 0."""
        if self.grove is not None:
            self.grove.step(who)

    @property
    def can_be_helped(self) -> bool:
        return self.grove is not None and self.grove.has_room

    @property
    def waits(self) -> bool:
        """Whether others have the last leaves in hand."""
        return self.grove is not None and not self.grove.done and not self.grove.has_room

    def _relaxation(self, window: int | None, unit: int) -> Relaxation:
        inc = self.incumbent
        return relaxation(
            inc.graph,
            inc.costs,
            inc.budget,
            unit_bytes=unit,
            window=window,
            cut_stages=self.cut_stages,
            check=inc.check,
        )

    def _limits(self, seconds: float, log_file: str | None = None) -> Limits:
        inc = self.incumbent
        return Limits(
            seconds=seconds,
            seed=inc.effort.seed,
            log_file=log_file,
            stop=lambda: inc.called_off,
        )

    def _solve_window(self, window: int, unit: int) -> float:
        model = self._relaxation(window, unit)
        started = time.monotonic()
        joules = self._solve(model)
        quick = time.monotonic() - started < QUICK_SECONDS
        if quick and not self.counted and window <= TREE_WINDOW:
            self.quick_window = window
        return joules

    def _solve(self, model: Relaxation) -> float:
        """The certified bound of a linear relaxation; 0 if there is none."""
        inc = self.incumbent
        answer = self.backend.solve_linear(model.milp, self._limits(inc.remaining, inc.next_log()))
        if answer.status == "infeasible" and inc.best is None:
            self._prove_infeasible(model)
        if answer.duals is None:
            return 0.0
        joules = safe_bound(model.milp, answer.duals) / model.scale
        joules = min(joules, model.time.most_joules)
        if joules > self.best:
            self.best = joules
            inc.raise_bound(joules, "certified")
            inc.prices = _prices(model, answer.duals)
        if model.keep and joules > self.leant:
            self.leant = joules
            inc.time_prices = _time_prices(model, answer.duals)
            if answer.values is not None:
                inc.leaning = leaning(inc, model, answer.values)
        return joules

    def _prove_infeasible(self, model: Relaxation) -> None:
        """Certified: along a dual ray the bound passes what any point of the box could cost."""
        inc, milp = self.incumbent, model.milp
        if np.isfinite(model.time.most_joules):
            return  # a longer makespan than the program's would do
        session = self.backend.session(milp, self._limits(inc.remaining))
        answer = session.solve(milp.low, milp.high, inc.remaining)
        if answer.ray is None or answer.duals is None:
            return
        most = float(np.maximum(milp.cost * milp.low, milp.cost * milp.high).sum())
        if ray_bound(milp, answer.duals, answer.ray) > most + 1.0:
            inc.proven_infeasible = True
            inc.stop()


def _prices(model: Relaxation, duals: Floats) -> Prices:
    """What one more byte, or one more second of deadline, would take off the bound."""
    milp = model.milp
    reduced, _ = reduced_costs(milp, duals)
    rows = duals[np.isin(milp.row_ids, model.memory_rows)].sum()
    per_unit = -np.minimum(0.0, reduced[model.memory_columns]).sum() - rows
    deadline = -duals[milp.row_ids == model.time.deadline_row].sum()
    if model.time.ends.size and model.deadline_seconds is not None:
        deadline = -reduced[model.time.ends[-1]]
    return Prices(
        joules_per_byte=max(0.0, float(per_unit / model.scale / model.unit_bytes)),
        joules_per_second=max(0.0, float(deadline / model.scale / model.time.unit_seconds)),
    )


def _time_prices(model: Relaxation, duals: Floats) -> TimePrices:
    """What a second of compute and of transfers is worth, by the dual values of time's rows."""
    of_row = dict(zip(model.milp.row_ids.tolist(), duals.tolist(), strict=True))

    def price(rows: list[tuple[int, float]]) -> float:
        worth = -sum(weight * of_row.get(row, 0.0) for row, weight in rows)
        return max(0.0, float(worth / model.scale / model.time.unit_seconds))

    time = model.time
    return TimePrices(price(time.compute), price(time.page_in), price(time.page_out))


def candidate_units(incumbent: Incumbent) -> list[int]:
    """Units of bytes worth trying: common divisors of the larger tensors, most promising first.

    Rounding down loses the small tensors and, if the unit does not divide it, some of the budget;
    the second makes the bound better, the first worse. How much worse is a guess (twice), and so
    are four units at most, each of which costs a relaxation.
    """
    sizes = np.array([tensor.nbytes for tensor in incumbent.graph.tensors if tensor.nbytes])
    ram = incumbent.budget.ram_bytes
    if ram is None or not sizes.size or not ram:
        return [1]
    found: dict[int, float] = {}
    for least in np.unique(sizes):
        if least > ram / 8:
            break
        unit = math.gcd(*(int(size) for size in np.unique(sizes[sizes >= least])))
        lost_ram = ram % unit / ram
        lost_bytes = float((sizes % unit).sum() / sizes.sum())
        found.setdefault(unit, lost_ram - 2 * lost_bytes)
    ranked = sorted(found, key=lambda unit: -found[unit])
    return ranked[:4] or [1]
