"""Ops that run piece by piece in PyTorch: the same training within rounding, in the RAM planned."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet
from poet.referee.replay import check
from poet.runtime.stores.page_file import BLOCK_BYTES
from poet.values.plan import Plan
from tests.mcu.forced import forced_plan, with_random_ways
from tests.mcu.nets import Planes
from tests.torch.streamed import MODELS, OPTIMIZERS, batch, made
from tests.torch.test_streaming import trained_as_planned


class Grow(nn.Module):
    """Convolutions up and down, in groups, joined; attention; a loss of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.apart = nn.Conv2d(8, 16, 3, padding=2, dilation=2, groups=4)
        self.less = nn.Conv2d(16, 12, 2, stride=2)
        self.up = nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.last = nn.Conv2d(14, 10, 1)

    def forward(self, x: torch.Tensor) -> Any:
        first = F.relu(self.down(x))
        up = self.up(F.gelu(self.less(F.hardtanh(self.apart(first)))))
        joined = F.max_pool2d(torch.cat((first, up), 1), 3)
        tokens = joined.flatten(2).transpose(1, 2).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.last(mixed.squeeze(1).transpose(1, 2).unsqueeze(-1)).mean((2, 3))


def planned_in_pieces(name: str, optimizer: object, seed: int) -> Plan:
    program = poet.capture(made(name), F.cross_entropy, optimizer, example=batch(name))  # type: ignore[arg-type]
    graph = program.in_pieces.graph
    costs, ways = with_random_ways(graph, random.Random(seed), in_torch=True)
    assert len(ways) > len(graph.ops) / 2
    inputs = tuple(i for i in graph.given if graph.tensors[i].role == "input")
    ways = {k: way for k, way in ways.items() if not _streams(costs.ops[k][way], inputs)}
    plan = forced_plan(graph, costs, ways, inputs)
    budget = msgspec.structs.replace(plan.budget, ram_bytes=plan.peak_bytes)
    return msgspec.structs.replace(plan, budget=budget)


def _streams(run: poet.Run, tensors: tuple[int, ...]) -> bool:
    return any(stream.tensor in tensors for stream in run.reads)


@pytest.mark.parametrize(
    ("name", "optimizer", "seed"),
    [
        *(("mlp", optimizer, seed) for seed, optimizer in enumerate(OPTIMIZERS)),
        ("words", "sgd", 0),
        ("words", "adam", 2),
        ("convs", "adamw", 3),
        ("grow", "nesterov", 1),
        ("grow", "adam", 2),
        ("planes", "sgd", 1),
        ("planes", "adam", 2),
    ],
)
def test_training_in_pieces_is_the_same_within_rounding(
    name: str, optimizer: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poet.calls.pieces.ways.LEAST_BYTES", 128)
    monkeypatch.setitem(MODELS, "grow", Grow)
    monkeypatch.setitem(MODELS, "planes", Planes)
    update = OPTIMIZERS[optimizer]
    plan = planned_in_pieces(name, update, seed)
    report = check(plan)
    assert report.streamed_in_bytes > 0
    assert report.streamed_out_bytes > 0
    store: Any = poet.MemoryStore()
    if name == "mlp":
        store = poet.FileStore(tmp_path, chunk_bytes=4 * BLOCK_BYTES)
    moved, planned_bytes = trained_as_planned(name, update, plan, store)
    assert moved == planned_bytes or (name == "words" and moved < planned_bytes)
