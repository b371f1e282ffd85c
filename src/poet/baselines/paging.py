"""Paging only, at its best: the planner's search with recomputation forbidden.

Every op runs once. What does not fit is written to the store, once, and loaded before its readers;
which tensors, and between which of their uses, is optimised. It starts from what greedy paging
finds.
"""

import msgspec

from poet.baselines.paging_greedy import paging_greedy
from poet.baselines.restricted import restricted
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Solution


def paging(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    if not budget.paging:
        return Solution(status="unknown", reason="the budget forbids paging")
    greedy = paging_greedy(graph, costs, budget, effort)
    starts = (greedy.schedule,) if greedy.status == "feasible" else ()
    narrow = msgspec.structs.replace(budget, recompute=False)
    return restricted(graph, costs, budget, narrow, effort, "nothing recomputed", starts)
