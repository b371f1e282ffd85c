"""Optimizers: which arithmetic turns a parameter and its gradient into the next parameter.

These are values: they say what an update is, not how it runs (`kernels` does, bit for bit like
`torch.optim`, and firmware in its own way). The learning rate is an input of the step, so that
schedules work; `lr` is where it starts.
"""

from math import inf
from typing import Any, ClassVar

import msgspec

from poet.errors import PoetError


class _Optimizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field, value in msgspec.structs.asdict(self).items():
            if isinstance(value, bool):
                continue
            most = 1.0 if field in ("beta1", "beta2") else inf
            if not isinstance(value, int | float) or not 0 <= value < most:
                raise ValueError(
                    f"{type(self).__name__}({field}={value!r}): it must be a number from 0"
                    + (" to just below 1" if most == 1 else ", not infinite")
                )

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the tensors kept for each parameter, each as large as it."""
        raise NotImplementedError

    @property
    def counts_steps(self) -> bool:
        """Whether the update depends on how many steps came before."""
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        """All that is fixed when the step is captured."""
        fields = msgspec.structs.asdict(self)
        return {name: value for name, value in fields.items() if name != "lr"}


class SGD(_Optimizer, frozen=True, forbid_unknown_fields=True, tag="sgd"):
    """Stochastic gradient descent, as `torch.optim.SGD`."""

    kind: ClassVar[str] = "poet.sgd"
    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("SGD(nesterov=True) needs a momentum and no dampening")

    @property
    def state(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def counts_steps(self) -> bool:
        return bool(self.momentum and self.dampening)


class Adam(_Optimizer, frozen=True, forbid_unknown_fields=True, tag="adam"):
    """Adam with weight decay added to the gradient, as `torch.optim.Adam`."""

    kind: ClassVar[str] = "poet.adam"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @property
    def state(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    @property
    def counts_steps(self) -> bool:
        return True


class AdamW(_Optimizer, frozen=True, forbid_unknown_fields=True, tag="adamw"):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`."""

    kind: ClassVar[str] = "poet.adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 1e-2

    @property
    def state(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    @property
    def counts_steps(self) -> bool:
        return True


Optimizer = SGD | Adam | AdamW


def parse_optimizer(text: str) -> Optimizer | None:
    """What one types: `none`, `sgd`, `adamw?weight_decay=0.1`; options as the classes name them."""
    name, mark, query = text.partition("?")
    kinds: dict[str, type[SGD] | type[Adam] | type[AdamW]] = {
        "sgd": SGD, "adam": Adam, "adamw": AdamW,
    }  # fmt: skip
    if name == "none" and not mark:
        return None
    if name not in kinds:
        raise PoetError(f"there is no optimizer {name!r}. There are none, {', '.join(kinds)}")
    kind = kinds[name]
    options: dict[str, Any] = {}
    for pair in query.split("&") if mark else ():
        option, _, value = pair.partition("=")
        if option not in kind.__struct_fields__ or option in options:
            known = ", ".join(kind.__struct_fields__)
            why = "is given twice" if option in options else f"is none of {name}'s options: {known}"
            raise PoetError(f"in the optimizer {text!r}, {option!r} {why}")
        try:
            options[option] = msgspec.convert(
                value, bool if option == "nesterov" else float, strict=False
            )
        except msgspec.ValidationError:
            raise PoetError(
                f"in the optimizer {text!r}, {value!r} is no value for {option}"
            ) from None
    try:
        return kind(**options)
    except ValueError as error:
        raise PoetError(str(error)) from None
