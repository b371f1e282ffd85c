"""In place: a model whose calls follow a plan, while it stays the object that everybody holds.

A library that already has the model (an optimizer, a checkpoint's names, DistributedDataParallel
around it) cannot be handed another one. So the model gets a class of its own, as PyTorch's FSDP and
parametrizations do it: a subclass of what it was, with the same name, in which only `__call__` is
another. The first call that trains is the example; from then on `poet.wrap` does the rest.

    planned = plan_in_place(model, ram="2 GiB")
    model(x).sum().backward()     # follows a plan
    planned.close()               # the model is as it was

Copies and pickles of the model are plain models. Whoever calls `model.forward`, or layers inside
it, goes around the plan.
"""

import copyreg
import types
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from poet.errors import PoetError
from poet.training.wrapped import Wrapped, close, wrap


def plan_in_place(model: nn.Module, **asked: Any) -> "PlannedInPlace":
    """Let calls of the model follow a plan, until it is closed. `asked` is what `poet.wrap` takes,
    but for the example."""
    if isinstance(model, Wrapped):
        raise PoetError("the model is wrapped already: give the one inside it, poet.unwrap(model)")
    if not isinstance(model, nn.Module):
        raise PoetError(f"the model is a {type(model).__name__}; it must be a torch.nn.Module")
    if hasattr(type(model), _OWNER):
        raise PoetError("the model is planned in place already: close that first")
    if isinstance(model, torch.jit.ScriptModule):
        raise PoetError("the model is scripted, and cannot be traced: give the module it came from")
    return PlannedInPlace(model, asked)


_OWNER = "_poet_planned_in_place"


class Measured(NamedTuple):
    """The most RAM that a step has taken, and that it may take; no budget before the first step."""

    peak_bytes: int
    budget_bytes: int | None


class PlannedInPlace:
    """A model's planned calls."""

    def __init__(self, model: nn.Module, asked: Mapping[str, Any]) -> None:
        self.model, self._asked = model, dict(asked)
        self._kind = type(model)
        self._wrapped: Wrapped | None = None
        self._seen = Measured(0, None)
        self._plain: nn.Module = object.__new__(self._kind)
        self._plain.__dict__ = model.__dict__  # the same attributes, called as before
        model.__class__ = _planned_class(self._kind, self)

    @property
    def measured(self) -> "Measured":
        """What the steps took, also when this is closed."""
        if self._wrapped is None:
            return self._seen
        return Measured(self._wrapped.peak_bytes, self._wrapped.budget_bytes)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if self._wrapped is None:
            if not _trains(self._plain, args, kwargs):
                return self._plain(*args, **kwargs)
            self._wrapped = wrap(self._plain, example=args, kwargs=kwargs, **self._asked)
        return self._wrapped(*args, **kwargs)

    def close(self) -> None:
        """Give the model its class back, and let go of plans and pages."""
        if getattr(type(self.model), _OWNER, None) is self:
            self.model.__class__ = self._kind
        self._seen, wrapped = self.measured, self._wrapped
        self._wrapped = None
        if wrapped is not None:
            close(wrapped)


def _planned_class(kind: type[nn.Module], owner: PlannedInPlace) -> type[nn.Module]:
    """The same class for one model, whose calls are the owner's."""

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not owner.model:  # a copy of its own making
            return kind.__call__(self, *args, **kwargs)
        return owner.call(*args, **kwargs)

    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:
        return _as_plain(kind.__reduce_ex__(self, protocol), type(self), kind)

    def _replicate_for_data_parallel(self: nn.Module) -> NoReturn:
        raise PoetError(
            "a planned model cannot be replicated: nn.DataParallel runs one model in several "
            "threads. Use DistributedDataParallel, a process for each GPU"
        )

    own = {
        "__call__": __call__,
        "__reduce_ex__": __reduce_ex__,
        "_replicate_for_data_parallel": _replicate_for_data_parallel,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        _OWNER: owner,
    }
    return types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(own))


def _as_plain(reduced: Any, planned: type, kind: type) -> Any:
    """How to make a copy, which is of the class that the model had."""
    if not isinstance(reduced, tuple):
        return reduced
    maker, args, *rest = reduced
    if maker is copyreg.__newobj__:  # type: ignore[attr-defined]
        maker = object.__new__  # pickle would want the class of the model itself
    return (maker, tuple(kind if each is planned else each for each in args), *rest)


def _trains(model: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether a call has a backward pass."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    return torch.is_grad_enabled() and any(
        isinstance(each, torch.Tensor) and each.requires_grad
        for each in (*model.parameters(), *leaves)
    )
