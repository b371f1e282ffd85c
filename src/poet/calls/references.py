"""References: the tensors and inner values that a call names, and whose memory those lie in.

Of a view nothing is asked but what it is a view of, which the graph says; where in that memory its
elements lie is for `operands` to find out.
"""

from collections.abc import Iterator
from typing import Any

from poet.values.graph import Call, Graph, Op

Reference = tuple[str, int]
"""`("tensor", 5)`, a tensor of the graph, or `("value", 2)`, an inner value of the op."""


def references(call: Call) -> Iterator[tuple[str, Reference]]:
    """The tensors and values in a call's arguments, each with the argument's name."""
    for name, argument in call.arguments.items():
        if isinstance(argument, dict | list | tuple):
            for reference in _references_in(argument):
                yield name, reference


def made_by(call: Call) -> Iterator[Reference]:
    """The tensors and values that a call makes, views included."""
    for result in call.results:
        if result is not None:
            yield from result.items()


def named_in(call: Call) -> Iterator[Reference]:
    """All that a call names: what it reads, and then what it makes."""
    for _, reference in references(call):
        yield reference
    yield from made_by(call)


def storage(op: Op, reference: Reference) -> Reference:
    """The tensor or value whose memory this one lies in: itself, where it is not a view."""
    key, target = reference
    while key == "value" and (view_of := op.values[target].view_of) is not None:
        ((key, target),) = view_of.items()
    return key, target


def storage_bytes(graph: Graph, op: Op, reference: Reference) -> int:
    """The bytes of the memory a tensor or value lies in."""
    key, target = storage(op, reference)
    return graph.tensors[target].nbytes if key == "tensor" else op.values[target].nbytes


def is_given(argument: Any) -> bool:
    """Whether an optional factor is there: a number other than 0, true, or a tensor."""
    return argument not in (None, 0, False)


def _references_in(argument: Any) -> Iterator[Reference]:
    if isinstance(argument, dict):
        for key in ("tensor", "value"):
            if key in argument:
                yield key, argument[key]
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _references_in(item)
