"""POFO: the best mix of recomputing and offloading on a chain, by dynamic programming.

Beaumont, Eyraud-Dubois and Shilova, "Efficient Combination of Rematerialization and Offloading for
Training DNNs", NeurIPS 2021. On a chain, going forward and back through a part of it is: hold the
tape of its first segment and deal with the rest; or run some segments, hold the state after them,
deal with the rest, and come back; in both cases tape and entry may be offloaded meanwhile. Without
paging what is left is the optimal rematerialization of chains ("rotor", the same authors, 2019).

How it differs: joules are minimised, not seconds, so a transfer has a price and need not hide;
there are no bandwidths over time, and transfers are as the budget counts them. A state may be
offloaded at any level of the recursion, not in the first pass alone. A chain is a graph's
articulation points, or its op boundaries, where a state may be several tensors (`chain`), at most
100 segments of it; memory is counted in 250 to 1,000 slots, rounded up. The table does not see
uses that reach beyond a segment. So it is read at several amounts of memory around the true one,
the referee says what fits, and the cheapest that does is taken.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from poet.baselines.chain import Chain, Cut, all_cuts, chain_of, checkpointed, tape_of
from poet.baselines.judging import Attempt, cheapest
from poet.baselines.on_demand import OnDemand
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Effort, Schedule, Solution

if TYPE_CHECKING:
    from poet.baselines.pofo_table import Visit

MAX_SEGMENTS = 100
MIN_SLOTS, MAX_SLOTS, SLOTS_TIMES_SEGMENTS = 250, 1_000, 25_000
_READINGS = 40
_OVER = 1.2
"""The table reaches so far beyond the memory there is: what it counts twice may still fit."""


def pofo(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    kept = ("with everything kept", partial(checkpointed, graph, costs, budget, []))
    families = [_attempts(graph, costs, budget, name, cuts) for name, cuts in all_cuts(graph)]
    return cheapest(graph, costs, budget, effort, [kept], *families, pages=True)


def _attempts(
    graph: Graph, costs: Costs, budget: Budget, name: str, cuts: list[Cut]
) -> Iterator[Attempt]:
    from poet.baselines.pofo_table import Table, measure  # numpy: not for `poet --help`

    if budget.ram_bytes is None:
        return
    chain = chain_of(graph, few_cuts(graph, cuts))
    held = sum(graph.tensors[i].nbytes for i, place in budget.start.items() if place != "store")
    free_bytes = max(0, budget.ram_bytes - held)
    fineness = min(MAX_SLOTS, max(MIN_SLOTS, SLOTS_TIMES_SEGMENTS // len(chain)))
    slot_bytes = max(1, -(-free_bytes // fineness))
    slots = int(_OVER * free_bytes / slot_bytes)
    measures = measure(graph, costs, budget, chain)
    table = Table(measures, slot_bytes, slots, budget.paging)
    known = set()
    enough = [free for free in range(slots + 1) if table.whole_joules(free) < inf]
    for free in enough[:: -max(1, len(enough) // _READINGS)] + enough[:1]:
        visits = table.visits(free)
        if visits not in known:
            known.add(visits)
            for holding in (True, False):
                make = partial(follow, graph, costs, budget, chain, visits, holding)
                yield f"with {len(chain)} segments cut at {name}", make


def few_cuts(graph: Graph, cuts: list[Cut]) -> list[Cut]:
    """At most one less than `MAX_SEGMENTS`: of cuts close to each other the smallest state."""
    if len(cuts) < MAX_SEGMENTS:
        return cuts
    edges = [at * len(cuts) // (MAX_SEGMENTS - 1) for at in range(MAX_SEGMENTS)]
    return [
        min(cuts[a:b], key=lambda cut: sum(graph.tensors[i].nbytes for i in cut.state))
        for a, b in pairwise(edges)
    ]


def follow(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    chain: Chain,
    visits: "tuple[Visit, ...]",
    holding: bool,
) -> Schedule:
    """The schedule of the table's choices. With `holding`, the state behind a part that was dealt
    with stays until it was used, instead of being remade as the table has it."""
    step = OnDemand(graph, costs, budget)

    def run(ops: "range | tuple[int, ...]") -> None:
        for k in ops:
            step.run(k)
        step.forget(budget.start)  # of these only what is in the store

    for visit in visits:
        s, t, choice = visit.first, visit.last, visit.choice
        if s > t:  # the rest has been dealt with: the tape is undone
            run(chain[s].undone_by)
            continue
        if not holding and t < len(chain) - 1:
            step.forget(i for i in chain[t + 1].entry if i in chain[t].made)
        if choice is None:
            run(chain[s].ops)
            run(chain[s].undone_by)
            continue
        rest = chain[choice.rest].entry
        for segment in chain[s : choice.rest]:
            run(segment.ops)
        if not choice.tape:
            for segment in chain[s : choice.rest]:
                step.forget(i for i in segment.made if i not in rest)
        elif choice.tape_paged:
            step.page(i for i in tape_of(graph, chain[s]) if i not in rest)
        if choice.entry_paged:
            step.page(i for i in chain[s].entry if i not in rest)
    return step.schedule()
