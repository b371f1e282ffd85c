"""Cheap proofs: what no schedule can beat.

Each op must run once with its inputs and outputs in place, beside what is pinned then: that bounds
RAM from below (`memory_floor`). Running every op once, in its cheapest variant, bounds joules and
seconds (`least_joules`, `least_seconds`). All hold for any schedule the referee accepts.
"""

import msgspec

from poet.values.device import Costs, Run
from poet.values.graph import Graph, Op
from poet.values.schedule import Budget


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """No schedule uses fewer than `nbytes`; `cause` says what needs them."""

    nbytes: int
    cause: str


def working_set_bytes(graph: Graph, op: Op, run: Run, beside: frozenset[int] = frozenset()) -> int:
    """RAM that one first run of an op takes by itself: inputs, outputs, workspace; with the
    tensors that are there `beside`."""
    streamed_in = {stream.tensor for stream in run.reads}
    streamed_out = {stream.tensor for stream in run.writes}
    inputs = [i for i in op.inputs if i not in streamed_in]
    seated = {pair.output for pair in op.in_place if pair.input not in streamed_in}
    outputs = [i for i in op.outputs if i not in streamed_out and i not in seated]
    there = beside.union(inputs, outputs)
    return sum(graph.tensors[i].nbytes for i in there) + run.workspace_bytes


def pinned_beside(graph: Graph, budget: Budget) -> tuple[frozenset[int], ...]:
    """For each op the pinned tensors that are in RAM when it first runs, whatever the order of ops.

    Of those given at the start, those that nobody consumes always are. One that an op consumes is
    there for that op, for its other readers, and for all that these depend on; anything else may
    come after it is gone. One that is made, and not consumed, is there for all that depends on it
    or on what is made with it.
    """
    pinned = frozenset(i for i in budget.pinned if i in budget.start)
    lasting = frozenset(budget.pinned).difference(*(op.consumed for op in graph.ops))
    always = pinned & lasting
    made = _made_before(graph, lasting - pinned)
    beside = [always] * len(graph.ops)
    for k, op in reversed(list(enumerate(graph.ops))):
        later = (beside[reader] for i in op.outputs for reader in graph.readers[i])
        beside[k] = always.union(pinned.intersection(op.inputs), *later)
    return tuple(map(frozenset.union, beside, made))


def _made_before(graph: Graph, tensors: frozenset[int]) -> list[frozenset[int]]:
    """For each op those of the tensors that ops made which it depends on."""
    before: list[frozenset[int]] = []
    for op in graph.ops:
        makers = {k for i in op.inputs if (k := graph.producer[i]) is not None}
        found = (before[k] | tensors.intersection(graph.ops[k].outputs) for k in makers)
        before.append(frozenset[int]().union(*found))
    return before


def memory_floor(graph: Graph, costs: Costs, budget: Budget) -> Floor:
    """The largest of all ops' working sets and of what starts or ends in RAM together."""
    beside = pinned_beside(graph, budget)
    needs = [
        Floor(
            nbytes=min(
                working_set_bytes(graph, op, run, beside[k])
                for run in costs.ops[k].values()
                if budget.paging or not (run.reads or run.writes)
            ),
            cause=f"{op.name} ({op.phase})",
        )
        for k, op in enumerate(graph.ops)
    ]
    consumed = {i for op in graph.ops for i in op.consumed}
    for cause, places in (("the step's start", budget.start), ("the step's end", budget.end)):
        held = {i for i, place in places.items() if place in ("ram", "both")}
        ending = places is budget.end
        held.update(i for i in budget.pinned if i not in consumed and (ending or i in places))
        needs.append(Floor(nbytes=sum(graph.tensors[i].nbytes for i in held), cause=cause))
    return max(needs, key=lambda floor: floor.nbytes)


def least_seconds(costs: Costs) -> float:
    """No schedule takes less time, however transfers are counted."""
    return sum(min(run.seconds for run in variants.values()) for variants in costs.ops)


def least_joules(costs: Costs) -> float:
    """No schedule uses less energy."""
    compute = sum(
        min(run.joules + run.stream_joules for run in variants.values()) for variants in costs.ops
    )
    return compute + costs.idle_watts * least_seconds(costs)
