"""The incumbent: the best schedule and the best bound so far, shared by all who work on a problem.

Every schedule is replayed by the referee before it counts. Workers ask `finished` and leave when
the gap asked for is reached, the time is over, or somebody called `stop`. Within a long step they
`check`, which raises `CalledOff`; a solver keeps to its own time, and is broken off when
`called_off` says so.
"""

import itertools
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from poet.planner.model.staged import Staged, from_schedule, to_schedule
from poet.planner.model.stages import Stages, core_in_model
from poet.planner.search.prefetch import beside_compute
from poet.referee.replay import check
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.plan import draft
from poet.values.progress import SearchProgress
from poet.values.schedule import BoundSource, Budget, Effort, Prices, Schedule

LAST_WORD_SECONDS = 0.5
"""So long after the end a solver may say what it has: HiGHS took up to 0.1 s to see that its time
was over (docs/decisions/017)."""


class CalledOff(Exception):
    """The search is over: whoever is in the middle of something leaves it."""


@dataclass(frozen=True)
class Best:
    """A schedule that the referee accepted."""

    schedule: Schedule
    joules: float
    seconds: float


class TimePrices(NamedTuple):
    """Joules that a second is worth: of compute, of page-ins, of page-outs."""

    compute: float
    page_in: float
    page_out: float


class Leaning(NamedTuple):
    """What the best relaxation so far leans to, rounded: rows of bits, by stage."""

    keep: list[int]
    """Tensors that are kept into a stage ..."""
    load: list[int]
    """... and that are loaded in it, if they are missing."""


class Incumbent:
    def __init__(self, graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> None:
        self.graph, self.costs, self.budget, self.effort = graph, costs, budget, effort
        self.keep_all_joules = costs.keep_all_joules or 1.0
        self.started = time.monotonic()
        self.best: Best | None = None
        self.core: Staged | None = None
        self.core_joules = float("inf")
        """The best schedule that is a point of the exact model: mostly `best`, but a schedule that
        makes again what was consumed, or runs ops after the last first run, is none."""
        self._stages = Stages(graph, budget)
        self.first_seconds: float | None = None
        self.bound_joules = 0.0
        self.bound_source: BoundSource = "certified"
        self.prices: Prices | None = None
        self.time_prices: TimePrices | None = None
        self.leaning: Leaning | None = None
        self.deeper: Leaning | None = None
        """The same of the tree's lowest leaf, which is whole in more of it."""
        self.any_order_joules: float | None = None
        self.proven_infeasible = False
        self.last_rejection = ""
        self._solves = itertools.count()
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def offer(self, schedule: Schedule | None) -> bool:
        """Have a schedule replayed; true if it is valid and better than what was known."""
        if schedule is None:
            return False
        better = self._replay(schedule)
        staged = from_schedule(self.graph, self.costs, schedule)
        if staged is not None:
            tidy = to_schedule(self.graph, self.costs, self.budget, staged)
            if tidy != schedule:
                better |= self._replay(tidy)
        return better

    def offer_staged(self, staged: Staged | None) -> bool:
        if staged is None:
            return False
        return self._replay(to_schedule(self.graph, self.costs, self.budget, staged))

    def _replay(self, schedule: Schedule) -> bool:
        if self.budget.transfers == "overlap":
            played, report = beside_compute(self.graph, self.costs, self.budget, schedule)
        else:
            played = schedule
            report = check(draft(self.graph, self.costs, self.budget, played))
        if report.violation is not None:
            self.last_rejection = report.violation.message
            return False
        with self._lock:
            better = self.best is None or report.joules < self.best.joules * (1 - 1e-12)
            if report.joules < self.core_joules:
                core = core_in_model(self._stages, self.costs, schedule)
                if core is not None:
                    self.core, self.core_joules = core, report.joules
            if not better:
                return False
            self.best = Best(played, report.joules, report.seconds)
            if self.first_seconds is None:
                self.first_seconds = self.elapsed
        self.tell()
        return True

    def raise_bound(self, joules: float, source: BoundSource) -> None:
        """A certified bound is preferred to a solver's word that is not higher."""
        with self._lock:
            if joules > self.bound_joules:
                self.bound_joules, self.bound_source = joules, source
        self.tell()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def remaining(self) -> float:
        return self.effort.time_limit_seconds - self.elapsed

    @property
    def best_is_in_model(self) -> bool:
        return self.best is not None and self.core_joules <= self.best.joules * (1 + 1e-9)

    @property
    def gap(self) -> float:
        if self.best is None:
            return 1.0
        if not self.best.joules:
            return 0.0
        return max(0.0, 1.0 - self.bound_joules / self.best.joules)

    @property
    def finished(self) -> bool:
        return self._is_settled or self.remaining <= 0

    @property
    def called_off(self) -> bool:
        """Whether nobody waits any more for what a solver has to say."""
        return self._is_settled or self.remaining < -LAST_WORD_SECONDS

    @property
    def _is_settled(self) -> bool:
        enough = self.best is not None and self.gap <= self.effort.relative_gap
        return enough or self._stopped.is_set()

    def check(self) -> None:
        """Leave, if the search is over."""
        if self.finished:
            raise CalledOff

    def stop(self) -> None:
        self._stopped.set()

    def next_log(self) -> str | None:
        """Where the next solve may write its log."""
        folder = self.effort.solver_log
        return None if folder is None else f"{folder}/solve-{next(self._solves):04d}.log"

    def tell(self) -> None:
        if self.effort.progress is not None:
            joules = self.best.joules if self.best else None
            self.effort.progress(
                SearchProgress(seconds=self.elapsed, joules=joules, bound_joules=self.bound_joules)
            )
