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
from poet.planner.incumbent import Incumbent, TimePrices
from poet.planner.proof.bounds import Bounds
from poet.planner.search.anneal import Annealer
from poet.planner.search.pace import Counted, Pace, Timed
from poet.planner.search.steering import steered
from poet.planner.search.windows import Windows
from poet.values.device import Costs
from poet.values.schedule import Budget, Compute, Maker, PageIn, PageOut, Schedule

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
RATE_MEMORY = 0.8
"""Of a rate, so much is kept after a second: steps of half a second and of five forget alike. By
hand."""


class Team:
    """What the workers on one problem share."""

    def __init__(self, incumbent: Incumbent, makers: tuple[Maker, ...] = ()) -> None:
        self.incumbent, self.makers = incumbent, makers
        self.backend = find_backend(incumbent.effort.solver)
        self.bounds = Bounds(incumbent, self.backend)
        self.seeds = itertools.count(incumbent.effort.seed)
        self.annealers: list[Annealer] = []
        self.prover: Worker | None = None
        """The one who raises the bound."""

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

    def __init__(self, team: Team, costs: Costs, budget: Budget, seed: int) -> None:
        inc = team.incumbent
        self.budget = budget
        self.annealer: Annealer | None = None
        with suppress(RuntimeError):
            self.annealer = team.annealer(costs, budget)
        window = RERUN_WINDOW if len(inc.graph.ops) <= SMALL_OPS else RERUN_WINDOW_OF_LARGE
        self.windows = Windows(inc, costs, budget, team.backend, seed, window)
        self.best: Schedule | None = None
        """Of a narrower budget than the one asked: the best within it, rarely the incumbent."""


class Ledger:
    """The seconds spent on each side of the gap, and how fast they moved it of late."""

    def __init__(self) -> None:
        self.seconds: dict[Side, float] = {"bound": 0.0, "schedule": 0.0}
        self.rates: dict[Side, float] = {"bound": 1.0, "schedule": 1.0}
        """Of someone who has not tried for long, high."""

    def note(self, side: Side, moved: float, seconds: float) -> None:
        """`moved` is a share of keep-all's joules."""
        kept = RATE_MEMORY**seconds
        rate = kept * self.rates[side] + (1 - kept) * moved / seconds
        self.rates[side] = rate
        self.seconds[side] += seconds

    def seen(self, side: Side) -> float:
        """The rate without what it began with."""
        prior = RATE_MEMORY ** self.seconds[side]
        return (self.rates[side] - prior) / (1 - prior) if prior < 1 else 0.0


class Worker:
    """One worker. The first one leads: it opens, and tries the whole model. One raises the bound.

    Where transfers run beside compute, its tools know of time what it is worth (`steering`), and
    they are made anew when that is better known.
    """

    def __init__(self, team: Team, number: int = 0, *, leads: bool, proves: bool) -> None:
        inc = team.incumbent
        self.team, self.incumbent, self.number = team, inc, number
        self.leads, self.proves = leads, proves
        if proves:
            team.prover = self
        self.seed = next(team.seeds)
        work_limit = inc.effort.work_limit
        self.is_timed = work_limit is None
        self.pace: Pace = Timed(inc) if work_limit is None else Counted(inc, work_limit)
        self.round = 1
        self.idle_windows = 0
        self.ledger = Ledger()
        self.steered_by: TimePrices | None = None
        self.refresh()

    def refresh(self) -> None:
        """Make the tools, or make them anew if time has got another price."""
        inc = self.incumbent
        costs, budget, prices = inc.costs, inc.budget, None
        if budget.transfers == "overlap":
            prices = inc.time_prices or TimePrices(*[costs.idle_watts] * 3)  # as if in turns
            if prices == self.steered_by:
                return
            costs, budget = steered(costs, budget, prices)
        elif hasattr(self, "tools"):
            return
        self.steered_by = prices
        self.tools = Tools(self.team, costs, budget, self.seed)
        self.narrowed = self._narrowed(costs, budget)

    def standing(self, side: Side) -> float:
        """Where that side of the gap is, as a share of keep-all's joules."""
        best = self.incumbent.best
        if best is None or not best.joules:
            return 1.0
        moved = self.incumbent.bound_joules if side == "bound" else best.joules
        return moved / self.incumbent.keep_all_joules

    def around_best(self) -> Tools | None:
        """The narrowed tools whose budget the best schedule keeps to, if there are any."""
        best, costs = self.incumbent.best, self.incumbent.costs
        if best is None or not self.narrowed:
            return None
        runs = [step for step in best.schedule if isinstance(step, Compute)]
        variants = [costs.ops[step.op][step.variant] for step in runs]
        pages = any(isinstance(step, PageIn | PageOut) for step in best.schedule)
        pages = pages or any(run.reads or run.writes for run in variants)
        again = len(runs) > len(self.incumbent.graph.ops)

        def holds(tools: Tools) -> bool:
            return not (
                (pages and not tools.budget.paging) or (again and not tools.budget.recompute)
            )

        return next(filter(holds, self.narrowed), None)

    def _narrowed(self, costs: Costs, budget: Budget) -> tuple[Tools, ...]:
        """Tools that only recompute, or only page: smaller searches, sooner at their ends."""
        if not (budget.paging and budget.recompute) or self.tools.annealer is None:
            return ()
        budgets = [msgspec.structs.replace(budget, recompute=False)]
        if "store" not in budget.start.values():
            budgets.insert(0, msgspec.structs.replace(budget, paging=False))
        return tuple(Tools(self.team, costs, narrow, self.seed) for narrow in budgets)
