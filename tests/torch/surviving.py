"""A small training run that draws random numbers, pages its parameters, and can be compared."""

import functools
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import poet
from poet.training.trainer import Trainer
from tests.torch.eager import same_bits

ADAMW = poet.AdamW(lr=0.01, weight_decay=0.1)
LOSS = nn.CrossEntropyLoss()


def net(seed: int = 0, width: int = 64) -> nn.Sequential:
    """Dropout and batch statistics: random states and buffers matter from step to step."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 4)
    )
    model.register_buffer("unused", torch.arange(3), persistent=False)
    return model


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(8, 16, generator=draw), torch.randint(0, 4, (8,), generator=draw)


@functools.cache
def usual_plan(params: Any) -> poet.Plan:
    """For the net and AdamW: planned once for all tests."""
    program = poet.capture(net(), LOSS, ADAMW, example=batch(0))
    return poet.plan(program, "laptop", params=params, time_limit=1)


def trainer(folder: Path, params: Any = "paged", seed: int = 0, **more: Any) -> Trainer:
    usual: dict[str, Any] = {"optimizer": ADAMW, "loss_fn": LOSS, "example": batch(0)}
    if not more:
        usual["plan"] = usual_plan(params)
    options = {"model": net(seed), **usual, **more}
    return poet.Trainer(store=folder, params=params, time_limit=1, **options)


def go_on(mine: Trainer, until: int, seed: int | None = None) -> None:
    """Train to a step; the first time with a seed."""
    if seed is not None:
        torch.manual_seed(seed)
    while mine.steps < until:
        mine.step(*batch(mine.steps))


def apart(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two state dicts differ by a bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return [each for name in one for each in apart(one[name], other[name], f"{where}/{name}")]
    same = same_bits(one, other) if isinstance(one, torch.Tensor) else one == other
    return [] if same else [where]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def page_file(folder: Path) -> Path:
    (found,) = folder.glob("poet-pages-*")
    return found


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What storages take, those that are emptied and filled again too: looked at after each call.

    `look` is for moments that torch does not see. What is `counted` elsewhere is left out.
    """

    def __init__(self, given: Iterable[torch.Tensor], counted: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counted = counted.untyped_storage()._cdata
        self.peak_bytes = 0
        self._tensors = [weakref.ref(tensor) for tensor in given]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        new = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        self._tensors = [each for each in self._tensors if each() is not None]
        self._tensors += [weakref.ref(each) for each in new]
        self.look()
        return made

    def look(self) -> int:
        tensors = [tensor for each in self._tensors if (tensor := each()) is not None]
        found = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
        found.pop(self._counted, None)
        self.peak_bytes = max(self.peak_bytes, sum(found.values()))
        return sum(found.values())
