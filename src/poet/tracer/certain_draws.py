"""Certain draws: questions to a random number whose answer is the same whatever is drawn.

Models that may leave out whole layers ask `torch.rand([]) < layerdrop` at each, also where that
rate is 0.0 and the answer always no. A trace draws no number, so it cannot tell. While this holds,
comparisons of a uniform draw with a number that it never reaches are answered; all others stay
unknown. The draw itself stays in the step: those that come after it depend on its having been made.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_COMPARISONS: dict[Any, Callable[[float], bool | None]] = {}
"""What is known of a comparison of a number in [0, 1) with another one."""
for _names, _answer in (
    (("lt", "less"), lambda than: False if than <= 0 else True if than > 1 else None),
    (("le", "less_equal"), lambda than: False if than < 0 else True if than >= 1 else None),
    (("gt", "greater"), lambda than: True if than < 0 else False if than >= 1 else None),
    (("ge", "greater_equal"), lambda than: True if than <= 0 else False if than > 1 else None),
):
    for _name in _names:
        _COMPARISONS |= dict.fromkeys(
            (getattr(torch, _name), getattr(torch.Tensor, _name)), _answer
        )
    _COMPARISONS[getattr(torch.Tensor, f"__{_names[0]}__")] = _answer
_VALUES = (torch.Tensor.__bool__, torch.Tensor.item)
"""How Python gets to know an answer; a trace's own tensors ask for the item where it asks bool."""


class CertainDraws(TorchFunctionMode):
    """Answers what is certain about numbers that the code inside draws with `torch.rand`."""

    def __init__(self) -> None:
        super().__init__()
        self._draws: dict[int, torch.Tensor] = {}
        """By id, and held, so that no id is used twice."""
        self._answers: dict[int, tuple[torch.Tensor, bool]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _VALUES and id(args[0]) in self._answers:
            return self._answers[id(args[0])][1]
        made = func(*args, **(kwargs or {}))
        if func is torch.rand:
            self._draws[id(made)] = made
        elif func in _COMPARISONS and len(args) == 2 and id(args[0]) in self._draws:
            than = args[1]
            answer = _COMPARISONS[func](than) if isinstance(than, int | float) else None
            if answer is not None and made.numel() == 1:
                self._answers[id(made)] = (made, answer)
        return made
