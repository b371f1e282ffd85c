"""The planner: a schedule within seconds, then better ones and rising bounds until time is up.

Workers share one incumbent. One of them raises the bound whenever that is worth its time; the
others, and it too when the bound has settled, improve the schedule: annealing from several seeds
first, then windows of the exact model around the best, with annealing again where windows find
nothing. With a `work_limit` everything is counted in moves and windows instead of seconds, on one
worker, so that the same question has the same answer.
"""

import itertools
import threading
import time
from contextlib import suppress

import msgspec

from poet.planner.backends import find_backend
from poet.planner.incumbent import Incumbent
from poet.planner.model.staged import from_schedule
from poet.planner.proof.bounds import Bounds
from poet.planner.proof.floor import least_joules
from poet.planner.search.anneal import Annealer
from poet.planner.search.windows import Windows
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Compute, Effort, Schedule, Solution

FIRST_ANNEAL_SECONDS = 0.5
ANNEAL_SECONDS_PER_OP = 0.04
ANNEAL_SHARE = 0.45
"""So much of the time goes to annealing before windows take over."""
WINDOW_SECONDS = 4.0
WINDOW_NODES = 20
MOVES = 200_000
WHOLE_WINDOWS = (4, 8, 16, 32)
OVERLAP_WAYS = ((1.0, True), (1.0, False), (0.95, True), (0.9, True), (0.8, True), (0.6, True))
"""Under overlap: so much of the RAM, with or without paging."""
WHOLE_SHARE = 0.15
WORKER = "poet planner"
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
        team = _Team(incumbent)
        try:
            team.work()
        except KeyboardInterrupt:
            incumbent.stop()
            if incumbent.best is None:
                raise
        finally:
            team.leave()
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


class _Team:
    """The workers on one problem."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        effort = incumbent.effort
        self.backend = find_backend(effort.solver)
        self.bounds = Bounds(incumbent, self.backend)
        self.bounding = threading.Lock()
        self.seeds = itertools.count(effort.seed)
        self.annealers: list[Annealer] = []
        self.whole_claimed = False
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def work(self) -> None:
        if self.incumbent.effort.work_limit is not None:
            self._counted(self.incumbent.effort.work_limit)
            return
        for number in range(self.incumbent.effort.threads):
            thread = threading.Thread(
                target=self._guarded, args=(number,), name=f"{WORKER} {number}", daemon=True
            )
            self.threads.append(thread)
            thread.start()
        while any(thread.is_alive() for thread in self.threads):
            if self.incumbent.finished:
                break
            time.sleep(0.02)

    def leave(self) -> None:
        """Call everyone off; whoever is deep inside a solver is not waited for."""
        self.incumbent.stop()
        for annealer in self.annealers:
            annealer.stop()
        patience = time.monotonic() + 0.3
        for thread in self.threads:
            thread.join(max(0.0, patience - time.monotonic()))
        if self.errors:
            raise self.errors[0]

    def claim_whole(self) -> bool:
        """One worker is enough to try the whole model."""
        claimed, self.whole_claimed = self.whole_claimed, True
        return not claimed

    def _guarded(self, number: int) -> None:
        try:
            self._worker(number)
        except BaseException as error:
            self.errors.append(error)
            self.incumbent.stop()

    def _worker(self, number: int) -> None:
        incumbent = self.incumbent
        improve = _Improver(self, next(self.seeds))
        if number == 0:
            improve.start()
        gains = {"bound": 1.0, "improve": 1.0}
        spent = {"bound": 0.0, "improve": 0.0}
        turn = 0
        while not incumbent.finished:
            turn += 1
            what = "bound" if self._bound_is_due(number, turn, gains, spent) else "improve"
            if what == "bound" and not self.bounding.acquire(blocking=False):
                what = "improve"
            before, started = self._standing(what), time.monotonic()
            if what == "bound":
                try:
                    self.bounds.step()
                finally:
                    self.bounding.release()
            else:
                improve.step()
            seconds = max(1e-3, time.monotonic() - started)
            rate = abs(self._standing(what) - before) / seconds
            gains[what] = 0.6 * gains[what] + 0.4 * rate
            spent[what] += seconds

    def _standing(self, what: str) -> float:
        """The side of the gap that this work moves, as a share of the joules."""
        best = self.incumbent.best
        if best is None or not best.joules:
            return 1.0
        moved = self.incumbent.bound_joules if what == "bound" else best.joules
        return moved / self.incumbent.keep_all_joules

    def _bound_is_due(
        self, number: int, turn: int, gains: dict[str, float], spent: dict[str, float]
    ) -> bool:
        """Climbing first, by the last worker; then whatever narrows the gap faster."""
        if self.bounds.done or (self.incumbent.best is None and turn <= 3):
            return False
        alone = self.incumbent.effort.threads == 1
        if not alone and number < self.incumbent.effort.threads - 1:
            return False
        if self.bounds.climbing:
            expected = self.bounds.spent_seconds + self.bounds.last_seconds
            return not alone or expected < 0.4 * self.incumbent.elapsed
        least = 1.0 if not alone else 0.5  # a tree may rest on a plateau long before it rises
        return spent["bound"] < least * spent["improve"] or gains["bound"] > gains["improve"]

    def _counted(self, work_limit: int) -> None:
        improve = _Improver(self, next(self.seeds), counted=True)
        improve.start()
        while self.bounds.climbing and not self.bounds.done and not self.incumbent.finished:
            self.bounds.step()
        for _ in range(work_limit):
            if self.incumbent.finished:
                return
            improve.step()
            if not self.bounds.done:
                self.bounds.step()


class _Improver:
    """One worker's way to better schedules.

    Where transfers overlap compute, a page-out holds its bytes into the next op and a page-in makes
    its reader wait, which neither the annealer nor the model knows; they are given less RAM, or no
    paging, until the referee accepts what they make.
    """

    def __init__(self, team: _Team, seed: int, counted: bool = False) -> None:
        self.team, self.incumbent, self.counted, self.seed = team, team.incumbent, counted, seed
        self.small = len(self.incumbent.graph.ops) <= 250
        overlap = self.incumbent.budget.transfers == "overlap"
        self.ways = list(OVERLAP_WAYS) if overlap else [(1.0, True)]
        self.rounds = 0
        self.idle_windows = 0
        self._go_on(*self.ways.pop(0))
        self.narrow = [] if overlap else self._narrowed()
        kinds: tuple[_Narrow | None, ...] = (*self.narrow, None)
        wholes = [(kind, window) for window in WHOLE_WINDOWS for kind in kinds]
        self.wholes = wholes if self.small and team.claim_whole() else []

    def _narrowed(self) -> "list[_Narrow]":
        """Annealers that only recompute, or only page: smaller searches, sooner at their ends."""
        budget = self.incumbent.budget
        if not (budget.paging and budget.recompute):
            return []
        made = []
        with suppress(RuntimeError):  # no compiler
            if "store" not in budget.start.values():
                made.append(_Narrow(self, msgspec.structs.replace(budget, paging=False)))
            made.append(_Narrow(self, msgspec.structs.replace(budget, recompute=False)))
        return made

    def _go_on(self, share: float, paging: bool) -> None:
        inc = self.incumbent
        budget = inc.budget
        if share < 1.0 and budget.ram_bytes is not None:
            budget = msgspec.structs.replace(budget, ram_bytes=int(share * budget.ram_bytes))
        if not paging:
            budget = msgspec.structs.replace(budget, paging=False)
        self.annealer: Annealer | None = None
        with suppress(RuntimeError):  # no compiler: windows alone must do
            self.annealer = Annealer(inc.graph, inc.costs, budget)
            self.team.annealers.append(self.annealer)
        window = 30 if self.small else 12
        self.windows = Windows(
            inc.graph, inc.costs, budget, self.team.backend, self.seed, window, inc.next_log
        )

    def _offered(self, taken: bool) -> None:
        """Under overlap: what the referee did not take is tried again another way."""
        if not taken and self.ways and self.incumbent.last_rejection:
            self.incumbent.last_rejection = ""
            self._go_on(*self.ways.pop(0))

    def start(self) -> None:
        if self.annealer is not None:
            self._offered(self.incumbent.offer(self.annealer.greedy()))

    def step(self) -> None:
        """One round: annealing while it is young or windows are stuck, else a window."""
        inc = self.incumbent
        young = inc.elapsed < min(ANNEAL_SHARE * inc.effort.time_limit_seconds, 60.0)
        if self.counted:
            young = self.rounds < 4
        self.rounds += 1
        best = inc.best
        if self.wholes and self.rounds > 2 and best is not None:
            self._whole(*self.wholes.pop(0))
        elif self.annealer is not None and (young or self.idle_windows >= 6 or best is None):
            self.idle_windows = 0
            self._anneal(young)
        elif best is not None and best.staged is not None:
            seconds = inc.remaining if self.counted else min(WINDOW_SECONDS, inc.remaining)
            found = self.windows.improve(
                best.staged, seconds, WINDOW_NODES if self.counted else None
            )
            self.idle_windows = 0 if inc.offer_staged(found) else self.idle_windows + 1
        elif self.annealer is None:
            time.sleep(0.05)
        else:
            self._anneal(young)

    def _whole(self, kind: "_Narrow | None", window: int) -> None:
        """All stages at once, with few recomputations: quick where there is room.

        Without paging, or with nothing else, the model is half as large and its answer often best.
        """
        inc = self.incumbent
        assert inc.best is not None
        seconds, nodes = min(WHOLE_SHARE * inc.effort.time_limit_seconds, inc.remaining), None
        if self.counted:
            seconds, nodes = inc.remaining, WINDOW_NODES
        windows, start = self.windows, inc.best.staged
        if kind is not None:
            windows, known = kind.windows, kind.best
            start = None if known is None else from_schedule(inc.graph, inc.costs, known)
        found, proven = windows.whole(start, window, seconds, nodes)
        inc.offer_staged(found)
        if not proven or (kind is not None and not kind.budget.recompute):
            self.wholes = [each for each in self.wholes if each[0] is not kind]

    def _anneal(self, young: bool) -> None:
        inc, annealer = self.incumbent, self.annealer
        assert annealer is not None
        long = ANNEAL_SECONDS_PER_OP * len(inc.graph.ops)
        long = max(1.0, min(long, 0.3 * inc.effort.time_limit_seconds))
        seconds = FIRST_ANNEAL_SECONDS if self.rounds == 1 else long
        seconds = max(0.05, min(seconds, inc.remaining))
        start: Schedule | None = inc.best.schedule if inc.best else None
        if young and self.rounds % 2 == 0:
            start = None
        narrow = None
        if self.narrow and (self.rounds + self.seed) % 3 == 2:
            self.narrow.append(self.narrow.pop(0))
            narrow = self.narrow[-1]
            annealer, start = narrow.annealer, narrow.best
        found = annealer.run(
            start,
            seconds=1e9 if self.counted else seconds,
            moves=MOVES if self.counted else None,
            seed=next(self.team.seeds),
        )
        if narrow is not None:
            narrow.best = found or narrow.best
            inc.offer(found)
            return
        self._offered(inc.offer(found))


class _Narrow:
    """An annealer with something forbidden, and the best that it has found."""

    def __init__(self, improver: _Improver, budget: Budget) -> None:
        inc, team = improver.incumbent, improver.team
        self.budget = budget
        self.annealer = Annealer(inc.graph, inc.costs, budget)
        team.annealers.append(self.annealer)
        self.windows = Windows(
            inc.graph, inc.costs, budget, team.backend, improver.seed, 30, inc.next_log
        )
        self.best: Schedule | None = None
