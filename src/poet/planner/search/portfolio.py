"""The planner: a schedule within seconds, then better ones and rising bounds until time is up.

Workers share one incumbent. Each asks the strategies of its portfolio in order, and the first that
is due does a step; so the two lists below are the whole plan of the search. By the clock there are
as many workers as threads; counted (`--work-limit`) there is one, so that the same question has the
same answer.

Whatever ends a search, a result, the clock, an error or Ctrl-C: when it returns, or raises, nothing
that it started runs any more.
"""

import threading
import time
from collections.abc import Callable

from poet.planner.incumbent import Best, CalledOff, Incumbent
from poet.planner.proof.floor import least_joules
from poet.planner.search.other_makers import OtherMakers
from poet.planner.search.proving import Helping, ProofByRate, ProofInTurn
from poet.planner.search.strategies import (
    Annealing,
    EndOfWork,
    LeanAnnealing,
    NarrowedAnnealing,
    NarrowedStart,
    Opening,
    PricedTime,
    Strategy,
    Waiting,
    WholeModel,
    WindowSearch,
)
from poet.planner.search.worker import Team, Worker
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import (
    Budget,
    Compute,
    Effort,
    Maker,
    Schedule,
    SearchInterrupted,
    Solution,
)

Portfolio = tuple[Callable[[Worker], Strategy], ...]

TIMED: Portfolio = (
    Opening,
    OtherMakers,
    ProofByRate,
    Helping,
    NarrowedStart,
    LeanAnnealing,
    WholeModel,
    PricedTime,
    NarrowedAnnealing,
    Annealing,
    WindowSearch,
    Waiting,
)
COUNTED: Portfolio = (
    Opening,
    OtherMakers,
    ProofInTurn,
    EndOfWork,
    LeanAnnealing,
    WholeModel,
    PricedTime,
    NarrowedAnnealing,
    Annealing,
    WindowSearch,
    Waiting,
)


def search(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    effort: Effort,
    starts: tuple[Schedule, ...] = (),
    makers: tuple[Maker, ...] = (),
) -> Solution:
    """The best schedule found, never worse than the best of `starts`, and a bound.

    `makers` are asked for more starts, in that order, where the graph is large.

    Ctrl-C with a schedule in hand raises `SearchInterrupted`, which brings it.
    """
    incumbent = Incumbent(graph, costs, budget, effort)
    incumbent.raise_bound(least_joules(costs), "certified")
    try:
        for start in (*starts, tuple(map(Compute, range(len(graph.ops))))):
            incumbent.offer(start)  # the last: every op once, which is best where everything fits
        incumbent.last_rejection = ""
        if not incumbent.finished:
            _improve(incumbent, makers)
    except KeyboardInterrupt:
        if incumbent.best is None:
            raise
        raise SearchInterrupted(_solution(incumbent, incumbent.best)) from None
    if incumbent.best is not None:
        return _solution(incumbent, incumbent.best)
    if incumbent.proven_infeasible:
        reason = "no schedule in this op order meets RAM and deadline together (certified)"
        return Solution(status="infeasible", reason=reason)
    reason = incumbent.last_rejection or "no schedule was found in the time given"
    return Solution(status="unknown", reason=reason)


def _solution(incumbent: Incumbent, best: Best) -> Solution:
    return Solution(
        status="feasible",
        schedule=best.schedule,
        bound_joules=min(incumbent.bound_joules, best.joules),
        bound_source=incumbent.bound_source,
        any_order_joules=incumbent.any_order_joules,
        first_seconds=incumbent.first_seconds,
        prices=incumbent.prices,
    )


def _improve(incumbent: Incumbent, makers: tuple[Maker, ...]) -> None:
    """All workers at once, until the gap is closed, time or work is over, or Ctrl-C."""
    crew = _Crew(Team(incumbent, makers))
    try:
        if incumbent.effort.work_limit is None:
            crew.work(incumbent.effort.threads, TIMED)
        else:
            crew.work(1, COUNTED)
    finally:
        crew.leave()
    if crew.errors:
        raise crew.errors[0]


def _work(worker: Worker, portfolio: Portfolio) -> None:
    """Ask the strategies in order; the first that is due does a step; again, until it is over."""
    strategies = [strategy(worker) for strategy in portfolio]
    while not worker.incumbent.finished:
        worker.refresh()
        due = next(strategy for strategy in strategies if strategy.is_due())
        side = due.side
        if side is None:
            due.step()
            continue
        before, started = worker.standing(side), time.monotonic()
        due.step()
        seconds = max(1e-3, time.monotonic() - started)
        worker.ledger.note(side, abs(worker.standing(side) - before), seconds)
        worker.round += side == "schedule"


class _Crew:
    """A thread a worker. The thread that asked does nothing but wait, so that it hears Ctrl-C."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def work(self, count: int, portfolio: Portfolio) -> None:
        for number in range(count):
            roles = (number, number == 0, number == count - 1)
            thread = threading.Thread(
                target=self._guarded,
                args=(portfolio, *roles),
                name=f"poet planner {number}",
                daemon=True,
            )
            self.threads.append(thread)
            thread.start()
        while not self.team.incumbent.finished and any(t.is_alive() for t in self.threads):
            time.sleep(0.02)

    def leave(self) -> None:
        """Call everyone off, and wait until all have left: a second Ctrl-C cannot hurry them."""
        interrupted: KeyboardInterrupt | None = None
        self.team.stop()
        for thread in self.threads:
            while thread.is_alive():
                try:
                    thread.join()
                except KeyboardInterrupt as again:
                    interrupted = again
        self.team.close()
        if interrupted is not None:
            raise interrupted

    def _guarded(self, portfolio: Portfolio, number: int, leads: bool, proves: bool) -> None:
        try:
            _work(Worker(self.team, number, leads=leads, proves=proves), portfolio)
        except CalledOff:
            pass
        except BaseException as error:
            self.errors.append(error)
            self.team.incumbent.stop()
