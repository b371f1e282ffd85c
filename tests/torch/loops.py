"""The loop that people write with accumulation, clipping, a scaler and a scheduler, in eager
PyTorch, and the same training by a trainer."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import poet
from poet.training.trainer import Trainer
from poet.values.update_rules import GATHERED
from tests.torch.eager import same_bits

LOSS = nn.CrossEntropyLoss()
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Loop(NamedTuple):
    """What is asked of a training. Scalers and schedulers are made anew for each of the two."""

    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    scaler: Callable[[], torch.amp.GradScaler] | None = None
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    autocast: torch.dtype | None = None


def net(seed: int = 0, width: int = 32) -> nn.Sequential:
    """Convolution, batch statistics, dropout: strides, buffers and random states count."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, width),
        nn.Dropout(0.3), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def batch(n: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(n)
    return torch.randn(size, 1, 6, 6, generator=draw), torch.randint(0, 10, (size,), generator=draw)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


class Eager:
    """The training in eager PyTorch, step by step."""

    def __init__(self, model: nn.Module, make: Make, loop: Loop) -> None:
        self.model, self.loop = copy.deepcopy(model), loop
        self.optimizer = make(self.model)
        self.scaler = loop.scaler() if loop.scaler is not None else None
        self.schedule = loop.schedule(self.optimizer) if loop.schedule is not None else None
        self.norms: list[float] = []
        self.steps = 0

    def copied(self) -> "Eager":
        """The same training, gathered gradients too, which a plain copy leaves out."""
        other = copy.deepcopy(self)
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        for mine, theirs in pairs:
            theirs.grad = None if mine.grad is None else mine.grad.clone()
        return other

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loop, scaler = self.loop, self.scaler
        with torch.autocast("cpu", loop.autocast, enabled=loop.autocast is not None):
            loss: torch.Tensor = LOSS(self.model(x), y)
        part = loss / loop.accumulate
        scaled = part if scaler is None else scaler.scale(part)
        scaled.backward()  # type: ignore[no-untyped-call]
        self.steps += 1
        if self.steps % loop.accumulate == 0:
            self._update()
        return loss.detach()

    def _update(self) -> None:
        loop, scaler, parameters = self.loop, self.scaler, list(self.model.parameters())
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        if loop.clip_norm is not None:
            self.norms.append(nn.utils.clip_grad_norm_(parameters, loop.clip_norm).item())
        if loop.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, loop.clip_value)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad()
        if self.schedule is not None:
            self.schedule.step()


class Planned:
    """The same by a trainer."""

    def __init__(self, model: nn.Module, make: Make, loop: Loop, **options: Any) -> None:
        self.loop, self.optimizer = loop, make(model)
        self.scaler = loop.scaler() if loop.scaler is not None else None
        usual: dict[str, Any] = {"example": batch(0), "time_limit": 0.2}
        self.trainer: Trainer = poet.Trainer(
            model, LOSS, self.optimizer, accumulate=loop.accumulate, clip_norm=loop.clip_norm,
            clip_value=loop.clip_value, scaler=self.scaler, autocast=loop.autocast,
            **usual | options,
        )  # fmt: skip
        self.schedule = loop.schedule(self.optimizer) if loop.schedule is not None else None

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.trainer.step(x, y)
        if self.schedule is not None and self.trainer.steps % self.loop.accumulate == 0:
            self.schedule.step()
        return loss


def steps_apart(eager: Eager, mine: Planned, steps: range, size: int = 8) -> list[str]:
    """What differs after these steps: losses, weights, buffers, and all that an optimizer keeps."""
    found = []
    for n in steps:
        torch.manual_seed(n)
        expected = eager.step(*batch(n, size))
        torch.manual_seed(n)
        if not same_bits(mine.step(*batch(n, size)), expected):
            found.append(f"loss of step {n}")
    return found + trainings_apart(eager, mine.trainer)


def trainings_apart(eager: Eager, trainer: Trainer) -> list[str]:
    with trainer.unpaged() as model:
        theirs = model.state_dict()
        found = [n for n, x in eager.model.state_dict().items() if not same_bits(x, theirs[n])]
        named = dict(eager.model.named_parameters())
        for name, held in trainer.program.state.items():
            kept = {k: x for k, x in eager.optimizer.state[named[name]].items() if k != "step"}
            if eager.optimizer.state[named[name]]:
                assert kept.keys() == held.keys() - {GATHERED}
            found += [f"{k} of {name}" for k, x in kept.items() if not same_bits(x, held[k])]
            gathered = named[name].grad
            if gathered is not None and not same_bits(held[GATHERED], gathered):
                found.append(f"gradient of {name}")
    assert trainer.budget_bytes is None or trainer.peak_bytes <= trainer.budget_bytes
    return found


def folder_of(tmp_path: Path, params: str) -> dict[str, Any]:
    """Options of a trainer whose parameters live there."""
    return {"store": tmp_path / "pages", "params": params}
