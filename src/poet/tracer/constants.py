"""Constants: Python decisions of a forward pass that depend on no input, made while it is traced.

    positions = torch.arange(length)          # a tensor, and the same in each step
    if (positions.diff() == 1).all(): …       # a trace has shapes, and no values

A trace knows no values, so that such an `if` would stop it. But what is made of numbers alone, and
of nothing else, can be computed beside the trace, and has the same value in each step. `Known` does
so for small tensors, and answers when the forward pass asks for a Python number.

What draws random numbers is not known, nor is what was changed in place.

Where that is not enough, the step is traced for the values of its example (`ways`): then what is
computed from the batch alone is known as well, and it is kept what was asked of it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from poet.tracer.by_values import BY_VALUES
from poet.tracer.operators import decided
from poet.tracer.ways import Asked, Made, asking_line

_MADE_OF_NUMBERS = frozenset(
    (torch.arange, torch.as_tensor, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor,
     torch.zeros)
)  # fmt: skip
_ASKED = frozenset(
    (torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__int__,
     torch.Tensor.item, torch.Tensor.tolist)
)  # fmt: skip
_MOST_NUMBERS = 1 << 15
"""Larger tensors are no settings; their values would take memory for nothing."""
_MOST_OF_BATCH = 1 << 20
"""The same for what comes with a batch, or is made of that."""
_NOTHING = object()


class _Value(NamedTuple):
    traced: torch.Tensor
    """Held, so that no id is used twice."""
    version: int
    value: torch.Tensor
    asked: int | None = None
    """Its number in what is asked of the batch, if it comes from there."""


class Known(TorchFunctionMode):
    """While this holds, Python numbers of constant tensors are what they are.

    With `batch`, the example's tensors, so are those of what is computed from these alone; what is
    asked of them is kept in `asked`.
    """

    def __init__(self, batch: Sequence[torch.Tensor] | None = None) -> None:
        super().__init__()
        self._batch = batch
        self._known: dict[int, _Value] = {}
        self.asked = Asked(0)

    def start(self, tensors: Sequence[torch.Tensor]) -> None:
        """A pass of the trace begins, on these stand-ins of the batch."""
        self._known.clear()
        if self._batch is None:
            return
        self.asked = Asked(len(tensors))
        for number, (traced, value) in enumerate(zip(tensors, self._batch, strict=True)):
            if not traced.requires_grad and value.numel() <= _MOST_OF_BATCH:
                self._known[id(traced)] = _Value(traced, traced._version, value, number)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        is_known = all(map(self.knows, tensors)) and (bool(tensors) or function in _MADE_OF_NUMBERS)
        if is_known and function in _ASKED:
            value = self._computed(function, args, kwargs)
            if value is not _NOTHING:
                self.decide(tensors[0], tensors[0].reshape(-1))
                return value
        if self._batch is not None and function in BY_VALUES:
            made = BY_VALUES[function](self, function, args, kwargs)
            if made is not None:
                return made
        if _changes(function, kwargs) and tensors:
            self._forget(tensors)
            is_known = False
        made = function(*args, **kwargs)
        if is_known:
            self.learn(function, args, kwargs, made)
        return made

    def knows(self, tensor: Any) -> bool:
        """Whether its value is known, and has not been changed since."""
        known = self._known.get(id(tensor))
        return known is not None and known.version == tensor._version

    def _forget(self, changed: Sequence[torch.Tensor]) -> None:
        """Others may be views of what a call changes. Where values of a batch are known, the step
        looks again at all that is asked, so that only those views need go that are known."""
        if self._batch is None:
            self._known.clear()
            return
        gone = {_storage(self.value(x)) for x in changed if id(x) in self._known}
        self._known = {
            key: known for key, known in self._known.items() if _storage(known.value) not in gone
        }

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._known[id(tensor)].value

    def decide(self, tensor: torch.Tensor, flat: torch.Tensor) -> None:
        """The step goes on by the numbers of a tensor, which a batch of another way has not."""
        if self._batch is None:
            return
        number, where, content = self._known[id(tensor)].asked, asking_line(), self.numbers(tensor)
        if number is not None:
            self.asked.answered(number, content, where)
        decided(flat.detach(), pytree.tree_leaves(content), where)

    def numbers(self, tensor: torch.Tensor) -> Any:
        """Its value as Python has it."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return self.value(tensor).tolist()

    def ask(self, function: Callable[..., torch.Tensor], *args: Any) -> Any:
        """The number that a function gives for what is known."""
        made = function(*args)
        self.learn(function, args, {}, made)
        self.decide(made, made.reshape(-1))
        return self.numbers(made)

    def learn(self, function: Any, args: Any, kwargs: Any, made: Any) -> None:
        """What a call has made of what is known."""
        leaves = pytree.tree_leaves(made)
        if not leaves or not all(isinstance(x, torch.Tensor) for x in leaves):
            return
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        of_batch = any(self._known[id(x)].asked is not None for x in given)
        most = _MOST_OF_BATCH if of_batch else _MOST_NUMBERS
        if any(x.numel() > most for x in leaves) or (of_batch and _is_cast(given)):
            return
        value = self._computed(function, args, kwargs)
        values = pytree.tree_leaves(value)
        if len(values) != len(leaves) or not all(
            isinstance(x, torch.Tensor) and x.shape == traced.shape and x.dtype == traced.dtype
            for x, traced in zip(values, leaves, strict=True)
        ):
            return
        first = self._remembered(function, args, kwargs, len(leaves)) if of_batch else None
        for n, (traced, each) in enumerate(zip(leaves, values, strict=True)):
            asked = None if first is None else first + n
            self._known[id(traced)] = _Value(traced, traced._version, each, asked)

    def _remembered(self, function: Any, args: Any, kwargs: Any, results: int) -> int:
        def given(tensor: torch.Tensor) -> Any:
            known = self._known[id(tensor)]
            return known.value if known.asked is None else Made(known.asked)

        return self.asked.remember(
            function, pytree.tree_map_only(torch.Tensor, given, (args, kwargs)), results
        )

    def _computed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What it gives for the values that are known, if it gives the same each time."""
        given = pytree.tree_map_only(torch.Tensor, self.value, (args, kwargs))
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


def _is_cast(given: Sequence[torch.Tensor]) -> bool:
    """Whether an autocast around the call, of which nobody keeps note, may change what it makes."""
    kinds = {each.device.type for each in given if each.is_floating_point()}
    return any(torch.is_autocast_enabled(kind) for kind in kinds)


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


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
