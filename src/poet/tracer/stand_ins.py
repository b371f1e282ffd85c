"""Stand-ins: tensors with shape, strides and type but no bytes, for a step that is not to run.

A trace looks at no number, so a step is captured from stand-ins as from the real thing: models that
are built under `torch.device("meta")` or a FakeTensorMode, and batches that are larger than this
machine. Meta tensors are taken for ones of the CPU, whose kernels the graph then names.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree

from poet.errors import PoetError

Made = TypeVar("Made")


def built_without_bytes(make: Callable[[], Made]) -> Made | None:
    """What a function makes, its tensors without bytes; None where it looks at their numbers."""
    try:
        with _new_mode():
            return make()
    except DataDependentOutputException:  # to draw truncated normal weights, for one
        return None


def is_without_bytes(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_meta


def lacks_bytes(model: nn.Module, example: Any) -> bool:
    """Whether any tensor of them is a stand-in."""
    leaves = [x for x in pytree.tree_leaves(example) if isinstance(x, torch.Tensor)]
    return any(map(is_without_bytes, (*model.parameters(), *model.buffers(), *leaves)))


def batch_size(example: Any) -> int | None:
    """The first extent of the example's first tensor that has any."""
    for leaf in pytree.tree_leaves(example):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return int(leaf.shape[0])
    return None


def with_batch(model: nn.Module, example: Any, batch: int | None = None) -> Any:
    """The example in stand-ins, with so many samples where it has one a row."""
    mode, before = _mode_of(model, example), batch_size(example)

    def stand_in(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = list(leaf.shape)
        if batch is not None and shape and shape[0] == before:
            shape[0] = batch
        if shape == list(leaf.shape):
            return _like(leaf, mode)
        with mode:
            made = torch.empty(shape, dtype=leaf.dtype, device=_device(leaf))
            if leaf.dim() == 4 and leaf.is_contiguous(memory_format=torch.channels_last):
                made = made.contiguous(memory_format=torch.channels_last)
            return made

    return pytree.tree_map(stand_in, dict(example) if hasattr(example, "keys") else example)


@contextlib.contextmanager
def parameters_stand_in(model: nn.Module, example: Any) -> Iterator[None]:
    """While this holds, meta tensors of the model are stand-ins of the CPU's."""
    mode = _mode_of(model, example)
    known: dict[int, torch.Tensor] = {}
    before: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    for module in model.modules():
        spaces: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for held in spaces:
            for name, value in held.items():
                if value is not None and value.is_meta and not isinstance(value, FakeTensor):
                    before.append((held, name, value))
    try:
        for held, name, value in before:
            if id(value) not in known:
                made = _like(value, mode)
                if isinstance(value, nn.Parameter):
                    made = nn.Parameter(made, requires_grad=value.requires_grad)
                known[id(value)] = made
            held[name] = known[id(value)]
        yield
    finally:
        for held, name, value in before:
            held[name] = value


def _new_mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def _mode_of(model: nn.Module, example: Any) -> FakeTensorMode:
    """The one that stand-ins are of already, if any are: they do not mix."""
    leaves = [*model.parameters(), *model.buffers(), *pytree.tree_leaves(example)]
    modes = {id(x.fake_mode): x.fake_mode for x in leaves if isinstance(x, FakeTensor)}
    if len(modes) > 1:
        raise PoetError(
            "the model and the example are fake tensors of two FakeTensorModes: use one"
        )
    return next(iter(modes.values()), None) or _new_mode()


def _like(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    with mode:
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_device(tensor)
        )


def _device(tensor: torch.Tensor) -> torch.device:
    return torch.device("cpu") if tensor.is_meta else tensor.device
