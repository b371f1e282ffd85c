"""Chen's square root: cut the forward pass into segments of equal length, keep what crosses a cut.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016
(arXiv:1604.06174), section 4: with about √n segments, n steps need memory for √n states and the √n
tensors of one segment, at the price of one more forward pass. Each segment runs again once, when
backward reaches it.

The number of segments is the one free number; √n is right for equal sizes and no given budget. All
counts up to n are tried, or 40 spread over them, and the cheapest that fits is taken. One segment
is the step with everything kept.
"""

from collections.abc import Iterator
from functools import partial
from math import isqrt

from poet.baselines.chain import Cut, all_cuts, checkpointed
from poet.baselines.judging import Attempt, cheapest, spread
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Solution


def chen_sqrt(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    return cheapest(graph, costs, budget, effort, _attempts(graph, costs, budget))


def _attempts(graph: Graph, costs: Costs, budget: Budget) -> Iterator[Attempt]:
    make = partial(checkpointed, graph, costs, budget)
    yield "with one segment", partial(make, [])
    for name, cuts in all_cuts(graph):
        root = isqrt(len(cuts) + 1)
        counts = sorted({root, *spread(len(cuts) + 1)} - {1}, key=lambda n: abs(n - root))
        for count in counts:
            yield f"with {count} segments cut at {name}", partial(make, equal_cuts(cuts, count))


def equal_cuts(cuts: list[Cut], count: int) -> list[Cut]:
    """The cuts that leave `count` segments with as many possible cuts in each as can be."""
    steps = len(cuts) + 1
    return [cuts[at * steps // count - 1] for at in range(1, count)]
