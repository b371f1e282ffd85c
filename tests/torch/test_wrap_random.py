"""Random models, calls and plans, wrapped and plain: every bit is the same."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import poet
from poet.planning.problem import Problem
from poet.planning.question import Terms
from poet.referee.replay import check
from poet.training.planned import PlannedSteps
from poet.values.plan import Plan, draft
from poet.values.schedule import PageIn
from tests.torch.random_schedules import random_schedule
from tests.torch.wrapping import (
    X,
    same_step,
    tensors_of,
)


class Mixed(nn.Module):
    """A random small network: what it does follows from a seed."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        kinds: list[Callable[[], nn.Module]] = [
            lambda: nn.Linear(8, 8),
            lambda: nn.BatchNorm1d(8),
            lambda: nn.LayerNorm(8),
            nn.Tanh,
            lambda: nn.ReLU(inplace=rng.random() < 0.5),
            nn.Softplus,
            lambda: nn.Dropout(0.3),
            lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
        ]
        self.layers = nn.ModuleList(
            [nn.Linear(8, 8), *(rng.choice(kinds)() for _ in range(rng.randint(2, 5)))]
        )
        self.head = nn.Linear(8, 3)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(8))
        self.counts = rng.random() < 0.5
        self.skips = [rng.random() < 0.3 for _ in self.layers]
        self.returns = rng.choice(("one", "pair", "dict", "pieces"))

    def forward(
        self, x: torch.Tensor, other: Any = None, *, scale: float = 1.0, deep: bool = True
    ) -> Any:
        y = x
        for layer, skips in zip(self.layers, self.skips, strict=True):
            y = y * scale + layer(y) if skips else layer(y)
        for each in other or ():
            y = y * each
        if self.counts:
            self.seen += y.detach().mean(0)
        out = self.head(y) if deep else y
        pieces = y.chunk(2, 1)
        return {
            "one": out,
            "pair": (out, y),
            "dict": {"out": out, "n": len(x), "inner": {"y": y.t()}},
            "pieces": [out, *pieces],
        }[self.returns]


@pytest.fixture
def random_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that recompute and page at random, and are found at once."""
    planned = PlannedSteps._planned
    seeds = itertools.count()

    def at_random(self: PlannedSteps, problem: Problem, terms: Terms) -> Plan:
        roomy = planned(self, problem, terms)
        budget = msgspec.structs.replace(roomy.budget, store_bytes=None)
        schedule = random_schedule(roomy.graph, next(seeds), evict=0.5)
        plan = draft(roomy.graph, roomy.costs, budget, schedule)
        assert check(plan).valid
        return plan

    monkeypatch.setattr(PlannedSteps, "_planned", at_random)


@pytest.mark.parametrize("seed", range(8))
def test_random_models_calls_and_plans(seed: int, random_plans: None, tmp_path: Path) -> None:
    rng = Random(seed)
    torch.manual_seed(seed)
    model = Mixed(rng)
    plain: Any = copy.deepcopy(model)
    small: Any = poet.wrap(model, example=(X,), store=tmp_path, time_limit=1, granularity="op")
    assert any(isinstance(each, PageIn) for each in small.plan.schedule) or small.plan.recomputed
    for step in range(7):
        args, kwargs = random_call(rng)
        for net in (small, plain):
            net.train(step % 4 < 2)
        picked = rng.random()

        def loss(out: Any, picked: float = picked) -> Any:
            trained = [each for each in tensors_of(out) if each.requires_grad]
            count = len(trained) if picked < 0.5 else 1
            return sum(torch.sin(each).sum() * (k + 1) for k, each in enumerate(trained[:count]))

        if rng.random() < 0.3:  # a pass without a backward pass
            for net in (small, plain):
                torch.manual_seed(step)
                net(*args, **kwargs)
        same_step(small, plain, *args, loss=loss, seed=step, **kwargs)
        with torch.no_grad():
            for net in (small, plain):
                for parameter in net.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad


def random_call(rng: Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(6, 8).requires_grad_(rng.random() < 0.5)
    kwargs: dict[str, Any] = {}
    if rng.random() < 0.5:
        kwargs["other"] = [torch.randn(6, 8).requires_grad_(rng.random() < 0.5)]
    if rng.random() < 0.3:
        kwargs["scale"] = rng.choice((0.5, -1.0))
    if rng.random() < 0.3:
        kwargs["deep"] = rng.random() < 0.5
    if rng.random() < 0.5:
        return (x,), kwargs
    return (), {"x": x, **kwargs}
