"""Torch's activation budget: which activations to save for backward is a knapsack.

PyTorch's `torch._functorch.config.activation_memory_budget` (its partitioner, since 2.4): a number
from 0 (save nothing that can be recomputed) to 1 (save what is wanted), and a 0/1 knapsack that
saves the activations with most recompute time within that share of the bytes. The rest is
recomputed in backward, each once, when it is first asked for, and held until its last use there.

Here what an activation is worth is the joules of its op; an op with several outputs is one item, as
a node is there. Which ones can be saved: all that would run again if nothing were saved. The
knapsack is solved by dynamic programming over bytes in 1,000 units, for all budgets at once; the
shares from 0 to 1 in steps of 1/40 are tried and the cheapest schedule that fits the RAM is taken.
Left out: that framework's fusion-aware min-cut, its list of ops it would rather not recompute, and
the reordering of backward.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from poet.baselines.chain import forward_count
from poet.baselines.judging import Attempt, cheapest
from poet.baselines.on_demand import OnDemand
from poet.values.device import PLAIN, Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Schedule, Solution

UNITS = 1_000
_SHARES = 40


def torch_budget(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    return cheapest(graph, costs, budget, effort, _attempts(graph, costs, budget))


def _attempts(graph: Graph, costs: Costs, budget: Budget) -> Iterator[Attempt]:
    items = _run_again(graph, costs, budget)
    nbytes = [sum(graph.tensors[i].nbytes for i in graph.ops[k].outputs) for k in items]
    values = [costs.ops[k][PLAIN].joules for k in items]
    everything = sum(nbytes)
    kept = set(range(forward_count(graph)))
    yield "with every activation saved", partial(save, graph, costs, budget, kept)
    knapsack = Knapsack(nbytes, values, everything)
    for share in reversed(range(_SHARES)):
        saved = {items[n] for n in knapsack.best(everything * share // _SHARES)}
        text = f"with {share / _SHARES:.0%} of the {everything:,} bytes of activations saved"
        yield text, partial(save, graph, costs, budget, kept.difference(items) | saved)


def _run_again(graph: Graph, costs: Costs, budget: Budget) -> list[int]:
    """The forward ops that run again when nothing is saved that can be recomputed."""
    step = OnDemand(graph, costs, budget)
    count = forward_count(graph)
    for k in range(count):
        step.run(k)
    step.forget(i for op in graph.ops[:count] for i in op.outputs)
    again: set[int] = set()
    for op in graph.ops[count:]:
        again |= step.recipe(i for i in op.inputs if _made_by_forward(graph, i, count))[1]
    return sorted(again)


def _made_by_forward(graph: Graph, i: int, count: int) -> bool:
    maker = graph.producer[i]
    return maker is not None and maker < count


def save(graph: Graph, costs: Costs, budget: Budget, saved: set[int]) -> Schedule:
    """Forward; forget what these ops did not make; backward, remaking what it asks for."""
    step = OnDemand(graph, costs, budget)
    count = forward_count(graph)
    for k in range(count):
        step.run(k)
    step.forget(i for k in range(count) if k not in saved for i in graph.ops[k].outputs)
    for k in range(count, len(graph.ops)):
        step.run(k)
    return step.schedule()


class Knapsack:
    """The most valuable items within any capacity up to `most`, by dynamic programming.

    Sizes are counted in units, each rounded up, so that what is chosen never exceeds the capacity;
    where `most` is at most `UNITS` a unit is one and the answer is exact.
    """

    def __init__(self, sizes: Sequence[int], values: Sequence[float], most: int) -> None:
        self.unit = max(1, -(-most // UNITS))
        self.sizes = [-(-size // self.unit) for size in sizes]
        width = most // self.unit + 1
        best = [0.0] * width
        self.taken: list[bytearray] = []
        for size, value in zip(self.sizes, values, strict=True):
            taken = bytearray(width)
            for room in range(width - 1, size - 1, -1):
                with_it = best[room - size] + value
                if with_it > best[room]:
                    best[room] = with_it
                    taken[room] = 1
            self.taken.append(taken)

    def best(self, capacity: int) -> list[int]:
        """The items to take."""
        room, chosen = capacity // self.unit, []
        for item in reversed(range(len(self.sizes))):
            if self.taken[item][room]:
                chosen.append(item)
                room -= self.sizes[item]
        return chosen
