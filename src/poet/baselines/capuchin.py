"""Capuchin: from the accesses of a step with everything kept, evict greedily until it fits.

Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS 2020. A step
is watched with everything kept. Between two accesses a tensor could be away; where the peak is, one
that is there without being used is chosen to be away, again and again, until the peak fits:

1. Swapped, if that hides: its free time, from the end of its page-out to when its page-in must
   begin, is not negative. The longest free time goes first.
2. Else remade, by most bytes saved per second of recomputation (MSPS), counted with what is away
   already; or swapped all the same where the wait per byte is less, or where it cannot be remade.

Seconds decide, as in the paper, and transfers are taken to run beside compute, whatever the budget
says of them; joules are only the outcome. The peak is estimated from the accesses, the referee says
what it really is, and the estimate's target is lowered by the difference until the referee accepts.
Both ways to treat what is remade on the way to another tensor are tried: hold it for its own next
access (their collective recomputation), or let it go. Page-ins stand right before their reader; the
paper's feedback loop over several steps, which moves them earlier, is left out.
"""

from collections.abc import Iterator
from functools import cache, partial
from itertools import accumulate, pairwise

import msgspec

from poet.baselines.judging import Attempt, cheapest
from poet.baselines.on_demand import OnDemand, Unobtainable, reach
from poet.referee.replay import check
from poet.values.device import PLAIN, Costs
from poet.values.graph import Graph
from poet.values.plan import draft
from poet.values.schedule import Budget, Effort, Schedule, Solution

_ROUNDS = 60


class Gap(msgspec.Struct, frozen=True):
    """Tensor `tensor` is accessed by op `after` and next by op `before`; not between."""

    tensor: int
    after: int
    before: int


class Eviction(msgspec.Struct, frozen=True):
    """A gap in which a tensor is away, and whether it comes back from the store."""

    gap: Gap
    swapped: bool


def capuchin(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    families = [_attempts(graph, costs, budget, collective) for collective in (True, False)]
    return cheapest(graph, costs, budget, effort, *families, pages=True, first_is_best=True)


def _attempts(graph: Graph, costs: Costs, budget: Budget, collective: bool) -> Iterator[Attempt]:
    """Schedules with more and more evictions."""
    policy = _Policy(graph, costs, budget)
    limit = target = budget.ram_bytes
    for _ in range(_ROUNDS):
        more = target is None or policy.evict_until(target)
        make = cache(partial(evicted, graph, costs, budget, tuple(policy.chosen), collective))
        yield f"with {len(policy.chosen)} tensors away between uses", make
        if not more or limit is None or target is None:
            return
        try:
            excess = check(draft(graph, costs, budget, make())).peak_bytes - limit
        except Unobtainable:
            return
        target -= max(excess // 2, limit // 200, 1)


def evicted(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    evictions: tuple[Eviction, ...],
    collective: bool = True,
) -> Schedule:
    """The step with these tensors away between those uses."""
    step = OnDemand(graph, costs, budget)
    last = [readers[-1] if readers else -1 for readers in graph.readers]
    swaps: dict[int, list[int]] = {}
    drops: dict[int, list[int]] = {}
    away: dict[int, list[Gap]] = {}
    for eviction in evictions:
        gap = eviction.gap
        (swaps if eviction.swapped else drops).setdefault(gap.after, []).append(gap.tensor)
        away.setdefault(gap.tensor, []).append(gap)
    step.page(swaps.get(-1, ()))
    for k, op in enumerate(graph.ops):
        step.run(k)
        remade = [i for run in step.runs[k][:-1] for i in graph.ops[run.op].outputs]
        dead = [i for i in (*op.inputs, *op.outputs, *remade) if last[i] <= k]
        step.forget(i for i in dead if i not in budget.end and graph.producer[i] is not None)
        if not collective:
            step.forget(i for i in remade if any(g.after < k < g.before for g in away.get(i, ())))
        step.page(swaps.get(k, ()))
        step.forget(drops.get(k, ()))
    return step.schedule()


class _Policy:
    """The accesses of a step with everything kept, and what has been chosen to be away."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget) -> None:
        self.graph, self.costs, self.budget = graph, costs, budget
        self.nbytes = [tensor.nbytes for tensor in graph.tensors]
        self.plain = [variants[PLAIN] for variants in costs.ops]
        self.starts = [0.0, *accumulate(run.seconds for run in self.plain)]
        self.lasting = reach(graph, budget).lasting
        self.first = [-1 if maker is None else maker for maker in graph.producer]
        count = len(graph.ops)
        self.pinned = frozenset(budget.pinned)
        self.last = [
            count if i in budget.end or i in self.pinned else readers[-1] if readers else first
            for i, (readers, first) in enumerate(zip(graph.readers, self.first, strict=True))
        ]
        self.profile = self._profile()
        self.gaps = self._gaps()
        self.away: dict[int, list[Eviction]] = {}
        self.chosen: list[Eviction] = []
        self.remake_seconds: dict[Gap, float] = {}
        for gap in [gap for gap in self.gaps if gap.after == -1]:
            if budget.start[gap.tensor] == "store":
                self._choose(gap, swapped=True)

    def _profile(self) -> list[int]:
        """RAM while each op runs, with everything kept from its making to its last use."""
        count = len(self.graph.ops)
        change = [0] * (count + 1)
        seated = {pair.output for op in self.graph.ops for pair in op.in_place}
        for i, nbytes in enumerate(self.nbytes):
            if i not in seated:  # else it takes over the bytes of what it consumes
                change[max(0, self.first[i])] += nbytes
            if self.graph.consumer[i] is None:
                change[min(count, self.last[i] + 1)] -= nbytes
        levels = list(accumulate(change[:count]))
        return [level + run.workspace_bytes for level, run in zip(levels, self.plain, strict=True)]

    def _gaps(self) -> list[Gap]:
        found = []
        for i, readers in enumerate(self.graph.readers):
            if i in self.pinned:
                continue
            uses = [self.first[i], *readers]
            if self.last[i] == len(self.graph.ops) and self.graph.consumer[i] is None:
                uses.append(len(self.graph.ops))
            found += [Gap(i, a, b) for a, b in pairwise(uses) if b > a + 1 and self.nbytes[i]]
        return found

    def evict_until(self, target: int) -> bool:
        """Choose until the estimated peak is at most `target`; false if nothing is left to do."""
        while True:
            peak = max(range(len(self.profile)), key=self.profile.__getitem__)
            if self.profile[peak] <= target:
                return True
            if not self._evict_at(peak):
                return False

    def _evict_at(self, peak: int) -> bool:
        there = [gap for gap in self.gaps if gap.after < peak < gap.before]
        hidden = [gap for gap in there if self._free_seconds(gap) >= 0 and self.budget.paging]
        if hidden:
            self._choose(max(hidden, key=self._free_seconds), swapped=True)
            return True
        ways = [
            (self._seconds_per_byte(gap, swapped), swapped, gap)
            for gap in there
            for swapped in (False, True)
            if (self.budget.paging if swapped else self._can_be_remade(gap))
        ]
        if not ways:
            return False
        _, swapped, gap = min(ways, key=lambda way: (way[0], way[1], way[2].tensor, way[2].after))
        self._choose(gap, swapped)
        return True

    def _choose(self, gap: Gap, swapped: bool) -> None:
        self.gaps.remove(gap)
        eviction = Eviction(gap, swapped)
        self.chosen.append(eviction)
        self.away.setdefault(gap.tensor, []).append(eviction)
        self.remake_seconds.clear()
        for k in range(gap.after + 1, gap.before):
            self.profile[k] -= self.nbytes[gap.tensor]

    def _free_seconds(self, gap: Gap) -> float:
        """From the end of the page-out to when the page-in must begin; negative if they collide."""
        price = self.costs.tensors[gap.tensor]
        stored = self.budget.start.get(gap.tensor, "ram") != "ram"
        begin = self.starts[gap.after + 1] + (0.0 if stored else price.out_seconds)
        return self.starts[gap.before] - begin - price.in_seconds

    def _can_be_remade(self, gap: Gap) -> bool:
        i = gap.tensor
        return self.graph.producer[i] is not None and i not in self.lasting

    def _seconds_per_byte(self, gap: Gap, swapped: bool) -> float:
        """The wait for each byte saved: the inverse of MSPS, or what a swap does not hide."""
        if swapped:
            seconds = -self._free_seconds(gap)
        else:
            if gap not in self.remake_seconds:
                self.remake_seconds[gap] = self._recompute_seconds(gap)
            seconds = self.remake_seconds[gap]
        return seconds / self.nbytes[gap.tensor]

    def _recompute_seconds(self, gap: Gap) -> float:
        """Of all ops that must run again to have the tensor at its next use."""
        ops: set[int] = set()
        asked = [gap.tensor]
        while asked:
            maker = self.graph.producer[asked.pop()]
            if maker is not None and maker not in ops:
                ops.add(maker)
                inputs = self.graph.ops[maker].inputs
                asked += [j for j in inputs if not self._there(j, gap.before)]
        return sum(self.plain[k].seconds for k in ops)

    def _there(self, i: int, at: int) -> bool:
        if self.graph.producer[i] is None or i in self.lasting:
            return True
        if self.last[i] < at:
            return False
        return not any(
            not e.swapped and e.gap.after < at < e.gap.before for e in self.away.get(i, ())
        )
