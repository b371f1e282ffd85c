"""Judging: of the schedules a method proposes, the cheapest that the referee accepts.

Where a method's idea leaves a number open (segments, snapshots, a threshold), it proposes one
schedule for each value. `cheapest` has them replayed and, where none is valid, says how near they
came.
"""

import time
from collections.abc import Callable, Iterable

from poet.baselines.on_demand import Unobtainable
from poet.planner.search.prefetch import beside_compute
from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.plan import draft
from poet.values.schedule import Budget, Effort, Schedule, Solution

Attempt = tuple[str, Callable[[], Schedule]]
"""What is tried, in words that follow "even", and the making of it."""


def cheapest(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    effort: Effort,
    *families: Iterable[Attempt],
    pages: bool = False,
    first_is_best: bool = False,
) -> Solution:
    """The valid schedule of least joules; with `first_is_best`, of the first one of each family.

    `pages` says whether the method can page at all.
    """
    why = "" if pages and budget.paging else why_it_must_page(graph, budget)
    if why:
        return Solution(status="unknown", reason=why)
    jury = _Jury(graph, costs, budget, time.monotonic() + effort.time_limit_seconds)
    for attempts in families:
        for what, make in attempts:
            accepted = jury.hear(what, make)
            if jury.out_of_time or (accepted and first_is_best):
                break
    return jury.solution()


class _Jury:
    """What has been replayed so far."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget, deadline: float) -> None:
        self.graph, self.costs, self.budget, self.deadline = graph, costs, budget, deadline
        self.best: tuple[float, Schedule] | None = None
        self.nearest: tuple[int, str] | None = None
        self.missing = "there is nothing to try"
        self.broken = ""
        self.out_of_time = False

    def hear(self, what: str, make: Callable[[], Schedule]) -> bool:
        """Have one more schedule replayed; true if it is valid."""
        if self.out_of_time:
            return False
        try:
            schedule = make()
        except Unobtainable as why:
            self.missing = str(why)
            return False
        schedule, report = _replayed(self.graph, self.costs, self.budget, schedule)
        if report.violation is None:
            if self.best is None or report.joules < self.best[0]:
                self.best = (report.joules, schedule)
        elif report.violation.rule == "ram":
            if self.nearest is None or report.peak_bytes < self.nearest[0]:
                self.nearest = (report.peak_bytes, what)
        else:
            self.broken = report.violation.message
        self.out_of_time = time.monotonic() > self.deadline
        return report.violation is None

    def solution(self) -> Solution:
        if self.best is not None:
            return Solution(status="feasible", schedule=self.best[1])
        if self.broken:
            reason = self.broken
        elif self.nearest is not None:
            nbytes, what = self.nearest
            reason = f"needs {nbytes:,} bytes even {what}; the budget is {self.budget.ram_bytes:,}"
        else:
            reason = self.missing
        if self.out_of_time:
            reason += "; the time was over before all was tried"
        return Solution(status="unknown", reason=reason)


def _replayed(
    graph: Graph, costs: Costs, budget: Budget, schedule: Schedule
) -> tuple[Schedule, Report]:
    if budget.transfers == "overlap":
        return beside_compute(graph, costs, budget, schedule)
    return schedule, check(draft(graph, costs, budget, schedule))


def spread(most: int, count: int = 40) -> list[int]:
    """At most `count` whole numbers from 1 to `most`, closer together where they are small."""
    if most <= count:
        return list(range(1, most + 1))
    return sorted({round(most ** (at / (count - 1))) for at in range(count)})


def why_it_must_page(graph: Graph, budget: Budget) -> str:
    """Why a method that does not page has no schedule for this budget; empty if it may have one."""
    far = [
        i
        for i, place in budget.start.items()
        if place == "store" and (graph.readers[i] or budget.end.get(i) in ("ram", "both"))
    ]
    if far:
        return f"{_tensors(graph, far)} in the store at the start, and nothing is paged here"
    there = {i for i, p in budget.start.items() if p != "ram" and graph.consumer[i] is None}
    far = [i for i, place in budget.end.items() if place in ("store", "both") and i not in there]
    if far:
        return f"{_tensors(graph, far)} to be in the store at the end, and nothing is paged here"
    return ""


def _tensors(graph: Graph, ids: list[int]) -> str:
    nbytes = sum(graph.tensors[i].nbytes for i in ids)
    more, verb = (f" and {len(ids) - 1:,} more", "are") if len(ids) > 1 else ("", "is")
    return f"{graph.tensor_text(min(ids))}{more}, {nbytes:,} bytes, {verb}"
