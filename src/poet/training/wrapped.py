"""Wrapped: a model whose forward and backward passes follow a plan, inside the user's own loop.

    small = poet.wrap(model, example=(x,), ram="2 GiB")
    loss = loss_fn(small(x), y)
    loss.backward()       # gradients are in .grad, as always
    optimizer.step()

To everybody who looks it is the model: it has the model's `__dict__`, and its class is made from
the model's class, with nothing else in it but the forward pass, which `own_loop` plans, and four
names to ask for its figures. Copies and pickles of it are those of the model inside.
"""

import copy
import inspect
import types
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import nn

from poet.errors import PoetError
from poet.planning.defaults import HERE
from poet.planning.question import terms
from poet.rewrites.granularity import Granularity
from poet.runtime.stores.base import Store
from poet.tracer.capture import capture_outputs
from poet.tracer.outputs import Called
from poet.tracer.program import Program
from poet.tracer.watch import Watch
from poet.training.own_loop import OwnLoop
from poet.training.planned import PlannedSteps
from poet.values.device import Device
from poet.values.plan import Plan


def wrap(
    model: nn.Module,
    *,
    example: Any,
    kwargs: Mapping[str, Any] | None = None,
    ram: str | int | None = None,
    store: str | Path | Store | None = None,
    device: str | Device = HERE,
    deadline: str | float | None = None,
    time_limit: float = 20.0,
    granularity: Granularity = "planning",
    autocast: torch.dtype | str | None = None,
) -> "Wrapped":
    """The model, to everybody who looks, with forward and backward passes that follow a plan.

    Loop, loss, `loss.backward()`, optimizer and clipping stay the user's own. `example` is what the
    model is called with: a tuple of arguments, with further ones by name in `kwargs`, or a dict of
    arguments by name. Calls of another kind (shapes, constants, training or evaluation, inputs that
    require a gradient) are captured and planned when they come. Parameters and their gradients stay
    in RAM, and count. `ram` is what it is for `poet.Trainer`.

    What comes back has `plan`, `peak_bytes`, `budget_bytes` and `model`, where the model has no
    such names itself. `poet.unwrap` gives the model inside.
    """
    if isinstance(model, Wrapped):
        raise PoetError("the model is wrapped already: wrap the one inside it, poet.unwrap(model)")
    asked = terms(
        device,
        ram,
        deadline,
        params="resident",
        paging=store is not None,
        # The user's loop may look at them at any time.
        pinned_roles=("input", "parameter", "buffer", "output"),
        in_torch=True,
    )
    source = OutputsSource(model, granularity, autocast)
    call = first_call(example, kwargs)
    planned = PlannedSteps(source, asked, call, store=store, time_limit=time_limit)
    return disguised(model, OwnLoop(model, planned))


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside one that `poet.wrap` gave back; any other module itself."""
    return model._poet.model if isinstance(model, Wrapped) else model


def close(small: "Wrapped") -> None:
    """Let go of plans and pages: it is not called any more."""
    small._poet.close()


def first_call(example: Any, kwargs: Mapping[str, Any] | None) -> Called:
    if isinstance(example, Mapping):
        return Called((), {**example, **(kwargs or {})})
    if isinstance(example, torch.Tensor):
        example = (example,)
    if not isinstance(example, tuple | list):
        raise PoetError(
            "the example must be a tuple of what the model is called with, or a dict of arguments "
            f"by name; this one is of type {type(example).__name__}"
        )
    return Called(tuple(example), dict(kwargs or {}))


class OutputsSource(NamedTuple):
    """Captures forward and backward passes of a model, without a loss."""

    model: nn.Module
    granularity: Granularity
    autocast: torch.dtype | str | None

    def capture(self, batch: Called) -> Program:
        return capture_outputs(
            self.model, batch, granularity=self.granularity, autocast=self.autocast
        )

    def key(self, batch: Called) -> Hashable:
        return batch.kind, batch.used

    def watch(self) -> Watch:
        return Watch({"": self.model}, ambient=self.autocast is None, bare=True)


class Loop(Protocol):
    """What stands behind a wrapped model's forward pass."""

    model: nn.Module
    call: Callable[..., Any]
    around: Callable[..., Any] | None
    peak_bytes: int

    @property
    def plan(self) -> Plan | None: ...

    @property
    def budget_bytes(self) -> int | None: ...

    def close(self) -> None: ...


class _Figure:
    """A name that shows a figure of the planned steps, unless the model has that name itself."""

    def __init__(
        self, read: Callable[[Loop], Any], write: Callable[[Loop, Any], None] | None = None
    ) -> None:
        self._read, self._write = read, write

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, small: "Wrapped | None", owner: type) -> Any:
        if small is None:
            return self
        name, model = self._name, small._poet.model
        return getattr(model, name) if self._is_models(model) else self._read(small._poet)

    def __set__(self, small: "Wrapped", value: Any) -> None:
        model = small._poet.model
        if self._write is None or self._is_models(model):
            setattr(model, self._name, value)
        else:
            self._write(small._poet, value)

    def __delete__(self, small: "Wrapped") -> None:
        delattr(small._poet.model, self._name)

    def _is_models(self, model: nn.Module) -> bool:
        own = vars(model)
        spaces = (own, own["_parameters"], own["_buffers"], own["_modules"])
        return any(self._name in space for space in spaces) or hasattr(type(model), self._name)


class _Forward:
    """`forward` of a wrapped model: the planned one, with the signature of the model's.

    What is put in its place, by libraries that wrap it once more, is around the plan; what is put
    in the place of the model's own is inside.
    """

    def __init__(self, kind: type[nn.Module]) -> None:
        self._of_class = _planned_like(kind.forward)
        self._of_instance: tuple[Any, Callable[..., Any]] | None = None

    def __get__(self, small: "Wrapped | None", owner: type) -> Any:
        if small is None:
            return self._of_class
        around = small._poet.around
        return self._planned(small) if around is None else around

    def _planned(self, small: "Wrapped") -> types.MethodType:
        own = vars(small).get("forward")
        if own is None:
            return types.MethodType(self._of_class, small)
        if self._of_instance is None or self._of_instance[0] is not own:
            self._of_instance = own, _planned_like(own, bound=True)
        return types.MethodType(self._of_instance[1], small)

    def __set__(self, small: "Wrapped", value: Any) -> None:
        small._poet.around = None if value == self._planned(small) else value

    def __delete__(self, small: "Wrapped") -> None:
        if small._poet.around is None:
            raise AttributeError("forward")
        small._poet.around = None


def _planned_like(forward: Callable[..., Any], bound: bool = False) -> Callable[..., Any]:
    """The planned forward pass, looking like another one."""

    def planned(self: "Wrapped", *args: Any, **kwargs: Any) -> Any:
        return self._poet.call(args, kwargs)

    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        if hasattr(forward, name):
            setattr(planned, name, getattr(forward, name))
    about: Any = planned
    # Not `__wrapped__`: who peels that off would be left with a forward pass without a plan.
    about.__signature__ = _signature(forward, bound)
    return planned


def _signature(forward: Callable[..., Any], bound: bool) -> inspect.Signature:
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    try:
        found = inspect.signature(forward)
    except (TypeError, ValueError):  # not written in Python
        anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        rest = [inspect.Parameter(*each) for each in zip(("args", "kwargs"), anything, strict=True)]
        return inspect.Signature([me, *rest])
    if bound:
        found = found.replace(parameters=[me, *found.parameters.values()])
    return found


class Wrapped(nn.Module):
    """The model with its training steps planned: the base of all classes made for one.

    A class that is made from it and the model's class (`_kind_like`) has the model's name and
    everything that the model's class has; `__class__` says the model's class itself. Whoever sets
    that, as `torch.nn.utils.parametrize` does, sets the model's, and this one follows.
    """

    __slots__ = ()
    _poet: Loop
    """In a slot, beside the attributes that are the model's."""

    plan = _Figure(lambda loop: loop.plan)
    """The plan for the example's call."""
    budget_bytes = _Figure(lambda loop: loop.budget_bytes)
    """The most RAM that a step may take."""
    peak_bytes = _Figure(
        lambda loop: loop.peak_bytes, lambda loop, value: setattr(loop, "peak_bytes", value)
    )
    """The most RAM that a step has taken, the store's buffers among it."""
    model = _Figure(lambda loop: loop.model)
    """The module inside."""

    def __init_subclass__(cls) -> None:
        """Nothing: the model's class may do things for each new class that are not for this one."""

    def _class(self) -> type:
        return type(self._poet.model)

    def _set_class(self, kind: type) -> None:
        self._poet.model.__class__ = _models_class(kind)
        self._follow()

    __class__ = property(_class, _set_class)

    def _follow(self) -> bool:
        """Be of a class like the model's, where that has another one by now."""
        kind = type(self._poet.model)
        if kind is _models_class(type(self)):
            return False
        _put_class(self, _kind_like(kind))
        return True

    def __getattr__(self, name: str) -> Any:
        if self._follow():
            return getattr(self, name)
        return super().__getattr__(name)

    def compile(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PoetError(
            "a wrapped model runs under its plan, and cannot be compiled in place. Use "
            "poet.compile, which compiles within a budget, or compile the model inside, "
            "poet.unwrap(model), without a plan"
        )

    _compiled_call_impl = property(lambda self: None)  # nor is one that was compiled before

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._poet.model, memo)

    def __copy__(self) -> Any:
        return copy.copy(self._poet.model)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._poet.model.__reduce_ex__(protocol)

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise PoetError(
            "a wrapped model cannot be replicated, since its plan is for one at a time. Use "
            "nn.parallel.DistributedDataParallel, or replicate the model inside, "
            "poet.unwrap(model), without a plan"
        )


def _models_class(kind: type) -> type:
    """The class of the model, given that of one that is wrapped."""
    if not issubclass(kind, Wrapped):
        return kind
    return kind.__mro__[kind.__mro__.index(Wrapped) + 1]


def _put_class(small: Wrapped, kind: type) -> None:
    object.__dict__["__class__"].__set__(small, kind)


def _kind_like(kind: type[nn.Module]) -> type[Wrapped]:
    """A class of wrapped models that looks like the class of the model."""
    about = {
        "__slots__": ("_poet",),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "forward": _Forward(kind),
    }
    bases = (Wrapped,) if kind is nn.Module else (Wrapped, kind)
    try:
        return types.new_class(kind.__name__, bases, {}, lambda space: space.update(about))
    except TypeError as error:
        raise PoetError(
            f"no class can be made from {kind.__qualname__}, which a wrapped model needs: {error}"
        ) from error


def disguised(model: nn.Module, loop: Loop) -> Wrapped:
    """An object that has the model's attributes, all of them, and a class like the model's."""
    small: Wrapped = object.__new__(_kind_like(type(model)))
    object.__setattr__(small, "__dict__", model.__dict__)
    object.__setattr__(small, "_poet", loop)
    return small
