"""Literal stages: brute force without shortcuts, for graphs of two or three ops.

Every decision of the formulation is tried where its §2 places it: what is kept between stages, what
is taken of a run's outputs, what is dropped right after a producer or reader, and what is written
right after its first production. Slow; it is there to check the late decisions of brute_force.
"""

from collections.abc import Iterator

from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget
from tests.unit.bit_masks import Problem, Stored, Way, bits, mask_of

Amounts = list[tuple[float, float]]
Literal = dict[tuple[int, Stored, int], Amounts]


def literal_joules(graph: Graph, costs: Costs, budget: Budget) -> float | None:
    """The least joules of all stage-structured schedules, None if there is none."""
    problem = Problem(graph, costs, budget)
    store = problem.put_in_store(problem.start_stored, Stored(0, 0, 0))
    if store is None or problem.size(problem.start_ram) > problem.ram_limit:
        return None
    layer: Literal = {}
    for writes in subsets(problem.start_ram & ~problem.start_stored if budget.paging else 0):
        if (left := problem.put_in_store(writes, store)) is not None:
            amounts = prices(problem.page_out, writes)
            note(layer, (problem.start_ram, left._replace(barred=0), 0), [amounts], (0.0, 0.0))
    for stage in range(problem.count):
        gone = mask_of(i for op in graph.ops[:stage] for i in op.consumed)
        kept: Literal = {}
        for (ram, store, _), amounts_so_far in layer.items():
            for some in subsets(ram & ~problem.pinned):
                keep = some | ram & problem.pinned
                note(kept, (keep, store, keep), amounts_so_far, (0.0, 0.0))
        layer = kept
        for k, op in enumerate(graph.ops[: stage + 1]):
            first = k == stage
            again = budget.recompute and op.recomputable and not mask_of(op.inputs) & gone
            if first or again:
                after: Literal = {} if first else {s: list(known) for s, known in layer.items()}
                for (ram, store, sourced), known in layer.items():
                    for way in problem.ways[k]:
                        for state, added in literal_runs(
                            problem, way, ram, store, sourced, gone, first
                        ):
                            note(after, state, known, added)
                layer = after
    return min(
        (
            joules
            for (ram, store, _), known in layer.items()
            if not problem.end_ram & ~ram | problem.end_store & ~store.stored
            and not problem.end_either & ~(ram | store.stored)
            for joules, seconds in known
            if seconds <= problem.deadline
        ),
        default=None,
    )


def literal_runs(
    problem: Problem, way: Way, ram: int, store: Stored, sourced: int, gone: int, first: bool
) -> Iterator[tuple[tuple[int, Stored, int], tuple[float, float]]]:
    loads = way.ram_inputs & ~ram
    if loads & sourced or (loads | way.reads) & ~store.stored:
        return
    if (loads and not problem.budget.paging) or (
        problem.size(ram | loads) + way.extra_bytes > problem.ram_limit
    ):
        return
    missing = way.arrivals & ~ram
    streamed = problem.put_in_store(way.writes, store._replace(stored=store.stored & ~way.consumed))
    if streamed is None or not missing | way.writes & ~store.stored:
        return
    loaded = prices(problem.page_in, loads)
    single = len(problem.graph.ops[way.op].outputs) == 1
    for taken in subsets(missing & ~sourced & ~gone):
        if single and taken != missing:
            continue
        resident = (ram | loads) & ~way.consumed | taken
        for writes in subsets(way.arrivals if first and problem.budget.paging else 0):
            left = problem.put_in_store(writes, streamed)
            if left is None:
                continue
            left = left._replace(stored=left.stored & ~gone, barred=0)
            written = prices(problem.page_out, writes)
            added = tuple(map(sum, zip(loaded, written, (way.joules, way.seconds), strict=True)))
            touched = way.ram_inputs | way.reads | way.arrivals
            for dropped in subsets(touched & resident & ~problem.pinned):
                yield (resident & ~dropped, left, sourced | loads | taken), (added[0], added[1])


def subsets(mask: int) -> Iterator[int]:
    part = mask
    while part:
        yield part
        part = (part - 1) & mask
    yield 0


def prices(table: Amounts, mask: int) -> tuple[float, float]:
    return sum(table[i][0] for i in bits(mask)), sum(table[i][1] for i in bits(mask))


def note(
    layer: Literal, state: tuple[int, Stored, int], before: Amounts, added: tuple[float, float]
) -> None:
    known = layer.setdefault(state, [])
    for joules, seconds in ((j + added[0], s + added[1]) for j, s in before):
        if not any(j <= joules and s <= seconds for j, s in known):
            known[:] = [(j, s) for j, s in known if j < joules or s < seconds]
            known.append((joules, seconds))
