"""Constants: Python decisions of a forward pass that depend on no input, made while it is traced.

    positions = torch.arange(length)          # a tensor, and the same in each step
    if (positions.diff() == 1).all(): …       # a trace has shapes, and no values

A trace knows no values, so that such an `if` would stop it. But what is made of numbers alone, and
of nothing else, can be computed beside the trace, and has the same value in each step. `Known` does
so for small tensors, and answers when the forward pass asks for a Python number.

What draws random numbers is not known, nor is what was changed in place.
"""

from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

_MADE_OF_NUMBERS = frozenset(
    (torch.arange, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor, torch.zeros)
)
_ASKED = frozenset(
    (torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__int__,
     torch.Tensor.item)
)  # fmt: skip
_MOST_NUMBERS = 1 << 15
"""Larger tensors are no settings; their values would take memory for nothing."""
_NOTHING = object()


class _Constant(NamedTuple):
    traced: torch.Tensor
    """Held, so that no id is used twice."""
    version: int
    value: torch.Tensor


class Known(TorchFunctionMode):
    """While this holds, Python numbers of constant tensors are what they are."""

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[int, _Constant] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        is_known = all(map(self._knows, tensors)) and (
            bool(tensors) or function in _MADE_OF_NUMBERS
        )
        if is_known and function in _ASKED:
            value = self._value(function, args, kwargs)
            if value is not _NOTHING:
                return value
        if _changes(function, kwargs) and tensors:
            self._constants.clear()  # others may be views of it
            is_known = False
        made = function(*args, **kwargs)
        if is_known and isinstance(made, torch.Tensor) and made.numel() <= _MOST_NUMBERS:
            value = self._value(function, args, kwargs)
            if isinstance(value, torch.Tensor) and value.shape == made.shape:
                self._constants[id(made)] = _Constant(made, made._version, value)
        return made

    def _knows(self, tensor: torch.Tensor) -> bool:
        known = self._constants.get(id(tensor))
        return known is not None and known.version == tensor._version

    def _value(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What it gives for the values that are known, if it gives the same each time."""
        given = pytree.tree_map_only(
            torch.Tensor, lambda tensor: self._constants[id(tensor)].value, (args, kwargs)
        )
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            before = torch.get_rng_state()
            try:
                value = function(*given[0], **given[1])
            except Exception:  # it may ask for what only a trace has
                return _NOTHING
            if torch.equal(before, torch.get_rng_state()):
                return value
            torch.set_rng_state(before)
            return _NOTHING


def _changes(function: Any, kwargs: dict[str, Any]) -> bool:
    """Whether it may change a tensor in place, as `add_`, `x[0] = …`, `x += …` and `out=` do."""
    name = getattr(function, "__name__", "")
    return (
        kwargs.get("out") is not None
        or bool(kwargs.get("inplace"))
        or name in ("__setitem__", "__set__")
        or (name.endswith("_") and not name.endswith("__"))
        or (name.startswith("__i") and hasattr(torch.Tensor, f"__{name[3:]}"))
    )
