"""Wrapped: a module whose forward and backward passes follow a plan, inside the user's own loop.

    small = poet.wrap(model, example=(x,), ram="2 GiB")
    loss = loss_fn(small(x), y)
    loss.backward()       # gradients are in .grad, as always
    optimizer.step()

The forward pass runs the tape up to the model's outputs and hands them out; the gradient that
autograd brings back enters the tape, which runs on to the gradients of the parameters and of those
inputs that require one. Between the two, what the plan keeps is kept. Where nothing gets a gradient
the model runs as it is.

Which outputs get a gradient is not known before the backward pass: a guess is planned for, and
where it was wrong, the forward pass runs again under the right plan.
"""

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn
from torch.autograd import forward_ad

from poet.errors import OutOfBudget, PoetError
from poet.planning.defaults import HERE
from poet.planning.question import terms
from poet.rewrites.granularity import Granularity
from poet.runtime.step.passes import Pass
from poet.runtime.stores.base import Store
from poet.tracer.capture import capture_outputs
from poet.tracer.outputs import Called, key_of_call
from poet.tracer.program import Program
from poet.tracer.watch import Watch
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
    """The model as a module whose forward and backward passes follow a plan.

    Loop, loss, `loss.backward()`, optimizer and clipping stay the user's own. `example` is what the
    model is called with: a tuple of arguments, with further ones by name in `kwargs`, or a dict of
    arguments by name. Calls of another kind (shapes, constants, training or evaluation, inputs that
    require a gradient) are captured and planned when they come. Parameters and their gradients stay
    in RAM, and count. `ram` is what it is for `poet.Trainer`.
    """
    if isinstance(model, Wrapped):
        raise PoetError("the model is wrapped already: wrap the one inside it, its .model")
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
    call = _first_call(example, kwargs)
    return Wrapped(model, PlannedSteps(source, asked, call, store=store, time_limit=time_limit))


def _first_call(example: Any, kwargs: Mapping[str, Any] | None) -> Called:
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
        return key_of_call(batch.taken_apart()), batch.used

    def watch(self) -> Watch:
        return Watch({"": self.model}, ambient=self.autocast is None)


class Wrapped(nn.Module):
    """The model with its training steps planned.

    It shares the model's own attributes: parameters, buffers, submodules, mode and hooks are one
    and the same, by the same names. What is its own lies beside them, in slots.
    """

    __slots__ = ("_likely", "_pending", "_planned", "model", "peak_bytes")
    model: nn.Module
    """The module inside."""
    peak_bytes: int
    """The most RAM that a step has taken, the store's buffers among it."""
    _planned: PlannedSteps
    _pending: Pass | None
    _likely: dict[Any, tuple[bool, ...]]
    """For calls of each kind, which outputs got a gradient last."""

    def __init__(self, model: nn.Module, planned: PlannedSteps) -> None:
        self.__dict__ = model.__dict__
        for name, value in (
            ("model", model),
            ("peak_bytes", 0),
            ("_planned", planned),
            ("_pending", None),
            ("_likely", {}),
        ):
            object.__setattr__(self, name, value)

    @property
    def plan(self) -> Plan:
        """The plan for the example's call."""
        return self._planned.session.plan

    @property
    def budget_bytes(self) -> int | None:
        """The most RAM that a step may take."""
        return self._planned.budget_bytes

    # Steps

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)  # hooks are the model's, which calls them

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = Called(args, kwargs)
        if torch._guards.detect_fake_mode(call.leaves) is not None:
            raise PoetError(
                "a part of the model is wrapped: poet.wrap and poet.Trainer take models as they "
                "are. Give them its .model"
            )
        if not self._gets_gradients(call):
            return self.model(*args, **kwargs)
        if is_transformed():
            raise PoetError(
                "a planned step has gradients by backward() alone, not by torch.func's transforms "
                "or forward-mode differentiation. Use the model inside, .model, for those"
            )
        with self._planned.alone():
            return self._begin(call)

    def _gets_gradients(self, call: Called) -> bool:
        return torch.is_grad_enabled() and any(
            isinstance(each, torch.Tensor) and each.requires_grad
            for each in (*self.model.parameters(), *call.leaves)
        )

    def _begin(self, call: Called) -> Any:
        pending = self._pending
        if pending is not None and pending.is_waiting:
            if not pending.forgotten:
                raise PoetError(
                    "a forward pass of this model still waits for its backward pass: its tensors "
                    "are in RAM, and a second pass would take as much again. Call backward first, "
                    "or let go of its outputs (del loss, output)"
                )
            pending.abandon()
        self._planned.notice_changes()
        kind = self._planned.key(call)
        call = call._replace(used=self._likely.get(kind))
        executor = self._planned.executor(call)
        self._pending = going = executor.begin(call)
        program = executor.program
        trained = program.trained_parameters
        places = tuple(n for n, can in enumerate(program.example.trained) if can)
        step = _Step(self, call, kind, tuple(trained), places)
        leaves = (*trained.values(), *map(call.tensor, places))
        made: Any = _Follow.apply(step, going, *leaves)  # type: ignore[no-untyped-call]
        going.watch(made)
        return program.returned.rebuilt(made, call, self.model)

    def go_on(
        self, step: "_Step", going: Pass, gradients: tuple[torch.Tensor | None, ...]
    ) -> list[torch.Tensor | None]:
        """The backward pass of a step: gradients of its parameters, then of its inputs."""
        if torch.is_grad_enabled():
            raise PoetError(
                "create_graph=True asks for gradients of gradients, which a planned backward pass "
                "does not have. Use the model inside, .model, for that"
            )
        with self._planned.alone():
            going.check_waits()
            used = tuple(each is not None for each in gradients)
            if used != going.program.returned.used:
                going = self._again(step, going, used)
            made = going.go_on(gradients)
            held = self._planned.session.buffer_bytes
            object.__setattr__(
                self, "peak_bytes", max(self.peak_bytes, going.machine.peak_bytes + held)
            )
            return [
                *map(made.parameters.get, step.parameters),
                *map(made.inputs.get, step.inputs),
            ]

    def _again(self, step: "_Step", going: Pass, used: tuple[bool, ...]) -> Pass:
        """The same forward pass under a plan for the outputs that did get a gradient."""
        going.check_unchanged(again=True)
        self._planned.notice_changes()
        if self._planned.key(step.call._replace(used=None)) != step.kind:
            raise PoetError(
                "the model, or what it was called with, has changed since the forward pass, which "
                "must run again, since other outputs got a gradient than were planned for. Change "
                "it after backward"
            )
        self._likely[step.kind] = used
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        old = {name: value.clone() for name, value in going.old_buffers.items()}
        new = {name: buffers[name].clone() for name in old}
        machine, beside_bytes = going.machine, going.output_bytes
        going.abandon()
        call = step.call._replace(used=used)
        executor = self._planned.executor(call)
        now = machine.random_state()
        try:
            _put(buffers, old)
            machine.set_random_state(going.random_state)
            return executor.begin(call, beside_bytes)
        except BaseException as error:
            _put(buffers, new)
            if isinstance(error, OutOfBudget):
                raise OutOfBudget(
                    "other outputs of the model got a gradient than were planned for, and to run "
                    f"it again beside them takes too much: {error}. The next call is planned for it"
                ) from error
            raise
        finally:
            machine.set_random_state(now)

    # What the model may have its own way of doing

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.model._load_from_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> "Wrapped":
        self.model.train(mode)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> "Wrapped":
        self.model.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.model.zero_grad(set_to_none)

    def apply(self, fn: Callable[[nn.Module], None]) -> "Wrapped":
        self.model.apply(fn)
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> "Wrapped":
        self.model._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return self.model.extra_repr()

    # What a wrapped model cannot do

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse("copied")

    def __copy__(self) -> NoReturn:
        self._refuse("copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse("pickled")

    def _replicate_for_data_parallel(self) -> NoReturn:
        self._refuse("replicated")

    def _refuse(self, what: str) -> NoReturn:
        raise PoetError(
            f"a wrapped model cannot be {what}, since its plan is for this one: do so with the "
            "model inside, its .model, or with its state_dict(), and wrap what comes of it"
        )


def is_transformed() -> bool:
    """Whether this runs under a transform of torch.func, or in forward mode."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


class _Step(NamedTuple):
    """A call on its way through a wrapped model."""

    owner: Wrapped
    call: Called
    kind: Any
    """The key of all such calls, whichever outputs get a gradient."""
    parameters: tuple[str, ...]
    inputs: tuple[int, ...]
    """What may get a gradient, parameters by name and inputs by place."""


class _Follow(torch.autograd.Function):
    """The tape as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, step: _Step, going: Pass, *leaves: torch.Tensor) -> Any:
        ctx.step, ctx.going, ctx.token = step, going, _Token()
        ctx.set_materialize_grads(False)  # no gradient is not one of zeros
        outputs = going.hand_out(ctx.token)
        trained = going.program.returned.trained
        ctx.mark_non_differentiable(
            *(output for output, can in zip(outputs, trained, strict=True) if not can)
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if all(each is None for each in gradients):
            return (None,) * len(ctx.needs_input_grad)
        return (None, None, *ctx.step.owner.go_on(ctx.step, ctx.going, gradients))


class _Token:
    """Lives as long as the node of autograd's graph that holds it."""


def _put(buffers: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            buffers[name].copy_(value)
