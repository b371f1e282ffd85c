"""Any order: the least joules over all schedules that the referee allows, for very few ops.

Says how much the stage structure costs: ops may run for the first time in any order their inputs
allow, again and again, and tensors may come and go at any time. Serial and free transfers only.
"""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget
from tests.unit.bit_masks import MAX_STATES, Problem, StateSpaceTooLarge, Stored, bits


class _Raw(NamedTuple):
    """A state between two instructions."""

    ran: int
    ram: int
    store: Stored


def best_joules_unrestricted(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    *,
    in_order: bool = False,
    most_states: int = MAX_STATES,
) -> float | None:
    """The least joules of all schedules that the referee allows, None if there is none.

    With `in_order` ops run for the first time in the graph's order, as in the stage structure.

    Uniform-cost search over instructions; what remains to be run for the first time is added as a
    bound. More in RAM never hurts: a tensor is freed only where a page-in or an op needs
    its bytes, and written at the last moment, when it is freed, streamed, or the step ends.
    """
    problem = Problem(graph, costs, budget)
    store = problem.put_in_store(problem.start_stored, Stored(0, 0, 0))
    if store is None or problem.size(problem.start_ram) > problem.ram_limit:
        return None
    done: dict[_Raw, list[tuple[float, float]]] = {}
    order, settled = count(), 0
    rest = [sum(least[at] for least in problem.least) for at in (0, 1)]
    heap: list[tuple[float, int, float, float, _Raw | None]] = [
        (rest[0], next(order), 0.0, 0.0, _Raw(0, problem.start_ram, store))
    ]
    while heap:
        _, _, joules, seconds, state = heapq.heappop(heap)
        if state is None:
            return joules
        ways = done.setdefault(state, [])
        if any(j <= joules and s <= seconds for j, s in ways):
            continue
        ways.append((joules, seconds))
        settled += 1
        if settled > most_states:
            raise StateSpaceTooLarge(f"{settled:,} ways without an end")
        for after, more_joules, more_seconds in _next_states(problem, state, in_order):
            ran = (1 << problem.count) - 1 if after is None else after.ran
            left = [least for k, least in enumerate(problem.least) if not ran >> k & 1]
            j, s = joules + more_joules, seconds + more_seconds
            if s + sum(least[1] for least in left) <= problem.deadline:
                bound = j + sum(least[0] for least in left)
                heapq.heappush(heap, (bound, next(order), j, s, after))
    return None


def _next_states(
    problem: Problem, state: _Raw, in_order: bool
) -> Iterator[tuple[_Raw | None, float, float]]:
    """All that one instruction can do, with the frees and page-outs it needs; None is the end."""
    budget, graph = problem.budget, problem.graph
    if state.ran == (1 << problem.count) - 1:
        yield from _raw_ends(problem, state)
    if budget.paging:
        for i in bits(state.store.stored & ~state.ram):
            for ram, store, joules, seconds in _make_room(problem, state, 0, problem.nbytes[i]):
                if store.stored >> i & 1:
                    extra = problem.page_in[i]
                    after = _Raw(state.ran, ram | 1 << i, store)
                    yield after, joules + extra[0], seconds + extra[1]
    for k, ways in enumerate(problem.ways):
        again = state.ran >> k & 1
        if again and not (budget.recompute and graph.ops[k].recomputable):
            continue
        if in_order and state.ran + 1 < 1 << k:
            continue
        for way in ways:
            if way.ram_inputs & ~state.ram or way.reads & ~(state.ram | state.store.stored):
                continue
            if not (way.arrivals & ~state.ram or way.writes & ~state.store.stored):
                continue
            for ram, store, joules, seconds in _make_room(
                problem, state, way.ram_inputs, way.extra_bytes, way.reads
            ):
                if way.reads & ~store.stored:
                    continue
                left = problem.put_in_store(
                    way.writes, store._replace(stored=store.stored & ~way.consumed)
                )
                if left is None:
                    continue
                after = _Raw(
                    state.ran | 1 << k,
                    ram & ~way.consumed | way.arrivals,
                    left._replace(barred=0),
                )
                yield after, joules + way.joules, seconds + way.seconds


def _make_room(
    problem: Problem, state: _Raw, needed: int, nbytes: int, streamed: int = 0
) -> Iterator[tuple[int, Stored, float, float]]:
    """Free the smallest sets that make room, each tensor written before or not."""
    excess = problem.size(state.ram) + nbytes - problem.ram_limit
    must = streamed & ~state.store.stored
    for evicted in problem.evictions(state.ram & ~needed, excess):
        may = evicted & ~state.store.stored & ~must if problem.budget.paging else 0
        for some in _subsets(may):
            store = problem.put_in_store(must | some, state.store)
            if store is not None:
                prices = [problem.page_out[i] for i in bits(must | some)]
                joules, seconds = sum(p[0] for p in prices), sum(p[1] for p in prices)
                yield state.ram & ~evicted, store._replace(barred=0), joules, seconds


def _subsets(mask: int) -> Iterator[int]:
    part = mask
    while part:
        yield part
        part = (part - 1) & mask
    yield 0


def _raw_ends(problem: Problem, state: _Raw) -> Iterator[tuple[None, float, float]]:
    more = (problem.end_store | problem.end_either & ~state.ram) & ~state.store.stored
    store = problem.put_in_store(more, state.store)
    if store is None or more & ~state.ram or (more and not problem.budget.paging):
        return
    if problem.end_ram & ~state.ram or problem.end_store & ~store.stored:
        return
    if not problem.end_either & ~(state.ram | store.stored):
        prices = [problem.page_out[i] for i in bits(more)]
        yield None, sum(p[0] for p in prices), sum(p[1] for p in prices)
