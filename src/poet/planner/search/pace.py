"""Pace: how much each step of the search may spend, by the clock or counted.

By the clock, steps take seconds, most of them shares of the time limit. Counted (`--work-limit`),
they take moves of the annealer and nodes of the solver, so that the same question has the same
answer on every machine; seconds then only end what would pass the time limit.

Where a number was "tried at" others, docs/decisions/006 (006 below) says with what result.
"""

from typing import NamedTuple, Protocol

from poet.planner.incumbent import Incumbent
from poet.planner.search.anneal import GREEDY_SECONDS

FIRST_ANNEAL_SECONDS = 0.5
"""With a first run this short the gap was below 5 % within a second on all 16 questions of 006."""
ANNEAL_SECONDS_PER_OP = 0.04
"""Long runs beat short ones: bert-m4 (195 ops) at 60 MB came to 111.70 % of keep-all with 3 s a run
and to 111.40 with 8 (006)."""
ANNEAL_SHARE = 0.3
"""Of the time limit, at most, so that three runs fit. Chosen by hand, tried at 0.15 and 0.6."""
YOUNG_SHARE, YOUNG_SECONDS = 0.45, 60.0
"""So long annealing comes first; the rest is for windows, which find the last tenths of a percent
(006). Chosen by hand, the share tried at 0.22 and 0.8."""
WINDOW_SECONDS = 4.0
"""A window that is not solved by then makes the next ones smaller. Chosen by hand, tried at 1.5 and
8."""
WHOLE_SHARE = 0.15
"""9 s of the usual 60: where RAM is not scarce the whole model takes 2 to 5 s (006), and where it
is scarce it is not solved out anyway. Tried at 0.07 and 0.3."""

YOUNG_ROUNDS, ANNEAL_MOVES, SOLVER_NODES = 4, 200_000, 20
"""What a counted round is. By hand: a fraction of a second of annealing at some hundred ops (006),
or some seconds of a model. Other numbers would do, but would change every counted answer."""


class Allowance(NamedTuple):
    """What one step may spend. `work`: moves of the annealer, or nodes of the solver."""

    seconds: float
    work: int | None


class Pace(Protocol):
    """Rounds are steps that look for schedules; each worker counts its own, from 1."""

    def is_young(self, round_number: int) -> bool:
        """Whether annealing still comes before windows."""
        ...

    def is_over(self, round_number: int) -> bool: ...

    def opening(self) -> float:
        """Seconds for the greedy start."""
        ...

    def anneal(self, round_number: int) -> Allowance: ...

    def window(self) -> Allowance: ...

    def whole(self) -> Allowance: ...


class Timed:
    """The clock decides."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.limit = incumbent.effort.time_limit_seconds

    def is_young(self, round_number: int) -> bool:
        return self.incumbent.elapsed < min(YOUNG_SHARE * self.limit, YOUNG_SECONDS)

    def is_over(self, round_number: int) -> bool:
        return False  # the incumbent knows when time is up

    def opening(self) -> float:
        return GREEDY_SECONDS

    def anneal(self, round_number: int) -> Allowance:
        long = min(ANNEAL_SECONDS_PER_OP * len(self.incumbent.graph.ops), ANNEAL_SHARE * self.limit)
        seconds = FIRST_ANNEAL_SECONDS if round_number == 1 else max(1.0, long)
        return Allowance(max(0.05, min(seconds, self.incumbent.remaining)), None)

    def window(self) -> Allowance:
        return Allowance(min(WINDOW_SECONDS, self.incumbent.remaining), None)

    def whole(self) -> Allowance:
        return Allowance(min(WHOLE_SHARE * self.limit, self.incumbent.remaining), None)


class Counted:
    """Rounds, moves and nodes decide: as many rounds as the work limit says."""

    def __init__(self, incumbent: Incumbent, work_limit: int) -> None:
        self.incumbent, self.work_limit = incumbent, work_limit

    def is_young(self, round_number: int) -> bool:
        return round_number <= YOUNG_ROUNDS

    def is_over(self, round_number: int) -> bool:
        return round_number > self.work_limit

    def opening(self) -> float:
        return self.incumbent.remaining

    def anneal(self, round_number: int) -> Allowance:
        return Allowance(1e9, ANNEAL_MOVES)

    def window(self) -> Allowance:
        return Allowance(self.incumbent.remaining, SOLVER_NODES)

    def whole(self) -> Allowance:
        return Allowance(self.incumbent.remaining, SOLVER_NODES)
