"""Keep all: what PyTorch does. Every tensor stays in RAM from its making to its last use.

Nothing is recomputed, and nothing is paged but what starts or must end in the store. RAM is not
looked at: whether the step fits is for the referee to say.

What others are measured against is `kept_all`: the same step so, whatever its limits.
"""

import msgspec

from poet.baselines.paging_greedy import page_through
from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.plan import draft
from poet.values.schedule import Budget, Effort, Solution


def keep_all(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    roomy = msgspec.structs.replace(budget, ram_bytes=None)
    return page_through(graph, costs, roomy)


def kept_all(graph: Graph, costs: Costs, budget: Budget) -> Report | None:
    """The step with everything kept and all limits lifted, as the referee replays it; None where
    even that is not allowed."""
    unlimited = msgspec.structs.replace(
        budget, ram_bytes=None, store_bytes=None, deadline_seconds=None
    )
    schedule = keep_all(graph, costs, unlimited, Effort()).schedule
    report = check(draft(graph, costs, unlimited, schedule))
    return report if report.valid else None
