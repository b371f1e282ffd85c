"""Kernels: the updates that a graph calls, in torch, bit for bit like `torch.optim` on one tensor.

Each takes the arguments of its call by name, writes parameter and state in place and returns them.
The order of operations is that of torch's plain (not fused, not multi-tensor) implementations; only
temporaries are reused. Arithmetic on the learning rate and the step count is Python's, in doubles.
An update that is told to `skip` leaves all as it is. Other optimizers are run by torch itself
(`torch_updates`).
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from torch import Tensor

from poet.calls.updates import CLEAR, GATHER
from poet.tracer.torch_updates import arguments_of, updates
from poet.values.update_rules import NOTHING

FIRST_MOMENTUM = -0.0
"""Where a momentum buffer starts: -0.0 + g is g, bit for bit, for every g; 0.0 + -0.0 is not."""


def sgd(
    *,
    parameter: Tensor,
    gradient: Tensor,
    learning_rate: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    momentum_buffer: Tensor | None = None,
    step: int = 1,
) -> tuple[Tensor, ...]:
    if weight_decay != 0:
        gradient = gradient.add(parameter, alpha=weight_decay)
    if momentum_buffer is None:
        return (parameter.add_(gradient, alpha=-learning_rate),)
    # The first buffer is the gradient itself, undampened.
    share = 1 - dampening if step > 1 or dampening == 0 else 1
    momentum_buffer.mul_(momentum).add_(gradient, alpha=share)
    if not nesterov:
        gradient = momentum_buffer
    elif weight_decay != 0:
        gradient.add_(momentum_buffer, alpha=momentum)
    else:
        gradient = gradient.add(momentum_buffer, alpha=momentum)
    return parameter.add_(gradient, alpha=-learning_rate), momentum_buffer


def adam(
    *,
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    learning_rate: float,
    step: int,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> tuple[Tensor, ...]:
    decayed = gradient.add(parameter, alpha=weight_decay) if weight_decay != 0 else gradient
    exp_avg.lerp_(decayed, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(decayed, decayed, value=1 - beta2)
    del decayed  # before the next temporary is made
    step_size = learning_rate / (1 - beta1**step)
    denominator = exp_avg_sq.sqrt().div_((1 - beta2**step) ** 0.5).add_(epsilon)
    return parameter.addcdiv_(exp_avg, denominator, value=-step_size), exp_avg, exp_avg_sq


def adamw(
    *, parameter: Tensor, learning_rate: float, weight_decay: float, **others: Any
) -> tuple[Tensor, ...]:
    """The decay by itself, and then Adam without any."""
    if weight_decay != 0:
        parameter.mul_(1 - learning_rate * weight_decay)
    return adam(parameter=parameter, learning_rate=learning_rate, weight_decay=0.0, **others)


def gather(*, total: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    return (total.add_(gradient),)


def clear(*, total: Tensor) -> tuple[Tensor, ...]:
    return (total.fill_(NOTHING),)


def _unless_skipped(update: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    @wraps(update)
    def guarded(*, skip: float = 0, **given: Any) -> tuple[Tensor, ...]:
        if not skip:
            return update(**given)
        return tuple(x for name, x in given.items() if isinstance(x, Tensor) and name != "gradient")

    return guarded


_UPDATES: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "poet.sgd": sgd,
    "poet.adam": adam,
    "poet.adamw": adamw,
    **updates(),
}
KERNELS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    **{kind: _unless_skipped(update) for kind, update in _UPDATES.items()},
    GATHER: gather,
    CLEAR: clear,
}

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "poet.sgd": (*signature(sgd).parameters, "skip"),
    "poet.adam": (*signature(adam).parameters, "skip"),
    "poet.adamw": (*signature(adam).parameters, "skip"),  # `others` are Adam's
    **{kind: (*arguments_of(kind), "skip") for kind in updates()},
    GATHER: tuple(signature(gather).parameters),
    CLEAR: tuple(signature(clear).parameters),
}
"""The names of the arguments that each takes."""
