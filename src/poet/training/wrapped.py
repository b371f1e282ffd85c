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
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from poet.errors import PoetError
from poet.planning.question import terms
from poet.rewrites.granularity import Granularity
from poet.runtime.step.executor import Pass
from poet.runtime.stores.base import Store
from poet.tracer.capture import capture_outputs
from poet.tracer.program import Program
from poet.tracer.watch import Watch
from poet.training.planned import PlannedSteps
from poet.values.device import Device
from poet.values.plan import Plan


def wrap(
    model: nn.Module,
    *,
    example: Any,
    ram: str | int | None = None,
    store: str | Path | Store | None = None,
    device: str | Device = "laptop",
    deadline: str | float | None = None,
    time_limit: float = 20.0,
    granularity: Granularity = "planning",
    autocast: torch.dtype | str | None = None,
) -> "Wrapped":
    """The model as a module whose forward and backward passes follow a plan.

    Loop, loss, `loss.backward()`, optimizer and clipping stay the user's own; `example` is what the
    model is called with. Parameters and their gradients stay in RAM, and count. `ram` is what it is
    for `poet.Trainer`.
    """
    asked = terms(
        device,
        ram,
        deadline,
        params="resident",
        paging=store is not None,
        # The user's loop may look at them at any time.
        pinned_roles=("input", "parameter", "buffer"),
        in_torch=True,
    )
    source = OutputsSource(model, granularity, autocast)
    return Wrapped(model, PlannedSteps(source, asked, example, store=store, time_limit=time_limit))


class OutputsSource(NamedTuple):
    """Captures forward and backward passes of a model, without a loss."""

    model: nn.Module
    granularity: Granularity
    autocast: torch.dtype | str | None

    def capture(self, batch: Any) -> Program:
        return capture_outputs(
            self.model, example=batch, granularity=self.granularity, autocast=self.autocast
        )

    def watch(self) -> Watch:
        return Watch({"": self.model}, ambient=self.autocast is None)


class Wrapped(nn.Module):
    """The model with its training steps planned. Its state dict is the model's own."""

    def __init__(self, model: nn.Module, planned: PlannedSteps) -> None:
        super().__init__()
        self._inner = [model]  # in a list, so that names stay the model's own
        self._planned = planned
        self._pending: Pass | None = None
        self.peak_bytes = 0

    @property
    def plan(self) -> Plan:
        """The plan for the example's shape."""
        return self._planned.session.plan

    @property
    def budget_bytes(self) -> int | None:
        """The most RAM that a step may take."""
        return self._planned.budget_bytes

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
        executor = self._planned.executor(inputs if inputs else named)
        program = executor.program
        trained = [program.parameter(name) for name in program.layout.gradients]
        self._pending = executor.begin(inputs if inputs else named)
        made: Any = _Follow.apply(self, self._pending, *trained)  # type: ignore[no-untyped-call]
        return program.structure(made)

    def finished(self, done: Pass) -> None:
        """A backward pass has ended."""
        held = self._planned.session.buffer_bytes
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
