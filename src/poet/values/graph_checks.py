"""What must hold of every graph: ids that exist, one producer a tensor, a topological order.

A graph runs these when it is made, so that everyone who holds one may rely on them.
"""

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poet.values.graph import Graph


def check_ids(graph: "Graph") -> None:
    count = len(graph.tensors)
    maker: dict[int, int] = {}
    for k, op in enumerate(graph.ops):
        for i in (*op.inputs, *op.outputs):
            if not 0 <= i < count:
                raise ValueError(
                    f"{graph.op_text(k)} names tensor {i}; the graph has tensors 0 to {count - 1}"
                )
        for i in op.outputs:
            if i in maker:
                raise ValueError(
                    f"{graph.tensor_text(i)} is made by both op {maker[i]} and op {k}; "
                    "a tensor is written once"
                )
            maker[i] = k


def check_order(graph: "Graph") -> None:
    consumed_by: dict[int, int] = {}
    for k, op in enumerate(graph.ops):
        for i in op.inputs:
            maker = graph.producer[i]
            if maker is not None and maker >= k:
                raise ValueError(_order_message(graph, k, i, maker))
            if i in consumed_by:
                raise ValueError(
                    f"{graph.op_text(k)} reads {graph.tensor_text(i)} after "
                    f"{graph.op_text(consumed_by[i])} consumed it"
                )
        for i in op.consumed:
            consumed_by[i] = k


def _order_message(graph: "Graph", k: int, i: int, maker: int) -> str:
    edges = {
        k: {m for i in op.inputs if (m := graph.producer[i]) is not None}
        for k, op in enumerate(graph.ops)
    }
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return "the ops form a cycle: " + " -> ".join(f"op {k}" for k in error.args[1])
    return (
        f"{graph.op_text(k)} reads {graph.tensor_text(i)}, which op {maker} makes later; "
        "list the ops in a topological order"
    )


def check_pairs(graph: "Graph") -> None:
    for k, op in enumerate(graph.ops):
        for pair in op.in_place:
            new, old = graph.tensors[pair.output].nbytes, graph.tensors[pair.input].nbytes
            if new != old:
                raise ValueError(
                    f"{graph.op_text(k)} writes {graph.tensor_text(pair.output)} of {new} bytes in "
                    f"place of {graph.tensor_text(pair.input)} of {old} bytes; they must be equal"
                )


def check_successors(graph: "Graph") -> None:
    heir: dict[int, int] = {}
    for i, tensor in enumerate(graph.tensors):
        old = tensor.becomes
        if old is None:
            continue
        if not 0 <= old < len(graph.tensors):
            raise ValueError(f"{graph.tensor_text(i)} becomes tensor {old}, which does not exist")
        if graph.producer[old] is not None or graph.producer[i] is None:
            raise ValueError(
                f"{graph.tensor_text(i)} becomes {graph.tensor_text(old)}: an op must make the "
                "first, and the second must exist when the step starts"
            )
        if old in heir:
            raise ValueError(
                f"tensors {heir[old]} and {i} both become {graph.tensor_text(old)}; one can"
            )
        if tensor.nbytes != graph.tensors[old].nbytes:
            raise ValueError(
                f"{graph.tensor_text(i)} of {tensor.nbytes} bytes becomes {graph.tensor_text(old)} "
                f"of {graph.tensors[old].nbytes} bytes; they must be equal"
            )
        heir[old] = i
