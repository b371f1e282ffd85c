"""Groups: what an optimizer, ours or torch's, means for each parameter.

A torch optimizer is taken where its arithmetic is known, option by option; what POET does not do by
itself, torch does (`torch_updates`). Anything else is refused by name, so that no update is ever
almost the same.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from poet.errors import PoetError
from poet.tracer.step import Step
from poet.tracer.torch_updates import options_of as torch_options
from poet.values.optimizers import SGD, Adam, AdamW, Optimizer
from poet.values.torch_optimizers import KNOWN, TorchOptimizer


class Groups(NamedTuple):
    """The optimizers of a step, and which of them each parameter has (None: all the first)."""

    optimizers: tuple[Optimizer | TorchOptimizer, ...] = ()
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
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PoetError(
            f"the optimizer is a {type(optimizer).__name__}; give poet.SGD, poet.Adam, poet.AdamW, "
            "or an optimizer of torch.optim"
        )
    name = _name_of(optimizer)
    if theirs(optimizer):
        raise PoetError(
            f"the {name} has a hook around its steps, which a captured step "
            "would not call. Remove it, or do the same in the loss or after the step"
        )
    if name == "Adafactor" and len({value.dtype for _, _, value in step.owned_parameters()}) > 1:
        raise PoetError(
            "torch.optim.Adafactor takes its eps from the first parameter's dtype, and here they "
            "have several: give all parameters one dtype, or another optimizer"
        )
    names = {id(value): name for _, name, value in reversed(list(step.owned_parameters()))}
    found, member = [], {}
    for n, group in enumerate(optimizer.param_groups):
        found.append(_group(name, group))
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise PoetError(
                    f"the optimizer has a parameter of shape {list(parameter.shape)} that the "
                    "model does not have: make the optimizer from this model's parameters"
                )
            member[names[id(parameter)]] = n
    return Groups(tuple(found), member)


def theirs(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The hooks around an optimizer's steps, but for a trainer's own."""
    hooks = (
        *optimizer._optimizer_step_pre_hooks.values(),
        *optimizer._optimizer_step_post_hooks.values(),
        *_global_optimizer_pre_hooks.values(),
        *_global_optimizer_post_hooks.values(),
    )
    return [hook for hook in hooks if not isinstance(hook, TrainersHook)]


class TrainersHook:
    """A hook of a trainer's own: `act` is called where the hook is."""

    def __init__(self, act: Callable[[torch.optim.Optimizer], None]) -> None:
        self.act = act

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.act(optimizer)


def options_of(optimizer: Any, has_live_options: bool = False) -> Callable[[], Any]:
    """How to read what a captured step has of a torch optimizer, but for what its steps are given:
    learning rates, and, where options are live, momentum and betas as numbers."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return lambda: None

    def shown(name: str, value: Any) -> Any:
        if name == "lr" or (name == "betas" and has_live_options):
            return type(value).__name__
        return bool(value) if name == "momentum" and has_live_options else repr(value)

    def options() -> Any:
        return theirs(optimizer), [
            (
                [(name, shown(name, group[name])) for name in optimizer.defaults if name in group],
                [id(each) for each in group["params"]],
            )
            for group in optimizer.param_groups
        ]

    return options


def _name_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of an optimizer of torch.optim; others are refused, with what can be done."""
    kind = type(optimizer)
    if kind in _KINDS:
        return kind.__name__
    if kind in _NEVER:
        raise PoetError(f"torch.optim.{kind.__name__} {_NEVER[kind]}")
    base = next((each.__name__ for each in kind.__mro__ if each in _KINDS), None)
    like = "" if base is None else f" It is built on torch.optim.{base}, which would do as it is."
    raise PoetError(
        f"POET does not know the arithmetic of {kind.__module__}.{kind.__qualname__}, only that of "
        f"torch.optim's {', '.join(KNOWN)}.{like} With poet.wrap the loop and the optimizer stay "
        "your own; with optimizer=None the step gives out gradients"
    )


def _group(name: str, group: Mapping[str, Any]) -> Optimizer | TorchOptimizer:
    for option in ("differentiable", "capturable", "fused"):
        if group.get(option):
            raise PoetError(
                f"POET does not know the arithmetic of torch.optim.{name} with "
                f"{option}={group[option]!r}. Leave {option} at False, or use optimizer=None "
                "and your own update"
            )
    for option, value in group.items():
        values = value if isinstance(value, tuple | list) and option != "params" else (value,)
        if any(isinstance(each, torch.Tensor) for each in values):
            raise PoetError(
                f"torch.optim.{name} has {option} as a tensor; POET takes it as a number, which "
                "each step can change"
            )
    own = _own(name, group)
    if own is not None:
        return own
    options = {option: group[option] for option in torch_options(name) if option in group}
    if "betas" in options:
        options["beta1"], options["beta2"] = options.pop("betas")
    dtype = "float64" if torch.get_default_dtype() == torch.float64 else "float32"
    plain = {n: list(x) if isinstance(x, tuple) else x for n, x in options.items()}
    return TorchOptimizer(name=name, lr=group["lr"], options=plain, scalar_dtype=dtype)


def _own(name: str, group: Mapping[str, Any]) -> Optimizer | None:
    """POET's own optimizer with this arithmetic, if there is one."""
    if name not in ("SGD", "Adam", "AdamW") or group["maximize"] or group.get("amsgrad"):
        return None
    try:
        if name == "SGD":
            names = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
            return SGD(*(group[each] for each in names))
        kind = AdamW if name == "AdamW" or group.get("decoupled_weight_decay") else Adam
        return kind(group["lr"], tuple(group["betas"]), group["eps"], group["weight_decay"])
    except ValueError as error:
        raise PoetError(f"torch.optim.{name}: {error}") from None


_KINDS = frozenset(getattr(torch.optim, name) for name in KNOWN)
_NEVER: dict[type, str] = {
    torch.optim.LBFGS: (
        "runs the model several times for one step, as its line search wants, which no graph can "
        "hold. Use another optimizer, or poet.wrap, whose loop is your own"
    ),
    torch.optim.SparseAdam: (
        "takes sparse gradients, and POET plans dense tensors. Use torch.optim.Adam with "
        "nn.Embedding(sparse=False), or poet.wrap"
    ),
}
