"""Workers: what they share, and what each of them has and remembers.

A worker holds the tools that its strategies use (strategies.py) and the few facts by which they
decide whose turn it is: how many rounds were made, how many windows in a row found nothing, and
which side of the gap its time has moved.
"""

import itertools
from contextlib import suppress
from typing import Literal

import msgspec

from poet.planner.backends import find_backend
from poet.planner.incumbent import Incumbent
from poet.planner.proof.bounds import Bounds
from poet.planner.search.anneal import Annealer
from poet.planner.search.pace import Counted, Pace, Timed
from poet.planner.search.windows import Windows
from poet.values.device import Costs
from poet.values.schedule import Budget, Maker, Schedule

Side = Literal["bound", "schedule"]
"""The side of the gap that a step moves: the bound up, or the schedule down."""

SMALL_OPS = 250
"""Up to so many ops exact models are built generously. By hand, between what was measured: the
whole relaxation takes 16 s for bert-m4 with 195 ops, and for bert_captured with 769 a quarter of it
was not solved in 8 minutes (docs/decisions/005)."""
RERUN_WINDOW, RERUN_WINDOW_OF_LARGE = 30, 12
"""How many stages before a reader the models around the incumbent may recompute in (formulation
§8), besides all that the incumbent recomputes. By hand; the first tried at 15 and 60
(docs/decisions/006)."""
OVERLAP_WAYS = ((1.0, True), (1.0, False), (0.95, True), (0.9, True), (0.8, True), (0.6, True))
"""Under overlap: so much of the RAM, with or without paging. By hand: from what gives up least to
what gives up most, and the first that the referee accepts stays."""
RATE_MEMORY = 0.6
"""Of a rate, so much is kept when a new one is seen. By hand, tried at 0.3 and 0.9."""


class Team:
    """What the workers on one problem share."""

    def __init__(self, incumbent: Incumbent, makers: tuple[Maker, ...] = ()) -> None:
        self.incumbent, self.makers = incumbent, makers
        self.backend = find_backend(incumbent.effort.solver)
        self.bounds = Bounds(incumbent, self.backend)
        self.seeds = itertools.count(incumbent.effort.seed)
        self.annealers: list[Annealer] = []

    def annealer(self, costs: Costs, budget: Budget) -> Annealer:
        """One for other costs or another budget than those asked, which hears `stop` as well."""
        made = Annealer(self.incumbent.graph, costs, budget)
        self.annealers.append(made)
        if self.incumbent.finished:
            made.stop()
        return made

    def stop(self) -> None:
        """Call everyone off."""
        self.incumbent.stop()
        for annealer in self.annealers:
            annealer.stop()

    def close(self) -> None:
        """End what was started beside. Nobody works any more."""
        self.backend.close()


class Tools:
    """An annealer and windows for one budget: the one asked, or one with something forbidden.

    Without a compiler there is no annealer, and windows must do.
    """

    def __init__(self, team: Team, budget: Budget, seed: int) -> None:
        inc = team.incumbent
        self.budget = budget
        self.annealer: Annealer | None = None
        with suppress(RuntimeError):
            self.annealer = team.annealer(inc.costs, budget)
        window = RERUN_WINDOW if len(inc.graph.ops) <= SMALL_OPS else RERUN_WINDOW_OF_LARGE
        self.windows = Windows(inc, budget, team.backend, seed, window)
        self.best: Schedule | None = None
        """Of a narrower budget than the one asked: the best within it, rarely the incumbent."""


class Ledger:
    """The seconds spent on each side of the gap, and how fast they moved it of late."""

    def __init__(self) -> None:
        self.seconds: dict[Side, float] = {"bound": 0.0, "schedule": 0.0}
        self.rates: dict[Side, float] = {"bound": 1.0, "schedule": 1.0}

    def note(self, side: Side, moved: float, seconds: float) -> None:
        """`moved` is a share of keep-all's joules."""
        rate = RATE_MEMORY * self.rates[side] + (1 - RATE_MEMORY) * moved / seconds
        self.rates[side] = rate
        self.seconds[side] += seconds


class Worker:
    """One worker. The first one leads: it opens, and tries the whole model. One raises the bound.

    Where transfers overlap compute, a page-out holds its bytes into the next op and a page-in makes
    its reader wait, which neither the annealer nor the model knows; they are given less RAM, or no
    paging, until the referee accepts what they make.
    """

    def __init__(self, team: Team, *, leads: bool, proves: bool) -> None:
        inc = team.incumbent
        self.team, self.incumbent, self.leads, self.proves = team, inc, leads, proves
        self.seed = next(team.seeds)
        work_limit = inc.effort.work_limit
        self.pace: Pace = Timed(inc) if work_limit is None else Counted(inc, work_limit)
        self.round = 1
        self.idle_windows = 0
        self.ledger = Ledger()
        overlap = inc.budget.transfers == "overlap"
        self.ways = list(OVERLAP_WAYS) if overlap else [(1.0, True)]
        self.tools = self._next_way()
        self.narrowed = () if overlap else self._narrowed()

    def offer(self, schedule: Schedule | None) -> None:
        """Under overlap: what the referee did not take is tried again another way."""
        taken = self.incumbent.offer(schedule)
        if not taken and self.ways and self.incumbent.last_rejection:
            self.incumbent.last_rejection = ""
            self.tools = self._next_way()

    def standing(self, side: Side) -> float:
        """Where that side of the gap is, as a share of keep-all's joules."""
        best = self.incumbent.best
        if best is None or not best.joules:
            return 1.0
        moved = self.incumbent.bound_joules if side == "bound" else best.joules
        return moved / self.incumbent.keep_all_joules

    def _next_way(self) -> Tools:
        share, paging = self.ways.pop(0)
        budget = self.incumbent.budget
        if share < 1.0 and budget.ram_bytes is not None:
            budget = msgspec.structs.replace(budget, ram_bytes=int(share * budget.ram_bytes))
        if not paging:
            budget = msgspec.structs.replace(budget, paging=False)
        return Tools(self.team, budget, self.seed)

    def _narrowed(self) -> tuple[Tools, ...]:
        """Tools that only recompute, or only page: smaller searches, sooner at their ends."""
        budget = self.incumbent.budget
        if not (budget.paging and budget.recompute) or self.tools.annealer is None:
            return ()
        budgets = [msgspec.structs.replace(budget, recompute=False)]
        if "store" not in budget.start.values():
            budgets.insert(0, msgspec.structs.replace(budget, paging=False))
        return tuple(Tools(self.team, narrow, self.seed) for narrow in budgets)
