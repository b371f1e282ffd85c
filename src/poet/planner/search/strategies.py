"""Strategies: the ways to a better schedule or a higher bound, each with the same two questions.

`is_due` says whether it is this one's turn, `step` does one step of it. A worker asks them in the
order of its portfolio (portfolio.py), and the first that is due does its step.
"""

import itertools
import time
from typing import ClassVar, Protocol

import msgspec

from poet.planner.incumbent import Leaning
from poet.planner.model.stages import Stages, core_in_model
from poet.planner.search.worker import SMALL_OPS, Side, Tools, Worker
from poet.referee.replay import check
from poet.values.plan import draft
from poet.values.schedule import Schedule

WHOLE_WINDOWS = (4, 8, 16, 32)
"""Solved out within seconds where RAM is not scarce, and then often best (006)."""
NARROW_EVERY = 3
"""Every so many rounds, that is a third: then two of three go on from the incumbent. What it is for
is measured (006: baselines ahead of POET in 130 comparisons without, in 20 with); how often was
chosen by hand, tried at 2 and 6."""
FIRST_NARROW_SHARE = 0.08
"""Of the time limit, for each of these runs at the start. ResNet-18 on a TX2 in 54.5 MB, 5 s:
before, 0.3 % behind what one second without paging finds; with them within 0.02 % (030)."""
BINDING = 0.97
"""A best schedule that takes so much of the deadline, or none at all, and time gets a price. By
hand: what is far from its deadline is not held back by it."""
HURRIED_SECONDS = 2.0
"""For a run at one price while there is no schedule in time. By hand."""
FIRST_PRICE, PRICE_STEP, PRICE_TRIALS = 0.2, 4.0, 9
"""Watts for each second, as a share of keep-all's mean; by how much it grows or falls until one
price is too low and another high enough; and how often it is bisected. Of the prices tried on
resnet18_cifar-a72 (docs/decisions/022) 0.2 was best."""
LEAN_TRIALS, LEAN_SECONDS = 2, 1.0
"""So often annealing starts from what a relaxation leans to, and again while that helps; so long is
every other of them at most. By hand: long ones find more, and short ones stay in the relaxation's
valley as often (docs/decisions/023)."""
AFRESH_OPS = 1_000
"""Of more ops the annealer's own start is far from what other makers find, and it takes longer than
the time there is to come back (docs/decisions/024)."""
MOST_IDLE_WINDOWS = 6
"""So many windows without a gain, and annealing has a turn. By hand, tried at 3 and 12."""
MOST_IDLE_WINDOWS_BESIDE = 1
"""The same where windows cannot start from the best schedule, and work on another."""


class Strategy(Protocol):
    side: ClassVar[Side | None]
    """What its steps move; None for a step that is no round of the search."""

    def is_due(self) -> bool: ...

    def step(self) -> None: ...


class Opening:
    """A first schedule, within milliseconds: the annealer's greedy start. Once, by who leads."""

    side: ClassVar[Side | None] = None

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.is_open = not worker.leads or worker.tools.annealer is None

    def is_due(self) -> bool:
        return not self.is_open

    def step(self) -> None:
        self.is_open = True
        assert self.worker.tools.annealer is not None
        seconds = self.worker.pace.opening()
        self.worker.incumbent.offer(self.worker.tools.annealer.greedy(seconds))


class EndOfWork:
    """Stop, when the counted rounds have been made."""

    side: ClassVar[Side | None] = None

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def is_due(self) -> bool:
        return self.worker.pace.is_over(self.worker.round)

    def step(self) -> None:
        self.worker.incumbent.stop()


class WholeModel:
    """All stages at once, with few recomputations: quick where there is room. By who leads.

    Windows of recomputation grow while the model is solved out. Without paging, or with nothing
    else, it is half as large and its answer often best, so the narrowed budgets are asked too.
    """

    side: ClassVar[Side | None] = "schedule"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        kinds: tuple[int | None, ...] = (*range(len(worker.narrowed)), None)  # None: the one asked
        small = len(worker.incumbent.graph.ops) <= SMALL_OPS
        self.questions = [
            (kind, window) for window in WHOLE_WINDOWS for kind in kinds if worker.leads and small
        ]

    def is_due(self) -> bool:
        worker = self.worker
        return bool(self.questions) and worker.round > 2 and worker.incumbent.best is not None

    def step(self) -> None:
        inc, (kind, window) = self.worker.incumbent, self.questions.pop(0)
        tools, start = self.worker.tools, inc.core
        if kind is not None:
            tools, start = self.worker.narrowed[kind], None
            if tools.best is not None:
                start = core_in_model(Stages(inc.graph, tools.budget), inc.costs, tools.best)
        found, proven = tools.windows.whole(start, window, *self.worker.pace.whole())
        inc.offer_staged(found)
        if not proven or (kind is not None and not tools.budget.recompute):
            self.questions = [question for question in self.questions if question[0] is not kind]


def _annealing_is_due(worker: Worker) -> bool:
    """While the search is young, windows are stuck, or there is nothing for windows to start at."""
    inc = worker.incumbent
    most_idle = MOST_IDLE_WINDOWS if inc.best_is_in_model else MOST_IDLE_WINDOWS_BESIDE
    return worker.tools.annealer is not None and (
        inc.core is None or worker.pace.is_young(worker.round) or worker.idle_windows >= most_idle
    )


class NarrowedAnnealing:
    """Annealing with paging, or recomputation, forbidden: smaller searches, taking turns.

    Each goes on from its own best, since the incumbent is mostly outside of its budget.
    """

    side: ClassVar[Side | None] = "schedule"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.turns = itertools.count()

    def is_due(self) -> bool:
        worker = self.worker
        turn = (worker.round + worker.seed) % NARROW_EVERY == NARROW_EVERY - 1
        return turn and bool(worker.narrowed) and _annealing_is_due(worker)

    def step(self) -> None:
        worker = self.worker
        worker.idle_windows = 0
        self.anneal(worker.narrowed[next(self.turns) % len(worker.narrowed)], 1e9)

    def anneal(self, tools: Tools, most_seconds: float) -> None:
        worker, best = self.worker, self.worker.incumbent.best
        assert tools.annealer is not None
        if worker.is_timed and best is not None and tools is worker.around_best():
            tools.best = best.schedule
        seconds, moves = worker.pace.anneal(worker.round)
        seconds, seed = min(seconds, most_seconds), next(worker.team.seeds)
        found = tools.annealer.run(tools.best, seconds=seconds, moves=moves, seed=seed)
        tools.best = found or tools.best
        worker.incumbent.offer(found)


class NarrowedStart(NarrowedAnnealing):
    """The same by the clock, before the rest: each for a moment, since what they find is soon
    found, and then a long run of the one whose best is the best of all. By who leads."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.short = list(worker.narrowed) if worker.leads and worker.is_timed else []
        self.has_long = bool(self.short)

    def is_due(self) -> bool:
        worker = self.worker
        is_left = bool(self.short) or (self.has_long and worker.around_best() is not None)
        return is_left and worker.round > 1 and _annealing_is_due(worker)

    def step(self) -> None:
        if self.short:
            most = FIRST_NARROW_SHARE * self.worker.incumbent.effort.time_limit_seconds
            self.anneal(self.short.pop(0), most)
            return
        self.has_long = False
        tools = self.worker.around_best()
        assert tools is not None
        self.anneal(tools, 1e9)


class PricedTime:
    """Annealing without the deadline, with a price for every second instead.

    A deadline is a wall that a search cannot look over; a price is a slope. The price is bisected:
    higher where the schedule found is late, lower where it is early. What is in time is offered.
    """

    side: ClassVar[Side | None] = "schedule"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        inc = worker.incumbent
        seconds = inc.costs.keep_all_seconds
        self.mean_watts = inc.keep_all_joules / seconds if seconds else 0.0
        is_timed = inc.budget.deadline_seconds is not None and inc.budget.transfers != "overlap"
        self.trials = PRICE_TRIALS if is_timed and self.mean_watts else 0
        self.price = FIRST_PRICE * (1 + worker.seed % 3)
        self.too_low, self.enough, self.step_by = 0.0, 0.0, PRICE_STEP
        self.best: Schedule | None = None

    def is_due(self) -> bool:
        worker, inc = self.worker, self.worker.incumbent
        if not self.trials or not _annealing_is_due(worker):
            return False
        if inc.best is None:  # nothing in time: the price is all that leads there
            return worker.round > 1
        assert inc.budget.deadline_seconds is not None
        is_late = inc.best.seconds > BINDING * inc.budget.deadline_seconds
        return worker.round % 2 == 0 and is_late

    def step(self) -> None:
        worker, inc = self.worker, self.worker.incumbent
        if not (self.too_low or self.enough) and inc.time_prices and inc.time_prices.compute:
            self.price = inc.time_prices.compute / self.mean_watts  # what the relaxation says
            self.step_by = PRICE_STEP**0.5
        self.trials -= 1
        worker.idle_windows = 0
        watts = inc.costs.idle_watts + self.price * self.mean_watts
        costs = msgspec.structs.replace(inc.costs, idle_watts=watts)
        budget = msgspec.structs.replace(inc.budget, deadline_seconds=None)
        annealer = worker.team.annealer(costs, budget)
        seconds, moves = worker.pace.anneal(worker.round)
        if inc.best is None:
            seconds = min(seconds, HURRIED_SECONDS)
        seed = next(worker.team.seeds)
        found = annealer.run(self.best, seconds=seconds, moves=moves, seed=seed)
        if found is None:
            self.trials = 0
            return
        self.best = found
        if not self.trials and inc.best is not None:  # again, around what was enough
            self.trials, self.too_low, self.enough = PRICE_TRIALS, 0.0, 0.0
            self.step_by = PRICE_STEP**0.25
        inc.offer(found)
        report = check(draft(inc.graph, inc.costs, budget, found))
        assert inc.budget.deadline_seconds is not None
        self._judge(is_late=report.seconds > inc.budget.deadline_seconds)

    def _judge(self, is_late: bool) -> None:
        if is_late:
            self.too_low = self.price
        else:
            self.enough = self.price
        if self.too_low and self.enough:
            self.price = (self.too_low * self.enough) ** 0.5
        else:
            self.price *= self.step_by if is_late else 1 / self.step_by


class LeanAnnealing:
    """Annealing from what the relaxation leans to, without heating it up, while it is new."""

    side: ClassVar[Side | None] = None  # a start, not a round

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.known: Leaning | None = None
        self.trials = 0

    def is_due(self) -> bool:
        leaning = self.worker.incumbent.leaning
        if leaning is None or self.worker.tools.annealer is None:
            return False
        if leaning is not self.known:
            self.known, self.trials = leaning, LEAN_TRIALS
        return self.trials > 0

    def step(self) -> None:
        worker, annealer = self.worker, self.worker.tools.annealer
        assert annealer is not None
        assert self.known is not None
        self.trials -= 1
        seconds, moves = worker.pace.anneal(worker.round)
        seed = next(worker.team.seeds)
        keep, load = self.known
        if self.trials % 2:  # the first of two is short
            seconds = min(seconds, LEAN_SECONDS)
        elif worker.is_timed:
            tools = worker.around_best() or worker.tools
            annealer = tools.annealer or annealer
        found = annealer.lean(keep, load, seconds=seconds, moves=moves, seed=seed)
        if worker.incumbent.offer(found):
            self.trials += 1


class Annealing:
    """Annealing from the incumbent; every other time while young from its own greedy start, and
    later from what the relaxation leans to: valleys are a matter of luck."""

    side: ClassVar[Side | None] = "schedule"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.turns = 0

    def is_due(self) -> bool:
        return _annealing_is_due(self.worker)

    def step(self) -> None:
        worker = self.worker
        worker.idle_windows = 0
        best, annealer = worker.incumbent.best, worker.tools.annealer
        assert annealer is not None
        small = len(worker.incumbent.graph.ops) <= AFRESH_OPS
        afresh = small and worker.pace.is_young(worker.round) and worker.round % 2 == 0
        start = None if afresh or best is None else best.schedule
        seconds, moves = worker.pace.anneal(worker.round)
        inc, seed = worker.incumbent, next(worker.team.seeds)
        leaning = inc.deeper or inc.leaning
        self.turns += 1
        if not afresh and leaning is not None and self.turns % 2 == 0:
            found = annealer.lean(*leaning, seconds=seconds, moves=moves, seed=seed)
        else:
            if not afresh and worker.is_timed and self.turns % 4 == 1:
                tools = worker.around_best() or worker.tools
                annealer = tools.annealer or annealer
            found = annealer.run(start, seconds=seconds, moves=moves, seed=seed)
        inc.offer(found)


class WindowSearch:
    """Small exact models around the incumbent: the last tenths of a percent."""

    side: ClassVar[Side | None] = "schedule"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.turns = 0

    def is_due(self) -> bool:
        return self.worker.incumbent.core is not None

    def step(self) -> None:
        worker, core = self.worker, self.worker.incumbent.core
        assert core is not None
        self.turns += 1
        tools = worker.tools
        if worker.is_timed and self.turns % 2 and worker.incumbent.best_is_in_model:
            tools = worker.around_best() or tools
        found = tools.windows.improve(core, *worker.pace.window())
        worker.idle_windows = 0 if worker.incumbent.offer_staged(found) else worker.idle_windows + 1


class Waiting:
    """Nothing to start from and no annealer: another worker, or the proof, may bring something."""

    side: ClassVar[Side | None] = "schedule"

    def __init__(self, worker: Worker) -> None:
        pass

    def is_due(self) -> bool:
        return True

    def step(self) -> None:
        time.sleep(0.05)
