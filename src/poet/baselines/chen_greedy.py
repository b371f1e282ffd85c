"""Chen's greedy: cut the forward pass whenever the bytes since the last cut pass a threshold.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016
(arXiv:1604.06174), algorithm 3: walk through the forward pass, add up what is made, and cut at the
next possible place when the sum exceeds b. Segments then have about equal bytes, where the square
root has equal lengths. Each runs again once, when backward reaches it.

The paper searches for the b of least memory around a first guess. Here up to 40 thresholds, from
the largest tensor to the whole forward pass in equal ratios, are tried, and the cheapest schedule
that fits the budget is taken.
"""

from collections.abc import Iterator
from functools import partial

from poet.baselines.chain import Cut, all_cuts, checkpointed, forward_count
from poet.baselines.judging import Attempt, cheapest
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Solution

_THRESHOLDS = 40


def chen_greedy(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    return cheapest(graph, costs, budget, effort, _attempts(graph, costs, budget))


def _attempts(graph: Graph, costs: Costs, budget: Budget) -> Iterator[Attempt]:
    make = partial(checkpointed, graph, costs, budget)
    yield "with one segment", partial(make, [])
    made = [
        sum(graph.tensors[i].nbytes for i in op.outputs) for op in graph.ops[: forward_count(graph)]
    ]
    least, most = max(1, max(made, default=1)), max(1, sum(made))
    for name, cuts in all_cuts(graph):
        known = []
        for at in range(_THRESHOLDS):
            threshold_bytes = round(least * (most / least) ** (at / _THRESHOLDS))
            chosen = cuts_at(cuts, made, threshold_bytes)
            if chosen and chosen not in known:
                known.append(chosen)
                text = f"with a cut at {name} every {threshold_bytes:,} bytes"
                yield text, partial(make, chosen)


def cuts_at(cuts: list[Cut], made_bytes: list[int], threshold_bytes: int) -> list[Cut]:
    """The first possible cut each time more than the threshold was made since the last."""
    chosen, since, done = [], 0, 0
    for cut in cuts:
        since += sum(made_bytes[done : cut.after + 1])
        done = cut.after + 1
        if since > threshold_bytes:
            chosen.append(cut)
            since = 0
    return chosen
