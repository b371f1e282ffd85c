"""Bounds that rise: linear relaxations of the model, then branch and bound, all certified.

A small `window` leaves most recomputations without their inputs (relaxed.masks), which
makes a program that is solved in well under a second and whose optimum is already close to the
whole model's; larger windows and other units of bytes follow while they help, and then a tree of
branches (branching.py) on the largest that is solved quickly. Every bound is recomputed from dual
values (certificate.py), so a solver that errs can make it worse but not wrong.
"""

import math
import time
from collections.abc import Iterator

import numpy as np

from poet.planner.backends import Backend, Limits
from poet.planner.incumbent import Incumbent, Leaning, TimePrices
from poet.planner.model.matrix import Floats
from poet.planner.model.relax import relaxation
from poet.planner.model.relaxed import Relaxation
from poet.planner.proof.any_order import any_order_bound
from poet.planner.proof.branching import Tree
from poet.planner.proof.certificate import ray_bound, reduced_costs, safe_bound
from poet.values.schedule import Prices

WINDOWS = (4, 8, 16, 32, 64, 128, 256)
"""The smallest already gives nearly the whole model's bound in a fiftieth of the time (formulation
§8: bert-m4, 110.75 of 110.93 % in 0.3 of 16 s); each next one doubles the price of being sure."""
QUICK_SECONDS, TREE_WINDOW = 0.4, 8
"""A program solved so quickly, with no larger window, is small enough to branch on: many cheap
branches raise the bound more than few dear ones. Tried at half and double (docs/decisions/006)."""
STEP_SECONDS, STEP_NODES = 0.5, 20
"""How much of the tree a step grows: by the clock, often enough to share a worker fairly; counted,
what follows each round. By hand, the seconds tried at 0.25 and 1."""
EXACT_OPS = 60
"""Up to so many ops the whole model, too, is small enough to branch on: linear-m4 has
2,474 columns with 27, vgg16-m4 22,724 with 81. By hand, between the two."""
HALF = 0.5
"""Of a relaxed choice, to be taken for made."""
HELPS = 0.01
"""A larger window that takes less than this share off the gap ends the climb: the next one costs at
least twice as much. By hand, tried at 0.003 and 0.03."""


class Bounds:
    """Rising bounds for one problem. Each `step` solves one program, until `done`."""

    def __init__(self, incumbent: Incumbent, backend: Backend) -> None:
        self.incumbent, self.backend = incumbent, backend
        self.best_unit: int | None = None
        self.cut_stages = fullest_stages(incumbent)
        self.best = 0.0
        self.counted = incumbent.effort.work_limit is not None
        self.quick_window: int | None = WINDOWS[1] if self.counted else WINDOWS[0]
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
        found = any_order_bound(inc.graph, inc.costs, inc.budget, self.backend)
        inc.any_order_joules = found.joules
        inc.prices = Prices(joules_per_byte=found.joules_per_byte, joules_per_second=0.0)
        inc.raise_bound(found.joules, "certified")
        yield
        units = candidate_units(inc)
        for unit in units:
            self._solve(WINDOWS[0], unit)
            yield
        ops = len(self.incumbent.graph.ops)
        for window in WINDOWS[1:]:
            if window >= ops:
                break
            before = self.best
            self._solve(window, self.best_unit or units[0])
            yield
            best = self.incumbent.best
            gap = best.joules - self.best if best else self.best
            if window > 8 and self.best - before < HELPS * max(gap, 0.0):
                break
        self.climbing = False
        yield from self._branch(self.quick_window, self.best_unit or units[0])
        if ops <= EXACT_OPS:
            yield from self._branch(None, self.best_unit or units[0])

    def _branch(self, window: int | None, unit: int) -> Iterator[None]:
        """Grow a tree until it is done; a step is about half a second of it, or some nodes."""
        inc, model = self.incumbent, self._relaxation(window, unit)
        tree = Tree(model, self.backend, self._limits(seconds=1e9))
        scale = model.scale
        pause, nodes = time.monotonic() + STEP_SECONDS, 0
        while not tree.done and not inc.finished:
            cutoff = np.inf
            if inc.best is not None:
                cutoff = inc.best.joules * scale * (1 - inc.effort.relative_gap / 2)
            tree.step(cutoff, inc.remaining)
            inc.raise_bound(min(tree.bound / scale, model.time.most_joules), "certified")
            nodes += 1
            if nodes % STEP_NODES == 0 if self.counted else time.monotonic() > pause:
                yield
                pause = time.monotonic() + STEP_SECONDS
        yield

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

    def _solve(self, window: int | None, unit: int) -> None:
        inc, model = self.incumbent, self._relaxation(window, unit)
        started = time.monotonic()
        answer = self.backend.solve_linear(model.milp, self._limits(inc.remaining, inc.next_log()))
        quick = time.monotonic() - started < QUICK_SECONDS
        if quick and not self.counted and window is not None and window <= TREE_WINDOW:
            self.quick_window = window
        if answer.status == "infeasible" and inc.best is None:
            self._prove_infeasible(model)
        if answer.duals is None:
            return
        joules = safe_bound(model.milp, answer.duals) / model.scale
        joules = min(joules, model.time.most_joules)
        if joules > self.best:
            self.best, self.best_unit = joules, unit
            inc.raise_bound(joules, "certified")
            inc.prices = _prices(model, answer.duals)
            inc.time_prices = _time_prices(model, answer.duals)
            if answer.values is not None:
                inc.leaning = _leaning(inc, model, answer.values)

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


def fullest_stages(incumbent: Incumbent) -> tuple[int, ...]:
    """The stage after the op beside which most bytes wait, were everything kept: worth a cut.

    What must be in RAM when the step ends waits until then. Pinned tensors are there in any case
    and say nothing of where.
    """
    graph, costs, budget = incumbent.graph, incumbent.costs, incumbent.budget
    waiting = np.zeros(len(graph.ops) + 1)
    for i, tensor in enumerate(graph.tensors):
        maker, readers = graph.producer[i], graph.readers[i]
        first = 0 if maker is None else maker + 1
        if i in budget.pinned:
            continue
        if budget.end.get(i) in ("ram", "both"):
            waiting[first:] += tensor.nbytes
        elif readers:
            waiting[first : readers[-1] + 1] += tensor.nbytes
    for v, op in enumerate(graph.ops):
        seats = {pair.output for pair in op.in_place}
        waiting[v] += min(run.workspace_bytes for run in costs.ops[v].values())
        waiting[v] += sum(graph.tensors[i].nbytes for i in op.outputs if i not in seats)
    return (int(np.argmax(waiting[:-1])) + 1,) if waiting.any() else ()


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


def _leaning(incumbent: Incumbent, model: Relaxation, values: Floats) -> Leaning:
    graph = incumbent.graph
    stages = len(graph.ops) + 1
    keep, load = [0] * (stages + 1), [0] * stages
    for i, maker in enumerate(graph.producer):
        first = 0 if maker is None else maker + 1
        kept = model.keep[i]
        for stage in (first + np.flatnonzero(values[kept] > HALF)).tolist() if kept.size else ():
            keep[stage] |= 1 << i
        loaded = model.load[i]
        there = loaded >= 0
        if there.any() and values[loaded[there]].sum() > HALF:
            for stage in range(first, stages):
                load[stage] |= 1 << i
        if incumbent.budget.end.get(i, "store") != "store":
            keep[stages] |= 1 << i
    return Leaning(keep, load)


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
