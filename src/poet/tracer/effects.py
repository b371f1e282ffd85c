"""Effects: calls that do something besides making tensors, and what a captured step has instead.

Functions of torch.linalg look at their result and raise an error where a matrix is singular. A
trace would order such looks by inputs that are no tensors, and know nothing of the line they are
from; so the functions are met by name, before that. They are the forms that end in `_ex`, and a
look; a trace has those, with an operator for the look that raises torch's own error.

`torch._assert_async` makes nothing, so that nothing in a step would depend on it. It is a check
like those of the step's own Python.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from poet.tracer.operators import required, solved

_UNCHECKED = {
    "inv": "torch.linalg.inv_ex(a).inverse",
    "inverse": "torch.linalg.inv_ex(a).inverse",
    "solve": "torch.linalg.solve_ex(a, b).result",
    "cholesky": "torch.linalg.cholesky_ex(a).L",
}
"""What leaves the look to the user, by function."""


def _inv(A: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor
    made, info = torch.linalg.inv_ex(A)
    solved(info, "linalg.inv", A.dim() == 2)
    return made


def _solve(A: torch.Tensor, B: torch.Tensor, *, left: bool = True) -> torch.Tensor:
    made: torch.Tensor
    made, info = torch.linalg.solve_ex(A, B, left=left)
    solved(info, "linalg.solve", A.dim() == 2)
    return made


def _cholesky(A: torch.Tensor, *, upper: bool = False) -> torch.Tensor:
    made: torch.Tensor
    made, info = torch.linalg.cholesky_ex(A, upper=upper)
    solved(info, "linalg.cholesky", A.dim() == 2)
    return made


def _asserted(input: torch.Tensor, assert_msg: str = "an element is zero") -> None:
    required(input.detach(), True, f"a check of the model or the loss fails: {assert_msg}")


_ASSERTS = (
    torch._assert_async,
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
)


def _inverse(input: torch.Tensor) -> torch.Tensor:
    return _inv(input)


_WITH_LOOK: dict[Any, Callable[..., torch.Tensor]] = {
    torch.linalg.inv: _inv,
    torch.linalg.solve: _solve,
    torch.linalg.cholesky: _cholesky,
    torch.inverse: _inverse,
    torch.Tensor.inverse: _inverse,
}
_FUNCTIONS = {
    getattr(space, name): name
    for space in (torch, torch.linalg, torch.Tensor)
    for name in _UNCHECKED
    if hasattr(space, name)
}


class LooksAtResult(Exception):
    """A function that a captured step could not have; the text says what to do."""


class KeptLooks(TorchFunctionMode):
    """Has the looks of functions at their results in the trace, or ends it where it cannot."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _WITH_LOOK and "out" not in kwargs:
            return _WITH_LOOK[func](*args, **kwargs)
        if func in _ASSERTS:
            return _asserted(*args, **kwargs)
        name = _FUNCTIONS.get(func)
        if name is not None:
            raise LooksAtResult(
                f"{name} looks at its result and raises an error where a matrix is singular, "
                f"which a captured step would not do. Use {_UNCHECKED[name]}, which computes the "
                "same and leaves the look to you"
            )
        return func(*args, **kwargs)
