"""What an entry of the list says."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Loss = Callable[..., Any]


class Network(NamedTuple):
    """A network that a person would bring, how it is trained, and what a batch looks like.

    `make` gives a new model and its loss, which is None where the model gives it itself; `batch`
    draws what a step is given.
    """

    name: str
    task: str
    make: Callable[[], tuple[torch.nn.Module, Loss | None]]
    batch: Callable[[], tuple[Tensor, ...]]
    optimizer: str = "sgd?momentum=0.9"
    lr: float = 0.01


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape)
