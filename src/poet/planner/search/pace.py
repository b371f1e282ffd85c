"""Pace: how much each step of the search may spend, by the clock or counted.

By the clock, steps take seconds, most of them shares of the time limit. Counted (`--work-limit`),
they take moves of the annealer and nodes of the solver, so that the same question has the same
answer on every machine; seconds then only end what would pass the time limit.
"""

from typing import NamedTuple, Protocol

from poet.planner.incumbent import Incumbent

FIRST_ANNEAL_SECONDS = 0.5
ANNEAL_SECONDS_PER_OP = 0.04
ANNEAL_SHARE = 0.3
YOUNG_SHARE, YOUNG_SECONDS = 0.45, 60.0
WINDOW_SECONDS = 4.0
WHOLE_SHARE = 0.15
YOUNG_ROUNDS = 4
ANNEAL_MOVES = 200_000
SOLVER_NODES = 20


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

    def anneal(self, round_number: int) -> Allowance:
        return Allowance(1e9, ANNEAL_MOVES)

    def window(self) -> Allowance:
        return Allowance(self.incumbent.remaining, SOLVER_NODES)

    def whole(self) -> Allowance:
        return Allowance(self.incumbent.remaining, SOLVER_NODES)
