"""Wrapped: a module whose forward and backward passes follow a plan, inside the user's own loop.

    small = poet.wrap(model, example=(x,), ram="2 GiB")
    loss = loss_fn(small(x), y)
    loss.backward()       # gradients are in .grad, as always
    optimizer.step()

The forward pass runs the tape up to the model's outputs and hands them out; the gradient that
autograd brings back enters the tape, which runs on to the gradients of the parameters. Between the
two, what the plan keeps is kept. In evaluation mode, or without gradients, the model runs as it is.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from poet.errors import PoetError
from poet.runtime.session import Trainer
from poet.runtime.step.executor import Pass
from poet.values.plan import Plan


class Wrapped(nn.Module):
    """The model with its training steps planned. Its state dict is the model's own."""

    def __init__(self, model: nn.Module, trainer: Trainer) -> None:
        super().__init__()
        self._inner = [model]  # in a list, so that names stay the model's own
        self._trainer = trainer
        self._pending: Pass | None = None
        self.peak_bytes = 0

    @property
    def plan(self) -> Plan:
        """The plan for the example's shape."""
        return self._trainer.plan

    @property
    def model(self) -> nn.Module:
        """The module inside."""
        return self._inner[0]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if not (self.model.training and torch.is_grad_enabled()):
            return self.model(*inputs, **named)
        if self._pending is not None and self._pending.is_waiting:
            if not self._pending.forgotten:
                raise PoetError(
                    "a forward pass of this model still waits for its backward pass: its tensors "
                    "are in RAM, and a second pass would take as much again. Call backward first"
                )
            self._pending.abandon()
        executor = self._trainer.executor_for(inputs if inputs else named)
        program = executor.program
        trained = [program.parameter(name) for name in program.layout.gradients]
        self._pending = executor.begin(inputs if inputs else named)
        made: Any = _Follow.apply(self, self._pending, *trained)  # type: ignore[no-untyped-call]
        return program.structure(made)

    def finished(self, done: Pass) -> None:
        """A backward pass has ended."""
        held = self._trainer.store_buffer_bytes
        self.peak_bytes = max(self.peak_bytes, done.machine.peak_bytes + held)
        self._pending = None

    # The model's own names

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return self.model.named_buffers(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        return self.model.named_children()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.load_state_dict(*args, **kwargs)

    def train(self, mode: bool = True) -> "Wrapped":
        self.training = mode
        self.model.train(mode)
        return self


class _Follow(torch.autograd.Function):
    """The tape as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, owner: Wrapped, going: Pass, *trained: torch.Tensor) -> Any:
        ctx.owner, ctx.going, ctx.token = owner, going, _Token()
        going.held_by(ctx.token)
        # Others than the tape's own, which would keep this node alive for ever.
        outputs = [tensor.detach() for tensor in going.outputs]
        whole = [tensor for tensor in outputs if not tensor.is_floating_point()]
        ctx.mark_non_differentiable(*whole)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        made = ctx.going.go_on(gradients)
        ctx.owner.finished(ctx.going)
        return (None, None, *made.values())


class _Token:
    """Lives as long as the node of autograd's graph that holds it."""
