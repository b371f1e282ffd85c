"""What the zoo hands on, and which part of it is trained. Needs no torch to be imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn


class Task(NamedTuple):
    """A model in train mode, an example batch for it, and the loss.

    With a loss, `example` is `(*inputs, target)` and the step is `loss(model(*inputs), target)`.
    Without, `example` holds the model's keyword arguments and the loss is `.loss` of its result.
    """

    model: nn.Module
    example: tuple[Tensor, ...] | dict[str, Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] | None


def train_only(part: str, model: nn.Module, head: nn.Module) -> None:
    """`all` of the model gets gradients, or its `head` alone (the last layer)."""
    model.requires_grad_(part == "all")
    head.requires_grad_(True)
