"""Cheap proofs: what no schedule can beat.

Each op must run once with its inputs and outputs in place, so its working set bounds RAM from below
(`memory_floor`); and running every op once, in its cheapest variant, bounds joules and seconds
(`least_joules`, `least_seconds`). All hold for any schedule the referee accepts.
"""

import msgspec

from poet.values.device import Costs, Run
from poet.values.graph import Graph, Op
from poet.values.schedule import Budget


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """No schedule uses fewer than `nbytes`; `cause` says what needs them."""

    nbytes: int
    cause: str


def working_set_bytes(graph: Graph, op: Op, run: Run) -> int:
    """RAM that one first run of an op takes by itself: inputs, outputs, workspace."""
    streamed_in = {stream.tensor for stream in run.reads}
    streamed_out = {stream.tensor for stream in run.writes}
    inputs = [i for i in op.inputs if i not in streamed_in]
    seated = {pair.output for pair in op.in_place if pair.input not in streamed_in}
    outputs = [i for i in op.outputs if i not in streamed_out and i not in seated]
    return sum(graph.tensors[i].nbytes for i in (*inputs, *outputs)) + run.workspace_bytes


def memory_floor(graph: Graph, costs: Costs, budget: Budget) -> Floor:
    """The largest of all ops' working sets and of what starts or ends in RAM together."""
    needs = [
        Floor(
            nbytes=min(
                working_set_bytes(graph, op, run)
                for run in costs.ops[k].values()
                if budget.paging or not (run.reads or run.writes)
            ),
            cause=f"{op.name} ({op.phase})",
        )
        for k, op in enumerate(graph.ops)
    ]
    for cause, places in (("the step's start", budget.start), ("the step's end", budget.end)):
        held = [i for i, place in places.items() if place in ("ram", "both")]
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
