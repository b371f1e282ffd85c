"""The planner: a schedule within seconds, then better ones and rising bounds until time is up.

Workers share one incumbent. Each asks the strategies of its portfolio in order, and the first that
is due does a step; so the two lists below are the whole plan of the search. By the clock there are
as many workers as threads; counted (`--work-limit`) there is one, so that the same question has the
same answer.
"""

import threading
import time
from collections.abc import Callable

from poet.planner.incumbent import Incumbent
from poet.planner.proof.floor import least_joules
from poet.planner.search.strategies import (
    Annealing,
    EndOfWork,
    NarrowedAnnealing,
    Opening,
    ProofByRate,
    ProofInTurn,
    Strategy,
    Waiting,
    WholeModel,
    WindowSearch,
)
from poet.planner.search.worker import Team, Worker
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Compute, Effort, Schedule, Solution

Portfolio = tuple[Callable[[Worker], Strategy], ...]

TIMED: Portfolio = (
    Opening,
    ProofByRate,
    WholeModel,
    NarrowedAnnealing,
    Annealing,
    WindowSearch,
    Waiting,
)
COUNTED: Portfolio = (
    Opening,
    ProofInTurn,
    EndOfWork,
    WholeModel,
    NarrowedAnnealing,
    Annealing,
    WindowSearch,
    Waiting,
)

THREAD_NAME = "poet planner"
"""The names of workers' threads begin with this."""


def search(
    graph: Graph, costs: Costs, budget: Budget, effort: Effort, starts: tuple[Schedule, ...] = ()
) -> Solution:
    """The best schedule found, never worse than the best of `starts`, and a bound."""
    incumbent = Incumbent(graph, costs, budget, effort)
    incumbent.raise_bound(least_joules(costs), "certified")
    for start in (*starts, tuple(map(Compute, range(len(graph.ops))))):
        incumbent.offer(start)  # the last: every op once, which is best where everything fits
    incumbent.last_rejection = ""
    if not incumbent.finished:
        _improve(incumbent)
    best = incumbent.best
    if best is not None:
        return Solution(
            status="feasible",
            schedule=best.schedule,
            bound_joules=min(incumbent.bound_joules, best.joules),
            bound_source=incumbent.bound_source,
            first_seconds=incumbent.first_seconds,
            prices=incumbent.prices,
        )
    if incumbent.proven_infeasible:
        reason = (
            "no schedule with stages in this op order meets RAM and deadline together (certified). "
            "Try a larger ram= or a later deadline=."
        )
        return Solution(status="infeasible", reason=reason)
    reason = incumbent.last_rejection or "no schedule was found in the time given"
    return Solution(status="unknown", reason=reason)


def _improve(incumbent: Incumbent) -> None:
    """All workers at once, until the gap is closed, time or work is over, or Ctrl-C."""
    threads = _Threads(Team(incumbent))
    try:
        if incumbent.effort.work_limit is None:
            threads.work(incumbent.effort.threads)
        else:
            _work(Worker(threads.team, leads=True, proves=True), COUNTED)
    except KeyboardInterrupt:
        incumbent.stop()
        if incumbent.best is None:
            raise
    finally:
        threads.leave()


def _work(worker: Worker, portfolio: Portfolio) -> None:
    """Ask the strategies in order; the first that is due does a step; again, until it is over."""
    strategies = [strategy(worker) for strategy in portfolio]
    while not worker.incumbent.finished:
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


class _Threads:
    """A thread a worker."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def work(self, count: int) -> None:
        for number in range(count):
            name = f"{THREAD_NAME} {number}"
            target, roles = self._guarded, (number == 0, number == count - 1)
            thread = threading.Thread(target=target, args=roles, name=name, daemon=True)
            self.threads.append(thread)
            thread.start()
        while any(thread.is_alive() for thread in self.threads):
            if self.team.incumbent.finished:
                break
            time.sleep(0.02)

    def leave(self) -> None:
        """Call everyone off; whoever is deep inside a solver is not waited for."""
        self.team.stop()
        patience = time.monotonic() + 0.3
        for thread in self.threads:
            thread.join(max(0.0, patience - time.monotonic()))
        if self.errors:
            raise self.errors[0]

    def _guarded(self, leads: bool, proves: bool) -> None:
        try:
            _work(Worker(self.team, leads=leads, proves=proves), TIMED)
        except BaseException as error:
            self.errors.append(error)
            self.team.incumbent.stop()
