"""Own loop: the passes of a model that `poet.wrap` planned, inside somebody else's loop.

The forward pass runs the tape up to the model's outputs and hands them out; the gradient that
autograd brings back enters the tape, which runs on to the gradients of the parameters and of those
inputs that require one. Between the two, what the plan keeps is kept. Where nothing gets a gradient
the model runs as it is.

Which outputs get a gradient is not known before the backward pass: a guess is planned for, and
where it was wrong, the forward pass runs again under the right plan.

What is planned is the model's `forward`. Hooks of the model itself, and a `__call__` of its class,
run around it as always; those of its submodules are part of it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch._dynamo
from torch import nn
from torch.autograd import forward_ad

from poet.errors import OutOfBudget, PoetError
from poet.runtime.step.passes import Pass
from poet.tracer.outputs import Called
from poet.tracer.tracing import is_tracing
from poet.training.planned import PlannedSteps


class OwnLoop:
    """The planned steps of one model, for whom its forward pass is called in their own loop."""

    def __init__(self, model: nn.Module, planned: PlannedSteps) -> None:
        self.model, self.planned = model, planned
        # torch.compile runs around it, and leaves it as it is.
        self.call: Callable[..., Any] = torch._dynamo.disable(self._call)  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self.around: Callable[..., Any] | None = None
        """What was put in the place of the wrapped model's `forward`, around the planned one."""
        self._pending: Pass | None = None
        self._likely: dict[Any, tuple[bool, ...]] = {}
        """For calls of each kind, which outputs got a gradient last."""

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's forward pass."""
        call = Called(args, kwargs)
        if torch._guards.detect_fake_mode(call.leaves) is not None:
            if is_tracing():
                raise PoetError(
                    "a part of the model is wrapped: poet.wrap and poet.Trainer take models as "
                    "they are. Give them poet.unwrap(part)"
                )
            return self.model.forward(*args, **kwargs)  # an export, or a summary without data
        if torch._C._get_tracing_state() is not None or not self._gets_gradients(call):
            return self.model.forward(*args, **kwargs)
        if is_transformed():
            raise PoetError(
                "a planned step has gradients by backward() alone, not by torch.func's transforms "
                "or forward-mode differentiation. Use the model inside, poet.unwrap(model), for "
                "those"
            )
        with self.planned.alone():
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
        self.planned.notice_changes()
        kind = self.planned.key(call)
        call = call._replace(used=self._likely.get(kind))
        executor = self.planned.executor(call)
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
                "does not have. Use the model inside, poet.unwrap(model), for that"
            )
        with self.planned.alone():
            going.check_waits()
            used = tuple(each is not None for each in gradients)
            if used != going.program.returned.used:
                going = self._again(step, going, used)
            made = going.go_on(gradients)
            held = self.planned.session.buffer_bytes
            self.peak_bytes = max(self.peak_bytes, going.machine.peak_bytes + held)
            return [
                *map(made.parameters.get, step.parameters),
                *map(made.inputs.get, step.inputs),
            ]

    def _again(self, step: "_Step", going: Pass, used: tuple[bool, ...]) -> Pass:
        """The same forward pass under a plan for the outputs that did get a gradient."""
        going.check_unchanged(again=True)
        self.planned.notice_changes()
        if self.planned.key(step.call._replace(used=None)) != step.kind:
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
        executor = self.planned.executor(call)
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


def is_transformed() -> bool:
    """Whether this runs under a transform of torch.func, or in forward mode."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


class _Step(NamedTuple):
    """A call on its way through a wrapped model."""

    owner: OwnLoop
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
