"""Figures: what the training step of a named model comes to, before any plan.

The step is captured with plain SGD, its updates inside, and replayed with everything kept in RAM.
"""

from math import prod

import msgspec

from poet.planning.defaults import HERE
from poet.planning.problem import Problem, problem_of, read_problem
from poet.planning.question import terms
from poet.planning.residency import questions
from poet.values.graph import Graph

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
    graph = read_problem(text, "sgd", cache=cache).graph
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


def keep_all_bytes(step: Problem | Graph) -> int:
    """The most RAM at once when everything is kept for as long as it is used."""
    asked = terms(HERE, params="resident")  # bytes do not depend on the board
    return next(questions(problem_of(step), asked)).keep_all_bytes
