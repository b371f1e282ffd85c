"""Models with checkpoints of their own, around layers that write to their buffers."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import poet
from tests.torch.eager import differences, loss_of, same_bits
from tests.torch.wrapping import wrapped

X, Y = torch.randn(8, 8), torch.randn(8, 8)
mse = F.mse_loss


class Part(nn.Module):
    def __init__(self, *layers: nn.Module, **options: Any) -> None:
        super().__init__()
        self.first, self.part, self.options = nn.Linear(8, 8), nn.Sequential(*layers), options

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.part, self.first(x), **{"use_reentrant": False} | self.options)


class Norm(nn.BatchNorm1d):
    """With a forward pass of its own, as libraries have them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        made = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, True, 0.3, self.eps
        )
        return F.relu(made, inplace=True)


class Mixed(nn.Module):
    """The same layer outside of a part first, and layers of several kinds in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.part = nn.Sequential(self.fc, Norm(8), nn.Dropout(0.2), self.norm)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.part, self.norm(self.fc(x)), use_reentrant=False)


TWICE: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: Part(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2)),
    "reentrant": lambda: Part(nn.BatchNorm1d(8), nn.Tanh(), use_reentrant=True),
    "to its end": lambda: Part(nn.BatchNorm1d(8), nn.Linear(8, 8), early_stop=False),
    "without weights": lambda: Part(nn.BatchNorm1d(8, affine=False)),
    "frozen": lambda: Part(nn.Linear(8, 8), nn.BatchNorm1d(8).requires_grad_(False)),
    "evaluation": lambda: Part(nn.BatchNorm1d(8).eval()),
    "mixed": Mixed,
}


@pytest.mark.parametrize("which", TWICE)
def test_statistics_are_where_eager_leaves_them(which: str) -> None:
    assert not differences(TWICE[which](), (X, Y), mse, poet.SGD(lr=0.1, momentum=0.9))


def test_a_trainer_writes_them_twice_in_each_step(tmp_path: Path) -> None:
    model = nn.Sequential(
        Part(nn.Linear(8, 128), nn.BatchNorm1d(128), nn.Tanh()), nn.Linear(128, 8)
    )
    plain = copy.deepcopy(model)
    update = torch.optim.AdamW(plain.parameters(), lr=0.1)
    options: dict[str, Any] = {
        "ram": "150 KB",
        "store": tmp_path,
        "time_limit": 0.5,
        "cache": False,
    }
    with poet.Trainer(model, mse, poet.AdamW(lr=0.1), example=(X, Y), **options) as trainer:
        for n in range(3):
            batch = torch.randn(8 + n // 2, 8), torch.randn(8 + n // 2, 8)
            update.zero_grad()
            loss = loss_of(plain, batch, mse)
            loss.backward()  # type: ignore[no-untyped-call]
            update.step()
            assert same_bits(trainer.step(*batch), loss)
        assert trainer.peak_bytes <= (trainer.budget_bytes or 0)
    mine = model.state_dict()
    assert mine["0.part.1.num_batches_tracked"] == 6
    assert all(same_bits(value, mine[name]) for name, value in plain.state_dict().items())


class Shared(nn.Module):
    """One layer in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        made = self.fc(x)
        for _ in range(2):
            made = checkpoint(self.norm, made, use_reentrant=False)
        return made


class Buffered(nn.Module):
    """Something to be done with its buffers."""

    def __init__(self, run: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fc, self.norm, self.run = nn.Linear(8, 8), nn.BatchNorm1d(8), run
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        made = checkpoint(lambda x: self.run(self, x), self.fc(x), use_reentrant=False)
        if self.run is later:
            self.steps.add_(1)  # type: ignore[operator]
        return made


def warmed(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Reads what it counts: another number when it is recomputed."""
    self.steps.add_(1)
    made: torch.Tensor = self.norm(x) * self.steps
    return made


def later(self: Any, x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.tanh(x) * self.steps
    return made


def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Counts where a recomputation need not come to it."""
    made: torch.Tensor = self.norm(x)
    self.steps.add_(1)
    return made


def replaced(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.steps = self.steps + 1
    return torch.tanh(x)


def unused(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.norm(x)
    return torch.tanh(x)


def detached(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        self.norm(x)
    return torch.tanh(x)


def nested(self: Any, x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = checkpoint(self.norm, x, use_reentrant=False)
    return made


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "shared": (Shared, r"norm.* is written inside a checkpoint, by two calls"),
    "read": (lambda: Buffered(warmed), r"steps is written .*another value the second time"),
    "read, then changed": (lambda: Buffered(later), r"steps is changed after a checkpoint has"),
    "a count": (lambda: Buffered(counted), r"steps is written .*again when it recomputes"),
    "replaced": (lambda: Buffered(replaced), r"steps is written .*again when it recomputes"),
    "unused": (lambda: Buffered(unused), "no gradient comes through it"),
    "detached": (lambda: Buffered(detached), "where no gradient is wanted"),
    "nested": (lambda: Buffered(nested), r"norm.* again when it recomputes"),
    "other draws": (
        lambda: Part(nn.Dropout(0.3), preserve_rng_state=False), "preserve_rng_state=False draws",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", REFUSED)
def test_what_may_be_otherwise_in_eager_is_refused(which: str) -> None:
    make, message = REFUSED[which]
    with pytest.raises(poet.PoetError, match=message):
        poet.capture(make(), mse, poet.SGD(), example=(X, Y), cache=False)


def test_parts_that_draw_nothing_need_not_keep_a_random_state() -> None:
    assert not differences(Part(nn.Tanh(), preserve_rng_state=False), (X, Y), mse, poet.SGD(lr=0.1))


def test_wrapped_models_cannot_tell_whether_a_backward_pass_comes() -> None:
    with pytest.raises(poet.PoetError, match=r"part.0.*again when it recomputes. Leave the check"):
        wrapped(Part(nn.BatchNorm1d(8)))
