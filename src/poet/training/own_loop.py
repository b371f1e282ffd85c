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

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.autograd import forward_ad

from poet.errors import OutOfBudget, PoetError, PoetWarning
from poet.runtime.step.passes import Gradients, Pass
from poet.tracer.outputs import Called
from poet.tracer.program import Program
from poet.tracer.tracing import is_tracing
from poet.training.planned import PlannedSteps
from poet.training.waiting import Step, Token, Waiting
from poet.values.plan import Plan


class OwnLoop:
    """The planned steps of one model, for whom its forward pass is called in their own loop."""

    def __init__(self, model: nn.Module, planned: PlannedSteps) -> None:
        self.model, self.planned = model, planned
        # torch.compile runs around it, and leaves it as it is.
        self.call: Callable[..., Any] = torch._dynamo.disable(self._call)  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self.around: Callable[..., Any] | None = None
        """What was put in the place of the wrapped model's `forward`, around the planned one."""
        self.waiting = Waiting(planned)
        self._last_backward = -1
        """Which call of autograd's backward pass was the last to come here."""
        self._likely: dict[Any, tuple[bool, ...]] = {}
        """For calls of each kind, which outputs got a gradient last, where the guess was wrong."""
        self._last_used: tuple[bool, ...] = ()
        """The same of the last call that had a backward pass."""

    @property
    def plan(self) -> Plan:
        return self.planned.session.plan

    @property
    def budget_bytes(self) -> int | None:
        return self.planned.budget_bytes

    def close(self) -> None:
        """Let go of plans and pages."""
        self.planned.close()

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
            for each in itertools.chain(self.model.parameters(), call.leaves)
        )

    def _begin(self, call: Called) -> Any:
        self.planned.notice_changes()
        kind = self.planned.key(call)
        call = call.using(self._likely.get(kind), self._last_used)
        executor, beside_bytes = self.waiting.executor(call)
        program = executor.program
        trained = program.trained_parameters
        with self.waiting.while_buffers_move_on():
            going = executor.begin(call, beside_bytes)
        self._count(going)
        places = tuple(n for n, can in enumerate(program.example.trained) if can)
        leaves = (*trained.values(), *map(call.tensors.__getitem__, places))
        step = Step(self, call, kind, tuple(trained), places, executor, going)
        made: Any = _Follow.apply(step, *leaves)  # type: ignore[no-untyped-call]
        going.watch(made)
        return program.returned.rebuilt(made, call, self.model)

    def go_on(
        self, step: Step, gradients: tuple[torch.Tensor | None, ...]
    ) -> list[torch.Tensor | None]:
        """The backward pass of a step: gradients of its parameters, then of its inputs."""
        if torch.is_grad_enabled():
            raise PoetError(
                "create_graph=True asks for gradients of gradients, which a planned backward pass "
                "does not have. Use the model inside, poet.unwrap(model), for that"
            )
        with self.planned.alone():
            going = step.going
            if not going.is_waiting:
                raise PoetError(
                    "the backward pass of this step has run already, and its tensors are freed; "
                    "retain_graph=True cannot keep them. Add up the losses and call backward once, "
                    "or call the model again"
                )
            used = self._last_used = tuple(each is not None for each in gradients)
            as_planned = used == going.program.returned.used and not going.needs_to_run_again
            if as_planned and self.waiting.has_room_for(step):
                made = going.go_on(gradients)
            else:
                made, going = self._again(step, used, gradients)
            self.waiting.drop(step)
            self._count(going)
            self._warn_of_sums(going.program)
            return [
                *map(made.parameters.get, step.parameters),
                *map(made.inputs.get, step.inputs),
            ]

    def _warn_of_sums(self, program: Program) -> None:
        """Where gradients of several passes are summed up in one backward pass.

        Autograd adds each use of a tensor to the sum as it comes; ours come as sums, one a pass.
        """
        before, self._last_backward = self._last_backward, torch._C._current_graph_task_id()
        if before == self._last_backward and (why := program.adds_up_otherwise) is not None:
            warnings.warn(
                f"{why}, and several passes of the model are in one backward pass: gradients have "
                "the right values, and may have other last bits than eager's. Call backward for "
                "each loss to have the same bits",
                PoetWarning,
                stacklevel=2,
            )

    def _count(self, going: Pass) -> None:
        held = self.planned.session.buffer_bytes
        self.peak_bytes = max(self.peak_bytes, going.machine.peak_bytes + held)

    def _again(
        self, step: Step, used: tuple[bool, ...], gradients: tuple[torch.Tensor | None, ...]
    ) -> tuple[Gradients, Pass]:
        """The forward pass once more, with the numbers of the first, and then the backward pass.

        It comes to that where other outputs got a gradient than were planned for, where the first
        has given up its tensors, and where a later pass has changed buffers that it needs.
        """
        going = step.going
        going.check_unchanged(again=True)
        why = "other passes of the model needed its place"
        if used != going.program.returned.used:
            why = "other outputs of the model got a gradient than were planned for"
            self._likely[step.kind] = used
            step.call = step.call.using(used)
        with step.as_it_was_called():
            self.planned.notice_changes()
            if self.planned.key(step.call.using(None)) != step.kind:
                raise PoetError(
                    "the model, or what it was called with, has changed since the forward pass, "
                    f"which must run again, since {why}. Change it after backward"
                )
            going.give_up()
            step.executor, beside_bytes = self.waiting.executor(step.call, step)
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        old = {name: value.clone() for name, value in going.old_buffers.items()}
        shown = {name: buffers[name].clone() for name in old}
        with self.waiting.while_buffers_move_on(step):
            try:
                _put(buffers, old)
                with _random_state(going):
                    again = step.executor.begin(step.call, beside_bytes)
                step.going = again
                return again.go_on(gradients), again
            except OutOfBudget as error:
                raise OutOfBudget(
                    f"a forward pass had to run again beside its outputs, since {why}, and that "
                    f"takes too much: {error}"
                ) from error
            finally:
                _put(buffers, shown)


@contextlib.contextmanager
def _random_state(going: Pass) -> Iterator[None]:
    """The random state that a pass began with."""
    now = going.machine.random_state()
    going.machine.set_random_state(going.random_state)
    try:
        yield
    finally:
        going.machine.set_random_state(now)


def is_transformed() -> bool:
    """Whether this runs under a transform of torch.func, or in forward mode."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


class _Follow(torch.autograd.Function):
    """The tape as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, step: Step, *leaves: torch.Tensor) -> Any:
        ctx.step, ctx.token = step, Token()
        ctx.set_materialize_grads(False)  # no gradient is not one of zeros
        step.owner.waiting.add(step, ctx.token)
        outputs = step.going.hand_out()
        trained = step.going.program.returned.trained
        ctx.mark_non_differentiable(
            *(output for output, can in zip(outputs, trained, strict=True) if not can)
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if all(each is None for each in gradients):
            return (None,) * len(ctx.needs_input_grad)
        return (None, *ctx.step.owner.go_on(ctx.step, gradients))


def _put(buffers: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            buffers[name].copy_(value)
