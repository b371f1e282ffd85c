"""Trainings whose ops stream their parameters: small models, and schedules made by hand."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet
from poet.costs.analytic import analytic
from poet.costs.streams import with_streams
from poet.devices import find_device
from poet.referee.replay import check
from poet.runtime.step.machine import Machine
from poet.training.trainer import Trainer
from poet.values.device import PLAIN, Costs
from poet.values.graph import Graph
from poet.values.plan import Plan, draft
from poet.values.schedule import (
    Budget,
    Compute,
    Free,
    Instruction,
    PageIn,
    PageOut,
    Schedule,
    Transfers,
    places,
)
from tests.torch.surviving import Alive

Choice = Callable[[int, list[str]], str]


class Mlp(nn.Sequential):
    """Rows of 1,200 bytes: tiles of 12 and 1 rows, of which the last is shorter."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(300, 50), nn.ReLU(), nn.Linear(50, 70, bias=False), nn.Tanh(),
            nn.Linear(70, 10),
        )  # fmt: skip


class Convs(nn.Module):
    """Strides, padding, one tap, with and without bias, a frozen weight, BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 40, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(40)
        self.second = nn.Conv2d(40, 30, 3, stride=2)
        self.third = nn.Conv2d(30, 200, 1, bias=False)
        self.fourth = nn.Conv2d(200, 50, (1, 3), padding=(0, 1), stride=(2, 1))
        self.fifth = nn.Conv2d(50, 60, 1)
        self.fifth.weight.requires_grad_(False)
        self.last = nn.Linear(60, 10)

    def forward(self, x: torch.Tensor) -> Any:
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(self.fourth(torch.tanh(self.third(F.relu(self.second(x))))))
        x = torch.tanh(self.fifth(x))
        return self.last(x.mean((2, 3)))


class Words(nn.Module):
    """Embeddings, one with a row of padding, and a layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 32, padding_idx=0)
        self.places = nn.Embedding(40, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 96, dropout=0.1, batch_first=True)
        self.last = nn.Linear(32, 500, bias=False)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.last(self.layer(x)).transpose(1, 2)


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": Mlp, "convs": Convs, "words": Words}
OPTIMIZERS: dict[str, Any] = {
    "sgd": poet.SGD(lr=0.1),
    "nesterov": poet.SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    # Where a gradient is next to nothing, Adam divides rounding by rounding.
    "adam": poet.Adam(lr=0.01, eps=1e-2),
    "adamw": poet.AdamW(lr=0.01, weight_decay=0.1, eps=1e-2),
}


def batch(name: str, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    if name == "words":  # some words more than once, and padding
        x = torch.randint(0, 60, (3, 9), generator=draw)
        return x, torch.randint(0, 500, (3, 9), generator=draw)
    if name == "planes":
        x = torch.randn(2, 2, 32, 36, generator=draw)
        return x, torch.randint(0, 3, (2, 24, 24), generator=draw)
    shape = (4, 300) if name == "mlp" else (4, 3, 12, 12)
    return torch.randn(shape, generator=draw), torch.randint(0, 10, (4,), generator=draw)


def made(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name]()


# Schedules


def schedule_of(graph: Graph, costs: Costs, choose: Choice, both: bool = False) -> Schedule:
    """Every op once; all that lasts is in the store whenever no op has it in RAM.

    With `both`, what an op streams is in RAM as well, for nothing.
    """
    steps: list[Instruction] = []
    lasting = {i for i in graph.given if graph.tensors[i].role != "input"}
    ram, stored = set(graph.given) - lasting, set(lasting)
    for k, op in enumerate(graph.ops):
        variant = choose(k, list(costs.ops[k]))
        run = costs.ops[k][variant]
        streamed = {stream.tensor for stream in run.reads}
        for i in op.inputs:
            if i not in ram and (both or i not in streamed):
                steps.append(PageIn(tensor=i))
                ram.add(i)
        steps.append(Compute(op=k, variant=variant))
        written = {stream.tensor for stream in run.writes}
        ram, stored = ram - set(op.consumed), (stored - set(op.consumed)) | written
        ram |= set(op.outputs) - written
        for i in sorted(ram):
            about = graph.tensors[i]
            if i in lasting or about.becomes is not None:
                if i not in stored:
                    steps.append(PageOut(tensor=i))
                    stored.add(i)
                steps.append(Free(tensor=i))
                ram.discard(i)
            elif about.role not in ("input", "output") and not any(
                reader > k for reader in graph.readers[i]
            ):
                steps.append(Free(tensor=i))
                ram.discard(i)
    return tuple(steps)


def largest_tiles(_: int, variants: list[str]) -> str:
    return "streamed" if "streamed" in variants else PLAIN


def smallest_tiles(_: int, variants: list[str]) -> str:
    return "streamed-small" if "streamed-small" in variants else largest_tiles(_, variants)


def mixture(seed: int) -> Choice:
    draw = random.Random(seed)
    return lambda _, variants: draw.choice(variants)


def never(_: int, variants: list[str]) -> str:
    return PLAIN


def planned(
    name: str,
    optimizer: Any,
    choose: Choice,
    transfers: Transfers = "serial",
    both: bool = False,
) -> Plan:
    """A plan whose RAM budget is its own peak."""
    program = poet.capture(
        made(name), F.cross_entropy, optimizer, example=batch(name), fuse_updates=True
    )
    graph, board = program.graph, find_device("laptop")
    costs = with_streams(analytic(graph, board), graph, board, in_torch=True)
    start, end = places(graph, "streamed")
    inputs = tuple(i for i in graph.given if graph.tensors[i].role == "input")
    budget = Budget(start=start, end=end, transfers=transfers, pinned=inputs)
    plan = draft(graph, costs, budget, schedule_of(graph, costs, choose, both))
    report = check(plan)
    assert report.violation is None
    budget = msgspec.structs.replace(budget, ram_bytes=report.peak_bytes)
    return msgspec.structs.replace(plan, budget=budget)


def trainer(name: str, optimizer: Any, plan: Plan, store: Any, seed: int = 0) -> Trainer:
    return poet.Trainer(
        made(name, seed),
        F.cross_entropy,
        optimizer,
        example=batch(name),
        plan=plan,
        store=store,
        params="streamed",
    )


def go_on(mine: Trainer, name: str, until: int) -> list[torch.Tensor]:
    losses = []
    while mine.steps < until:
        torch.manual_seed(mine.steps)
        losses.append(mine.step(*batch(name, mine.steps)))
    return losses


# Memory


class Watch:
    """What an onlooker sees while each op runs, beside what was counted before it ran."""

    def __init__(self, patch: pytest.MonkeyPatch, given: Iterable[torch.Tensor]) -> None:
        self._nothing = torch.empty(0)
        self.alive = Alive(given, self._nothing)
        self.counted: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self._now: int | None = None
        room, page = Machine.room, Machine.room_for_page

        def room_and_look(machine: Machine, k: int, nbytes: int) -> None:
            room(machine, k, nbytes)
            self.look()
            self._now, self.counted[k] = k, machine.live_bytes + nbytes

        def page_and_look(machine: Machine, i: int, nbytes: int) -> None:
            self.look()
            page(machine, i, nbytes)

        patch.setattr(Machine, "room", room_and_look)
        patch.setattr(Machine, "room_for_page", page_and_look)

    def look(self) -> None:
        if self._now is not None:
            self.seen[self._now] = self.alive.peak_bytes
        self._now, self.alive.peak_bytes = None, 0
