"""Batches: whether a batch is what a step was captured for, and its tensors as the step wants."""

from typing import Any

import torch

from poet.errors import PoetError
from poet.tracer.arguments import dtype_named
from poet.tracer.layout import Layout
from poet.tracer.step import Example
from poet.values.graph import Graph, Tensor


def checked_batch(
    given: Example, example: Example, layout: Layout, graph: Graph
) -> tuple[torch.Tensor, ...]:
    """The tensors of a batch that is like the example; else an error says what is not."""
    if given.spec != example.spec or given.places != example.places:
        texts = [_shape_text(each.rebuilt(each.tensors)) for each in (given, example)]
        raise PoetError(f"the batch is {texts[0]}; the example was {texts[1]}")
    for place, i in layout.inputs.items():
        have, want = given.tensors[place], example.tensors[place]
        if have.shape != want.shape or have.dtype != want.dtype:
            raise PoetError(
                f"{graph.tensors[i].name} of the batch is {have.dtype} "
                f"{list(have.shape)}; the step was captured for {want.dtype} "
                f"{list(want.shape)}. Capture it again for this shape"
            )
    if repr(given.constants) != repr(example.constants):
        raise PoetError("the batch has other constants than the example: capture it again")
    return given.tensors


def laid_out(tensor: torch.Tensor, about: Tensor) -> torch.Tensor:
    """The tensor with its elements where the traced one had them: kernels and draws follow that."""
    wanted = about.strides or torch.empty(tensor.shape, device="meta").stride()
    if tensor.stride() == wanted or tensor.numel() <= 1:
        return tensor
    return torch.empty_strided(
        tensor.shape, wanted, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def _shape_text(batch: Any) -> str:
    if isinstance(batch, torch.Tensor):
        return f"{list(batch.shape)}"
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{name}: {_shape_text(x)}" for name, x in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return "(" + ", ".join(map(_shape_text, batch)) + ")"
    return repr(batch)


def tensor_from(content: bytes, about: Tensor) -> torch.Tensor:
    assert about.shape is not None
    dtype = dtype_named(about.dtype)
    flat = (
        torch.frombuffer(bytearray(content), dtype=dtype)
        if content
        else torch.empty(0, dtype=dtype)
    )
    return flat.as_strided(about.shape, about.strides) if about.strides else flat.view(about.shape)
