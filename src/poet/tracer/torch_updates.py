"""Torch updates: an update by an optimizer of torch.optim, on one parameter of it.

The very optimizer is made, with the options of its group and the state that the parameter has, and
takes one step. So an update rounds as the user's own optimizer would, on this device too. What the
first step of an optimizer sets to the learning rate of that moment is set then.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _get_scalar_dtype

from poet.values.torch_optimizers import KNOWN, NAMES, starts_at_rate, state_names

_BETAS = ("beta1", "beta2")
_GIVEN = ("parameter", "gradient", "learning_rate", "step")


def options_of(name: str) -> tuple[str, ...]:
    """What the optimizer is made with, besides parameters and their learning rate."""
    parameters = inspect.signature(getattr(torch.optim, name).__init__).parameters
    return tuple(x for x in parameters if x not in ("self", "params", "lr"))


def arguments_of(kind: str) -> tuple[str, ...]:
    """The names of the arguments of an update of this kind."""
    options = (x for x in options_of(NAMES[kind]) if x != "betas")
    return (*_GIVEN, *state_names(kind), *_BETAS, *options)


def updates() -> dict[str, Callable[..., tuple[Tensor, ...]]]:
    """The updates by the kinds of their calls."""
    return {kind: partial(_update, kind) for kind in NAMES}


def _update(
    kind: str,
    *,
    parameter: Tensor,
    gradient: Tensor,
    learning_rate: float,
    step: int = 1,
    **others: Any,
) -> tuple[Tensor, ...]:
    name = NAMES[kind]
    state = {kept: others.pop(kept) for kept in state_names(kind) if kept in others}
    if "beta1" in others:
        others["betas"] = (others.pop("beta1"), others.pop("beta2"))
    alias = parameter.detach()  # so that nothing stays at the parameter
    optimizer = getattr(torch.optim, name)([alias], lr=learning_rate, **others)
    held: dict[str, Tensor] = dict(state)
    if KNOWN[name].counts_steps:
        held["step"] = torch.tensor(float(step - 1), dtype=_get_scalar_dtype())  # type: ignore[no-untyped-call]
    if step == 1:
        for kept in starts_at_rate(kind):
            state[kept].fill_(learning_rate)
        if name == "SGD":  # it begins with the first gradient itself
            held.clear()
    optimizer.state[alias].update(held)
    alias.grad = gradient
    optimizer.step()
    alias.grad = None
    after = optimizer.state[alias]
    for kept, tensor in state.items():
        if after[kept] is not tensor:
            tensor.copy_(after[kept])
    return parameter, *state.values()
