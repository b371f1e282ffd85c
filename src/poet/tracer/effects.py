"""Effects: calls that do something besides making tensors, which a captured step could not keep.

Functions of torch.linalg look at their result and raise an error where a matrix is singular. A
trace would order such looks by inputs that are no tensors, and know nothing of the line they are
from; so the functions are met by name, before that.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_UNCHECKED = {
    "inv": "torch.linalg.inv_ex(a).inverse",
    "inverse": "torch.linalg.inv_ex(a).inverse",
    "solve": "torch.linalg.solve_ex(a, b).result",
    "cholesky": "torch.linalg.cholesky_ex(a).L",
}
"""What leaves the look to the user, by function."""
_FUNCTIONS = {
    getattr(space, name): name
    for space in (torch, torch.linalg, torch.Tensor)
    for name in _UNCHECKED
    if hasattr(space, name)
}


class LooksAtResult(Exception):
    """A function that a captured step could not have; the text says what to do."""


class NoLooks(TorchFunctionMode):
    """Ends a trace where a function looks at its result."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = _FUNCTIONS.get(func)
        if name is not None:
            raise LooksAtResult(
                f"{name} looks at its result and raises an error where a matrix is singular, "
                f"which a captured step would not do. Use {_UNCHECKED[name]}, which computes the "
                "same and leaves the look to you"
            )
        return func(*args, **(kwargs or {}))
