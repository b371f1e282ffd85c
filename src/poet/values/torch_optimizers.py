"""Torch optimizers: those of torch.optim whose updates are run by torch itself, tensor by tensor.

`optimizers` has those whose arithmetic is POET's own, which can run in tiles and in C. Of all
others it is enough to know their names, what they keep for each parameter, and where that starts:
an update calls the very optimizer, on one parameter (`poet.tracer.torch_updates`), and so rounds as
it does.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

Shape = tuple[int, ...]


def _same(shape: Shape) -> Shape:
    return shape


class Kept(NamedTuple):
    """One thing that an optimizer keeps for each parameter."""

    name: str
    first: float | str = 0.0
    """Where it starts: a number, or the option that says so; `lr` is the rate of the first step."""
    shape: Callable[[Shape], Shape] = _same
    when: Callable[[Mapping[str, Any]], Any] = lambda options: True
    """By which options it is there."""


class Known(NamedTuple):
    """What is known of an optimizer."""

    keeps: tuple[Kept, ...]
    temporaries: int
    """Of the parameter's size, that an update has at once; some options need one more each."""
    counts_steps: bool = True


def _number(shape: Shape) -> Shape:
    return ()


def _is_matrix(shape: Shape) -> bool:
    return len(shape) > 1


_AVERAGES = (Kept("exp_avg"), Kept("exp_avg_sq"))
_MOMENTS = (*_AVERAGES, Kept("max_exp_avg_sq", when=lambda options: options["amsgrad"]))
KNOWN: dict[str, Known] = {
    "Adadelta": Known((Kept("square_avg"), Kept("acc_delta")), 2),
    "Adafactor": Known(
        (
            Kept("row_var", shape=lambda shape: (*shape[:-1], 1)),
            Kept("col_var", shape=lambda shape: (*shape[:-2], 1, shape[-1])),
            Kept("variance"),
        ),
        2,
    ),
    "Adagrad": Known((Kept("sum", "initial_accumulator_value"),), 1),
    "Adam": Known(_MOMENTS, 2),
    "AdamW": Known(_MOMENTS, 2),
    "Adamax": Known((Kept("exp_avg"), Kept("exp_inf")), 1),
    "ASGD": Known((Kept("ax"), Kept("mu", 1.0, _number), Kept("eta", "lr", _number)), 0),
    "NAdam": Known((*_AVERAGES, Kept("mu_product", 1.0, _number)), 2),
    "RAdam": Known(_AVERAGES, 5),
    "RMSprop": Known(
        (
            Kept("square_avg"),
            Kept("momentum_buffer", when=lambda options: options["momentum"]),
            Kept("grad_avg", when=lambda options: options["centered"]),
        ),
        1,
    ),
    "Rprop": Known((Kept("prev"), Kept("step_size", "lr")), 3),
    "SGD": Known((Kept("momentum_buffer", when=lambda options: options["momentum"]),), 2),
}
OWN_SHAPES = {
    kept.name: kept.shape for known in KNOWN.values() for kept in known.keeps
    if kept.shape is not _same
}  # fmt: skip
"""Of what has another shape than its parameter, which."""
MORE_TEMPORARIES = ("maximize", "weight_decay", "foreach")
"""The options that do."""
NUMBERS_BYTES = 64
"""What an update takes for its step count and the like."""
PREFIX = "poet.torch_"
NAMES = {f"{PREFIX}{name.lower()}": name for name in KNOWN}
"""By the kinds of their calls, the names in torch.optim."""


class TorchOptimizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An optimizer of torch.optim with its options, betas apart."""

    name: str
    lr: float
    options: dict[str, Any]
    scalar_dtype: str = "float32"

    @property
    def kind(self) -> str:
        return f"{PREFIX}{self.name.lower()}"

    @property
    def counts_steps(self) -> bool:
        return self.name != "SGD" or bool(self.options["momentum"])

    def keeps(self, shape: Shape) -> tuple[Kept, ...]:
        """What it keeps for a parameter of this shape."""
        found = tuple(each for each in KNOWN[self.name].keeps if each.when(self.options))
        if self.name == "Adafactor":
            found = found[:2] if _is_matrix(shape) else found[2:]
        return found

    def first(self, kept: Kept) -> float:
        """Where it starts; what starts at the learning rate is set by the first update."""
        if isinstance(kept.first, str):
            return 0.0 if kept.first == "lr" else float(self.options[kept.first])
        return kept.first


def starts_at_rate(kind: str) -> tuple[str, ...]:
    """What the first update of an optimizer sets to its learning rate."""
    return tuple(kept.name for kept in KNOWN[NAMES[kind]].keeps if kept.first == "lr")


def state_names(kind: str) -> tuple[str, ...]:
    """All that an optimizer may keep."""
    return tuple(kept.name for kept in KNOWN[NAMES[kind]].keeps)
