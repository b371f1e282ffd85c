"""Checkmate: the best rematerialization, with nothing paged.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys
2020. The planner's search with paging forbidden. Same stages as the paper's integer program: stage
t ends with the first run of op t, and in it earlier ops run again in order, each at most once.
It differs in what is minimised, joules and not seconds; in counting an op's workspace, its several
outputs and in-place updates; and in how it is solved: annealing and windows of the program with
certified bounds, not one integer program and not its rounded relaxation.
"""

import msgspec

from poet.baselines.judging import why_it_must_page
from poet.baselines.restricted import restricted
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Solution


def checkmate(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    why = why_it_must_page(graph, budget)
    if why:
        return Solution(status="unknown", reason=why)
    narrow = msgspec.structs.replace(budget, paging=False)
    return restricted(graph, costs, budget, narrow, effort, "nothing paged")
