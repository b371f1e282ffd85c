"""Revolve: the binomial schedule that reverses a chain with few snapshots.

Griewank and Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000. To reverse l steps with s
snapshots (the start counts as one), run ahead to a middle state, keep it, reverse what comes after
it with s - 1, and then what comes before it with s again. The middle that is best splits l so that
the fewest steps are run:

    t(l, s) = r·l - C(s + r, s + 1), with r the least number for which C(s + r, s) >= l

steps are run ahead in all, the first pass but its last step included. Segments count alike, as in
the paper, whatever they cost. A segment's inner tensors are made when it is reversed and held until
they have been used; they come on top of the snapshots.

The largest s whose schedule fits is taken, for the better of two ways to cut (`chain`).
"""

from collections.abc import Iterator
from functools import cache, partial
from math import comb

from poet.baselines.chain import Chain, all_cuts, chain_of, checkpointed
from poet.baselines.judging import Attempt, cheapest, spread
from poet.baselines.on_demand import OnDemand
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Schedule, Solution

MOST_PASSES = 50
"""Fewer snapshots than would run the forward pass so often are not tried."""


def revolve(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    chains = [(name, chain_of(graph, cuts)) for name, cuts in all_cuts(graph)]
    kept = ("with every tensor kept", partial(checkpointed, graph, costs, budget, []))
    families = [_attempts(graph, costs, budget, name, chain) for name, chain in chains]
    return cheapest(graph, costs, budget, effort, [kept], *families, first_is_best=True)


def _attempts(
    graph: Graph, costs: Costs, budget: Budget, name: str, chain: Chain
) -> Iterator[Attempt]:
    for snapshots in reversed(spread(len(chain), 100)):
        if steps_ahead(len(chain), snapshots) <= MOST_PASSES * len(chain):
            text = f"with {snapshots} of {len(chain)} states at {name}"
            yield text, partial(reverse, graph, costs, budget, chain, snapshots)


@cache
def steps_ahead(steps: int, snapshots: int) -> int:
    """t(l, s): how many steps are run ahead to reverse `steps` of them."""
    sweeps = 0
    while comb(snapshots + sweeps, snapshots) < steps:
        sweeps += 1
    return sweeps * steps - comb(snapshots + sweeps, snapshots + 1) if sweeps else 0


@cache
def _middle(steps: int, snapshots: int) -> int:
    """How far to run ahead before the next snapshot."""
    if snapshots == 1:
        return steps - 1
    return min(
        range(1, steps),
        key=lambda m: m + steps_ahead(steps - m, snapshots - 1) + steps_ahead(m, snapshots),
    )


def reverse(graph: Graph, costs: Costs, budget: Budget, chain: Chain, snapshots: int) -> Schedule:
    """Forward and backward through the chain, with so many states held at a time."""
    step = OnDemand(graph, costs, budget)
    waiting = [(0, len(chain), snapshots)]
    while waiting:
        begin, end, left = waiting.pop()
        if end - begin <= 1:
            for k in (*chain[begin].ops, *chain[begin].undone_by):
                step.run(k)
            continue
        middle = begin + _middle(end - begin, left)
        for segment in chain[begin:middle]:
            for k in segment.ops:
                step.run(k)
        for segment in chain[begin:middle]:
            step.forget(i for i in segment.made if i not in chain[middle].entry)
        waiting += [(begin, middle, left), (middle, end, max(1, left - 1))]
    return step.schedule()
