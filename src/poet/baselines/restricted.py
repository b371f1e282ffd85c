"""Restricted: the planner's own search with something forbidden.

What is proven of the restricted problem holds for it alone. Its bound is handed on only where the
budget asked forbids the same; else the reason says how near the schedule is to the best of its
kind, and that there is none is `unknown`, not `infeasible`.
"""

import msgspec

from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Schedule, Solution


def restricted(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    narrow: Budget,
    effort: Effort,
    kind: str,
    starts: tuple[Schedule, ...] = (),
) -> Solution:
    """The best that is found under `narrow`, which is `budget` with something forbidden."""
    from poet.planner.search.portfolio import (
        search,  # numpy, scipy and a solver: not for `poet --help`
    )

    solution = search(graph, costs, narrow, effort, starts)
    if narrow == budget:
        return solution
    if solution.status != "feasible":
        proven = solution.status == "infeasible"
        reason = f"there is no schedule with {kind}" if proven else solution.reason
        return Solution(status="unknown", reason=reason)
    bound = solution.bound_joules or 0.0
    return msgspec.structs.replace(
        solution,
        bound_joules=None,
        bound_source=None,
        prices=None,
        reason=f"with {kind} at least {bound:.6g} J are needed ({solution.bound_source})",
    )
