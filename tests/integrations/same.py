"""Two trainings, one with POET and one without: the same bits."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from tests.torch.eager import same_bits

Load = Callable[[str], ModuleType]


def check_same_weights(one: nn.Module, other: nn.Module) -> None:
    """Names, order and every bit of parameters and buffers."""
    mine, theirs = one.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    assert [name for name, value in mine.items() if not same_bits(value, theirs[name])] == []


def logged(trainer: Any) -> list[dict[str, float]]:
    """All losses, norms and learning rates that one of Hugging Face's trainers wrote down."""
    clocked = ("runtime", "per_second")
    return [
        {name: value for name, value in line.items() if not name.endswith(clocked)}
        for line in trainer.state.log_history
    ]
