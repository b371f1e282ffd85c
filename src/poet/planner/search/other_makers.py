"""Other makers: what ways to a schedule without a search come to, as starts of this one.

On graphs of hundreds of ops and more the annealer needs long to what a simple rule finds at once.
On smaller ones it is ahead within a second or two, and asking takes hundredths of one.
"""

from typing import ClassVar

import msgspec

from poet.planner.search.worker import SMALL_OPS, Side, Worker

FROM_OPS = 100
"""By the clock, graphs of fewer ops are left to the annealer. By hand."""

MAKER_SHARE = 0.05
"""Of the time limit, for each of them. By hand: 3 s of the usual 60, where torch-budget takes 3.2 s
for 3,189 ops."""


class OtherMakers:
    """One maker a step, in the order given. By who leads."""

    side: ClassVar[Side | None] = None

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        budget, ops = worker.incumbent.budget, len(worker.incumbent.graph.ops)
        is_timed = worker.incumbent.effort.work_limit is None
        most = FROM_OPS if is_timed else SMALL_OPS
        is_asked = worker.leads and ops > most and budget.recompute
        self.makers = [*worker.team.makers] if is_asked and budget.ram_bytes is not None else []

    def is_due(self) -> bool:
        return bool(self.makers)

    def step(self) -> None:
        inc, maker = self.worker.incumbent, self.makers.pop(0)
        seconds = inc.remaining
        if inc.effort.work_limit is None:
            seconds = min(seconds, MAKER_SHARE * inc.effort.time_limit_seconds)
        effort = msgspec.structs.replace(inc.effort, time_limit_seconds=seconds, progress=None)
        solution = maker(inc.graph, inc.costs, inc.budget, effort)
        if solution.status == "feasible":
            inc.offer(solution.schedule)
            inc.last_rejection = ""
