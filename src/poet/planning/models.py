"""Models: what the training step of a named model comes to, before any plan.

The step is captured with plain SGD, its updates inside, and replayed with everything kept in RAM.
"""

from math import prod

import msgspec

from poet.baselines.keep_all import keep_all
from poet.costs.analytic import analytic
from poet.devices import find_device
from poet.referee.replay import check
from poet.tracer.capture import graph_named
from poet.values.graph import Graph
from poet.values.optimizers import SGD
from poet.values.plan import draft
from poet.values.schedule import Budget, Effort, places

SMALL_BYTES = 4096
"""Up to this size a tensor is not worth counting."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A model in numbers. Bytes are those of one training step."""

    name: str
    parameters: int
    ops: int
    planning_tensors: int
    """Activations and gradients over 4 KB that a plan decides on."""
    parameter_bytes: int
    keep_all_bytes: int
    """The most RAM at once when nothing is freed before its last use, and nothing recomputed."""


def figures(text: str, cache: bool = True) -> Figures:
    """The figures of a model by name."""
    graph = graph_named(text, SGD(), cache=cache)
    owned = [graph.tensors[i] for i in graph.given if graph.tensors[i].role == "parameter"]
    return Figures(
        name=text,
        parameters=sum(prod(tensor.shape or ()) for tensor in owned),
        ops=len(graph.ops),
        planning_tensors=sum(
            tensor.nbytes > SMALL_BYTES and tensor.role in ("activation", "gradient")
            for tensor in graph.tensors
        ),
        parameter_bytes=sum(tensor.nbytes for tensor in owned),
        keep_all_bytes=keep_all_bytes(graph),
    )


def keep_all_bytes(graph: Graph) -> int:
    """The most RAM at once when everything is kept for as long as it is used."""
    costs = analytic(graph, find_device("laptop"))  # bytes do not depend on the board
    start, end = places(graph)
    budget = Budget(transfers="serial", start=start, end=end)
    solution = keep_all(graph, costs, budget, Effort())
    return check(draft(graph, costs, budget, solution.schedule)).peak_bytes
