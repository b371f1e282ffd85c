"""Step: model, example and loss as one module from the example's tensors to the scalar loss."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from poet.errors import PoetError
from poet.tracer.ways import Asked

PLAIN = (
    torch.Tensor, bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype,
    torch.device, torch.Size, torch.layout, torch.memory_format, slice,
)  # fmt: skip
MODEL = "model"
"""The name under which the user's module is known inside the step."""


class Example(NamedTuple):
    """An example in pieces: its tensors, and how they, and the constants, make it up again."""

    tensors: tuple[torch.Tensor, ...]
    constants: tuple[Any, ...]
    """One for each leaf: a constant, or None where a tensor goes."""
    places: tuple[int | None, ...]
    """For each leaf which of the tensors goes there, or None for a constant."""
    spec: pytree.TreeSpec
    trained: tuple[bool, ...] = ()
    """For each tensor, where the step gives out gradients of its inputs, whether it has one."""

    def rebuilt(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """The example with other tensors in it."""
        leaves = [
            constant if place is None else tensors[place]
            for place, constant in zip(self.places, self.constants, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.spec)


def take_apart(example: Any) -> Example:
    """Tensors and constants of an example: a tuple or list for positions, a dict for keywords."""
    if isinstance(example, torch.Tensor):
        example = (example,)
    elif isinstance(example, list):
        example = tuple(example)
    elif isinstance(example, Mapping):
        example = dict(example)
    if not isinstance(example, tuple | dict) or not example:
        empty = isinstance(example, tuple | dict)
        raise PoetError(
            "the example must be a tuple (*inputs, target), or a dict of keyword arguments for the "
            f"model; this one is {'empty' if empty else f'of type {type(example).__name__}'}"
        )
    leaves, spec = pytree.tree_flatten(example)
    is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    for leaf in leaves:
        check_leaf(leaf)
    numbers = itertools.count()
    return Example(
        tensors=tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)),
        constants=tuple(None if here else x for here, x in zip(is_tensor, leaves, strict=True)),
        places=tuple(next(numbers) if here else None for here in is_tensor),
        spec=spec,
    )


def check_leaf(leaf: Any) -> None:
    """A constant becomes part of the captured step, so it must be told apart from every other."""
    if isinstance(leaf, PLAIN):
        return
    kind = type(leaf)
    what = f"a {kind.__module__}.{kind.__qualname__}".replace("a builtins.", "a ")
    hint = "Give tensors and plain values"
    if kind.__module__ == "numpy":
        what, hint = f"a NumPy {kind.__name__}", "Give torch.from_numpy(x), or torch.as_tensor(x)"
    raise PoetError(f"the batch holds {what}, neither a tensor nor a plain value. {hint}")


class Step(nn.Module):
    """Model and loss as one module from the example's tensors to the scalar loss."""

    ends_in_loss = True

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        example: Example,
        autocast: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.example = example
        self.autocast = autocast
        self.in_loss = False
        self.rewind: Callable[[], None] | None = None
        """Called before each pass of a trace."""
        self.asked: Asked | None = None
        """What it asks its batch, if it was traced for the answers of its example."""

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        if self.rewind is not None:
            self.rewind()
        example = self.example.rebuilt(tensors)
        if self.autocast is None:
            return self._loss_of(example)
        kind = next((t.device.type for t in self.model.parameters()), "cpu")
        with torch.autocast(kind, self.autocast):
            return self._loss_of(example)

    def taken_apart(self, batch: Any) -> Example:
        """A batch of this step in pieces."""
        return take_apart(batch)

    def traced_tensors(self) -> tuple[torch.Tensor, ...]:
        """Stand-ins for the example's tensors: two that share memory would be traced as one."""
        return tuple(tensor.clone() for tensor in self.example.tensors)

    def owned_parameters(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Each parameter as traced, as people know it, and itself; tied ones under every name."""
        for name, value in self.named_parameters(remove_duplicate=False):
            yield name, known_name(name), value

    def owned_buffers(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        for name, value in self.named_buffers(remove_duplicate=False):
            yield name, known_name(name), value

    def _loss_of(self, example: Any) -> torch.Tensor:
        if self.loss is None:
            made = self.model(**example) if isinstance(example, dict) else self.model(*example)
            return checked_loss(_own_loss(made), "the model")
        if isinstance(example, dict):
            raise PoetError(
                "a dict example goes to the model as keyword arguments, and its result must be the "
                "loss: give loss_fn=None, or a tuple (*inputs, target)"
            )
        self.in_loss = False
        made = self.model(*example[:-1])
        self.in_loss = True
        return checked_loss(self.loss(made, example[-1]), "the loss")


def known_name(traced: str) -> str:
    """What people call a parameter or buffer of the step."""
    owner, _, name = traced.partition(".")
    return name if owner == MODEL else f"loss_fn.{name}"


def checked_loss(loss: Any, who: str) -> torch.Tensor:
    """The loss, if it is one: a floating-point tensor of one element with a gradient."""
    if not isinstance(loss, torch.Tensor):
        raise PoetError(
            f"{who} returned {_kind_text(loss)} instead of a scalar tensor. Give "
            "loss_fn=a function of (model output, target), or return the loss from the model"
        )
    if loss.numel() != 1:
        raise PoetError(
            f"{who} returned a tensor of shape {list(loss.shape)}; training needs a scalar: reduce "
            'it with .mean() or .sum(), or use reduction="mean"'
        )
    if not loss.is_floating_point():
        raise PoetError(f"{who} returned {loss.dtype}; training needs a floating-point loss")
    if not loss.requires_grad:
        raise PoetError(
            f"what {who} returned depends on no trainable parameter: is something under "
            "torch.no_grad(), or detached?"
        )
    return loss


def _own_loss(made: Any) -> Any:
    """The loss in what a model returns: `.loss`, `["loss"]`, or the thing itself."""
    if isinstance(made, torch.Tensor):
        return made
    loss = made.get("loss") if isinstance(made, dict) else getattr(made, "loss", None)
    if loss is None and isinstance(made, tuple | list) and made:
        first = made[0]  # (loss, scores, …), as some models return it
        if isinstance(first, torch.Tensor) and first.numel() == 1:
            return first
    return made if loss is None else loss


def _kind_text(thing: Any) -> str:
    if isinstance(thing, dict):
        return f"a {type(thing).__name__} with {', '.join(map(str, list(thing)[:6])) or 'nothing'}"
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {len(thing)}"
    return "nothing" if thing is None else f"a {type(thing).__name__}"
