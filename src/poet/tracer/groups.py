"""Groups: what an optimizer, ours or torch's, means for each parameter.

A torch optimizer is taken where its arithmetic is known, option by option; anything else is refused
by name, so that no update is ever almost the same.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import torch

from poet.errors import PoetError
from poet.tracer.step import Step
from poet.values.optimizers import SGD, Adam, AdamW, Optimizer


class Groups(NamedTuple):
    """The optimizers of a step, and which of them each parameter has (None: all the first)."""

    optimizers: tuple[Optimizer, ...] = ()
    member: dict[str, int] | None = None

    def without_rates(self) -> "Groups":
        """The same for every learning rate: a graph does not depend on it."""
        same = tuple(msgspec.structs.replace(each, lr=0.0) for each in self.optimizers)
        return Groups(same, self.member)


def groups_of(optimizer: Any, step: Step) -> Groups:
    """The groups of an optimizer: ours, one of torch's, or none."""
    if optimizer is None:
        return Groups()
    complex_ones = [name for _, name, value in step.owned_parameters() if value.is_complex()]
    if complex_ones and not isinstance(optimizer, SGD | torch.optim.SGD):
        raise PoetError(
            f"{complex_ones[0]} is complex; POET knows the arithmetic of Adam for real parameters "
            "only. Use SGD, or optimizer=None"
        )
    if isinstance(optimizer, SGD | Adam | AdamW):
        return Groups((optimizer,))
    if isinstance(optimizer, type):
        raise PoetError(
            f"{optimizer.__name__} is a class; give an optimizer, as in poet.SGD(lr=0.01)"
        )
    if isinstance(optimizer, str):
        raise PoetError(f"optimizer is {optimizer!r}; give an optimizer, as in poet.Adam(lr=0.001)")
    known = _TORCH.get(type(optimizer))
    if known is None:
        raise PoetError(
            f"POET does not know the arithmetic of {type(optimizer).__module__}."
            f"{type(optimizer).__qualname__}. It knows poet.SGD, poet.Adam and poet.AdamW and "
            "their namesakes in torch.optim; with optimizer=None the step gives out gradients"
        )
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    if any(getattr(optimizer, each, None) for each in hooks):
        raise PoetError(
            f"the {type(optimizer).__name__} has a hook around its steps, which a captured step "
            "would not call. Remove it, or do the same in the loss or after the step"
        )
    names = {id(value): name for _, name, value in reversed(list(step.owned_parameters()))}
    found, member = [], {}
    for n, group in enumerate(optimizer.param_groups):
        found.append(_group(type(optimizer).__name__, group, *known))
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise PoetError(
                    f"the optimizer has a parameter of shape {list(parameter.shape)} that the "
                    "model does not have: make the optimizer from this model's parameters"
                )
            member[names[id(parameter)]] = n
    return Groups(tuple(found), member)


def options_of(optimizer: Any) -> Callable[[], Any]:
    """How to read what a captured step has of a torch optimizer, but for its learning rates."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return lambda: None
    apart = ("params", "lr", "initial_lr", "max_lr", "min_lr")

    def options() -> Any:
        hooks = [*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks]
        return hooks, [
            (
                [(name, repr(value)) for name, value in group.items() if name not in apart],
                [id(each) for each in group["params"]],
            )
            for group in optimizer.param_groups
        ]

    return options


def _group(
    kind: str,
    group: Mapping[str, Any],
    make: Callable[[Mapping[str, Any]], Optimizer],
    usual: Mapping[str, Any],
) -> Optimizer:
    for option, value in usual.items():
        if group.get(option, value) not in (value, None, False):
            raise PoetError(
                f"POET does not know the arithmetic of torch.optim.{kind} with "
                f"{option}={group[option]!r}. Leave {option} at {value!r}, or use optimizer=None "
                "and your own update"
            )
    for option, value in group.items():
        if isinstance(value, torch.Tensor):
            raise PoetError(
                f"torch.optim.{kind} has {option} as a tensor; POET takes it as a number, which "
                "each step can change"
            )
    try:
        return make(group)
    except ValueError as error:
        raise PoetError(f"torch.optim.{kind}: {error}") from None


def _adam(kind: type[Adam] | type[AdamW], group: Mapping[str, Any]) -> Optimizer:
    return kind(group["lr"], tuple(group["betas"]), group["eps"], group["weight_decay"])


_USUAL = {"maximize": False, "differentiable": False, "capturable": False, "fused": False}
_TORCH: dict[type, tuple[Callable[[Mapping[str, Any]], Optimizer], dict[str, Any]]] = {
    torch.optim.SGD: (
        lambda g: SGD(g["lr"], g["momentum"], g["dampening"], g["weight_decay"], g["nesterov"]),
        _USUAL,
    ),
    torch.optim.Adam: (
        lambda g: _adam(AdamW if g.get("decoupled_weight_decay") else Adam, g),
        {**_USUAL, "amsgrad": False},
    ),
    torch.optim.AdamW: (
        lambda g: _adam(AdamW, g),
        {**_USUAL, "amsgrad": False},
    ),
}
