"""Two trainings, one with POET and one without: the same bits."""

import torch
from torch import nn

from tests.torch.eager import same_bits


def check_same_weights(one: nn.Module, other: nn.Module) -> None:
    """Names, order and every bit of parameters and buffers."""
    mine, theirs = one.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    assert [name for name, value in mine.items() if not same_bits(value, theirs[name])] == []


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}
