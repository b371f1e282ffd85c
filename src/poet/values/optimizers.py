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
            if field == "betas":
                good = isinstance(value, tuple) and len(value) == 2
                good = good and all(isinstance(x, int | float) and 0 <= x < 1 for x in value)
                wanted = "two numbers from 0 to just below 1"
            else:
                good = isinstance(value, int | float) and 0 <= value < inf
                wanted = "a number from 0, not infinite"
            if not good:
                raise ValueError(f"{type(self).__name__}({field}={value!r}): it must be {wanted}")

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
        """All that is fixed when the step is captured, as the update's call has it."""
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


class _Moments(_Optimizer, frozen=True, forbid_unknown_fields=True):
    """What Adam and AdamW share: averages of the gradient and of its square."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    @property
    def state(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    @property
    def counts_steps(self) -> bool:
        return True

    @property
    def options(self) -> dict[str, Any]:
        beta1, beta2 = self.betas
        return {
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": self.eps,
            "weight_decay": self.weight_decay,
        }


class Adam(_Moments, frozen=True, forbid_unknown_fields=True, tag="adam"):
    """Adam with weight decay added to the gradient, as `torch.optim.Adam`."""

    kind: ClassVar[str] = "poet.adam"


class AdamW(_Moments, frozen=True, forbid_unknown_fields=True, tag="adamw"):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`."""

    kind: ClassVar[str] = "poet.adamw"
    weight_decay: float = 1e-2


Optimizer = SGD | Adam | AdamW
_TYPES: dict[str, Any] = {"nesterov": bool, "betas": tuple[float, float]}
"""Of options that are not plain numbers."""


def parse_optimizer(text: str) -> Optimizer | None:
    """What one types: `none`, `sgd`, `adamw?betas=0.9,0.99`; options as the classes name them."""
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
        given: Any = value.split(",") if option == "betas" else value
        try:
            options[option] = msgspec.convert(given, _TYPES.get(option, float), strict=False)
        except msgspec.ValidationError:
            raise PoetError(
                f"in the optimizer {text!r}, {value!r} is no value for {option}"
            ) from None
    try:
        return kind(**options)
    except ValueError as error:
        raise PoetError(str(error)) from None
