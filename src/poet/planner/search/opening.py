"""The opening by itself: the planner's first schedule, without the search that follows.

It takes milliseconds, and is the same every time, as long as the time limit does not cut it off.
"""

from poet.planner.incumbent import Incumbent
from poet.planner.search.anneal import Annealer
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Solution


def opening(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    """The annealer's greedy start, if the referee accepts it."""
    incumbent = Incumbent(graph, costs, budget, effort)
    try:
        incumbent.offer(Annealer(graph, costs, budget).greedy(effort.time_limit_seconds))
    except RuntimeError as error:  # no compiler
        return Solution(status="unknown", reason=str(error))
    if incumbent.best is None:
        return Solution(status="unknown", reason="greedy choices pass a limit")
    return Solution(status="feasible", schedule=incumbent.best.schedule)
