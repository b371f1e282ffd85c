"""Answers: what the model returns to its loss, found in the trace by who made and who reads it.

Traced calls remember the modules that they were made in. What a call of the model's makes, and a
call outside of it reads in the forward pass, is what the model returned. A model that computes its
loss itself has none that could be told.
"""

from collections.abc import Callable, Collection, Sequence

import torch

from poet.tracer.nodes import Node
from poet.tracer.step import MODEL
from poet.values.graph import Answer


def answers_of(
    nodes: Sequence[Node], backward: Collection[Node], tensor_of: Callable[[Node], int]
) -> dict[int, tuple[Answer, ...]]:
    """For each tensor that the model returns, or a piece of, which pieces."""
    found: dict[int, tuple[Answer, ...]] = {}
    returned = [
        node
        for node in nodes
        if node.op == "call_function"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and node not in backward
        and _is_models(node)
        and any(_is_outside(user) and user not in backward for user in node.users)
    ]
    for place, node in enumerate(returned):
        made, i = node.meta["val"], tensor_of(node)
        if made.is_conj() or made.is_neg():
            continue
        answer = Answer(
            place=place, shape=tuple(made.shape), strides=tuple(made.stride()),
            offset=int(made.storage_offset()),
        )  # fmt: skip
        found[i] = (*found.get(i, ()), answer)
    return found


def _is_models(node: Node) -> bool:
    return any(
        key == MODEL or key.startswith(f"{MODEL}.") for key in node.meta.get("nn_module_stack", {})
    )


def _is_outside(node: Node) -> bool:
    return node.op == "call_function" and "nn_module_stack" in node.meta and not _is_models(node)
