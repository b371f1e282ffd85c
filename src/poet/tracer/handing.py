"""Handing: where a step that ends in the model's outputs meets the loop that is the user's own.

The outputs are handed out as the model returns them, pieces of whatever storage they lie in. Their
gradients are handed in by one op in the middle of the step: the caller has all of them at once, and
keeps them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import PlainAOTOutput

from poet.errors import PoetError
from poet.tracer.arguments import dtype_text
from poet.tracer.layout import TANGENT, Piece
from poet.values.graph import Call, Op, Tensor


def leave_out_copies(graph: torch.fx.Graph) -> None:
    """The model's outputs are traced as copies of what it returns (`outputs`): take that."""
    output = graph.output_node()
    made: Any = output.args[0]
    output.args = (
        [
            node.args[0] if isinstance(about, PlainAOTOutput) else node
            for node, about in zip(made, output.meta["desc"], strict=True)
        ],
    )


def handed_in(tangents: Mapping[int, int]) -> Op:
    """The op that takes the gradients of outputs, tensors by the outputs' places."""
    return Op(
        name="the gradients of the outputs",
        phase="backward",
        outputs=tuple(tangents.values()),
        recomputable=False,
        calls=tuple(
            Call(kind=TANGENT, arguments={"output": place}, results=({"tensor": i},))
            for place, i in tangents.items()
        ),
    )


def piece_of(tensor: int, made: torch.Tensor, name: str) -> Piece:
    """What is seen of a tensor by `made`, as it was traced."""
    if made.is_conj() or made.is_neg():
        raise PoetError(f"{name} is conjugated or negated when it is read: use .resolve_conj()")
    return Piece(
        tensor=tensor,
        shape=tuple(made.shape),
        strides=tuple(made.stride()),
        offset=int(made.storage_offset()),
        dtype=dtype_text(made.dtype),
    )


def whole(tensor: int, about: Tensor) -> Piece:
    """All of a tensor."""
    assert about.shape is not None
    assert about.dtype is not None
    strides = about.strides or torch.empty(about.shape, device="meta").stride()
    return Piece(tensor=tensor, shape=about.shape, strides=tuple(strides), dtype=about.dtype)
