"""A trained card against PyTorch: how far the weights are from exact ones, and whether too far.

The measure is what the rounding of float32 does to this very network. Adam divides a gradient by
its size, so where one is nothing but rounding (the bias of attention's keys), float32 weights go
where chance takes them, here and in PyTorch. So each tensor of weights may be a few times as far
from those of a float64 run as PyTorch's own float32 is, or as one is whose rounding was thrown as
dice, whichever is farther. Where rounding does little, that is little.
"""

from math import hypot
from pathlib import Path

import msgspec
import numpy as np

from poet.errors import PoetError
from poet.firmware.card.commits import commit_of
from poet.firmware.card.image import read_tensors
from poet.firmware.card.safetensors import Array, read_safetensors
from poet.firmware.write.folder import read_folder
from poet.values.graph import printable

REFERENCE = "reference.safetensors"
MOST_ERROR = 10.0
"""How many times as far from exact weights a tensor may be as rounding explains."""
_LEAST_ROUNDINGS = 4.0
"""A tensor may always be so many roundings of its numbers off."""


class CardComparison(msgspec.Struct, frozen=True, kw_only=True):
    """After the same steps on the same data, in norms over all parameters.

    `difference` is that of the two changes of the weights, as a share of PyTorch's. `error` is the
    distance from a float64 run, and `torch_error` the same for PyTorch's float32. The tensor
    `worst` is `worst_ratio` times as far from float64 as rounding explains.
    """

    steps: int
    moved: float
    difference: float
    error: float
    torch_error: float
    worst: str
    worst_ratio: float

    @property
    def error_ratio(self) -> float:
        return self.error / self.torch_error if self.torch_error else float(self.error > 0)

    @property
    def is_close(self) -> bool:
        return self.worst_ratio <= MOST_ERROR


def compare_card(folder: Path) -> CardComparison | None:
    """The card beside the reference; None where there is no reference for its steps."""
    made, plan = read_folder(folder)
    if not (folder / REFERENCE).exists():
        return None
    if commit_of(folder / "card.img").steps_done != made.steps:
        return None
    known = read_safetensors(folder / REFERENCE)
    card = read_tensors(folder / "card.img", plan.graph, made.card)
    tensors = {
        plan.graph.tensors[i].name: array
        for i, array in card.items()
        if plan.graph.tensors[i].role == "parameter"
    }
    if not tensors:
        return None

    def taken(way: str, name: str, like: Array) -> Array:
        found = known.get(f"{way}/{name}")
        if found is None or found.shape != like.shape:
            raise PoetError(
                f"{folder / REFERENCE} has no {way} {printable(name)} of "
                f"{list(like.shape)}; emit the folder again"
            )
        return found.astype("float64")

    names = list(tensors)
    ratios: dict[str, float] = {}
    moved = apart = error = torch_error = 0.0
    for name in names:  # one at a time: a network may fill the memory
        ours = tensors.pop(name).astype("float64")
        start, single, double, noise = (taken(way, name, ours) for way in _WAYS)
        if not all(np.isfinite(each).all() for each in (ours, start, single, double, noise)):
            raise PoetError("the weights are no longer finite; try a smaller learning rate")
        ratios[name] = _ratio(ours, single, double, noise)
        moved = hypot(moved, _norm(single - start))
        apart = hypot(apart, _norm(ours - single))
        error = hypot(error, _norm(ours - double))
        torch_error = hypot(torch_error, _norm(single - double))
    worst = max(ratios, key=ratios.__getitem__)
    return CardComparison(
        steps=made.steps,
        moved=moved,
        difference=apart / moved if moved else 0.0,
        error=error,
        torch_error=torch_error,
        worst=worst,
        worst_ratio=ratios[worst],
    )


_WAYS = ("start", "float32", "float64", "noise")


def _ratio(ours: Array, single: Array, double: Array, noise: Array) -> float:
    """How many times as far from float64 a tensor is as rounding explains."""
    roundings = _LEAST_ROUNDINGS * _norm(np.spacing(np.abs(double).astype("float32"))) / MOST_ERROR
    explained = max(_norm(single - double), _norm(noise - double), roundings)
    return _norm(ours - double) / explained if explained else 0.0


def _norm(array: Array) -> float:
    return float(np.linalg.norm(array))
