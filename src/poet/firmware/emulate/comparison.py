"""A trained card against PyTorch: how far the weights are from each other, and from exact ones."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from poet.errors import PoetError
from poet.firmware.card.image import SECTOR, read_header, read_tensors
from poet.firmware.card.safetensors import read_safetensors
from poet.firmware.write.folder import read_folder

REFERENCE = "reference.safetensors"
MOST_DIFFERENCE = 1e-3
MOST_ERROR = 3.0


class CardComparison(msgspec.Struct, frozen=True, kw_only=True):
    """After the same steps on the same data, in norms over all parameters.

    `difference` is that of the two changes of the weights, as a share of PyTorch's. `error` is the
    distance from a float64 run, and `torch_error` the same for PyTorch's float32.
    """

    steps: int
    moved: float
    difference: float
    error: float
    torch_error: float

    @property
    def error_ratio(self) -> float:
        return self.error / self.torch_error if self.torch_error else float(self.error > 0)

    @property
    def is_close(self) -> bool:
        return self.difference <= MOST_DIFFERENCE and self.error_ratio <= MOST_ERROR


def compare_card(folder: Path) -> CardComparison | None:
    """The card beside the reference; None where there is no reference for its steps."""
    made, plan = read_folder(folder)
    if not (folder / REFERENCE).exists():
        return None
    with (folder / "card.img").open("rb") as file:
        header = read_header(file.read(SECTOR))
    if header.steps_done != made.steps:
        return None
    known = read_safetensors(folder / REFERENCE)
    card = read_tensors(folder / "card.img", plan.graph, made.card)
    names = {i: plan.graph.tensors[i].name for i in card
             if plan.graph.tensors[i].role == "parameter"}  # fmt: skip

    def joined(prefix: str) -> np.ndarray[Any, Any]:
        return np.concatenate([known[f"{prefix}/{n}"].ravel() for n in names.values()]).astype(
            "float64"
        )

    start, single, double = (joined(prefix) for prefix in ("start", "float32", "float64"))
    ours = np.concatenate([card[i].ravel() for i in names]).astype("float64")
    if not np.isfinite(ours).all() or not np.isfinite(single).all():
        raise PoetError("the weights are no longer finite; try a smaller learning rate")
    moved = float(np.linalg.norm(single - start))
    return CardComparison(
        steps=made.steps,
        moved=moved,
        difference=float(np.linalg.norm(ours - single)) / moved if moved else 0.0,
        error=float(np.linalg.norm(ours - double)),
        torch_error=float(np.linalg.norm(single - double)),
    )
