"""Captured steps give the bits of eager PyTorch, in any order that the referee accepts."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet
from poet.baselines.keep_all import keep_all
from poet.costs.analytic import analytic
from poet.devices import find_device
from poet.tracer.program import Program
from poet.values.plan import draft
from poet.values.schedule import Budget, Effort, Schedule, places
from poet.zoo import MODELS, build
from tests.torch.eager import captured, differences
from tests.torch.live_storage import LiveStorage
from tests.torch.random_schedules import random_schedule

SMALL = {
    "vgg16": "?size=32&classes=10&dropout=0.3&classifier=small",
    "unet-cifar": "?width=8",
    "bert-tiny": "?seq=32&vocab=500&dropout=0.37",
    "bert-base": "?layers=1&seq=16&vocab=500",
    "distilbert": "?layers=1&seq=16&vocab=500",
    "gpt2": "?layers=1&seq=16&vocab=500",
    "vit-tiny": "?layers=2&classes=10&dropout=0.1",
}
TWINS = ("vgg16-cifar", "resnet18", "resnet50", "mobilenetv2", "unet")
"""The same networks as others, for images of another size."""
SPECS = [name + SMALL.get(name, "") for name in MODELS if name not in TWINS]


def referred(program: Program, schedule: Schedule) -> poet.Report:
    """What the referee says of a schedule, with everything in RAM at the start."""
    graph = program.graph
    costs = analytic(graph, find_device("rpi4"))
    start, end = places(graph)
    budget = Budget(transfers="serial", start=start, end=end)
    return poet.check(draft(graph, costs, budget, schedule))


def wasteful(program: Program, step: int) -> Schedule:
    """Another schedule for each step, with recomputation and paging, that the referee accepts."""
    for seed in range(step, 100, 3):
        schedule = random_schedule(program.graph, seed, evict=0.2 + 0.2 * step)
        report = referred(program, schedule)
        assert report.violation is None, report.violation
        if report.recomputed_ops and report.page_ins:
            return schedule
    raise AssertionError("no schedule both recomputes and pages")


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_under_recomputation(spec: str) -> None:
    made = build(spec)
    assert not differences(*made, steps=2, schedule=wasteful, granularity="op")


@pytest.mark.parametrize("spec", SPECS)
def test_three_optimizer_steps_under_recomputation(spec: str) -> None:
    made = build(spec)
    optimizer = poet.AdamW(lr=0.01, weight_decay=0.1)
    assert not differences(*made, optimizer, schedule=wasteful)


@pytest.mark.parametrize("spec", SPECS)
def test_the_replayed_peak_is_the_live_bytes_of_the_run(spec: str) -> None:
    made = build(spec)
    program = captured(made, poet.SGD(lr=0.1, momentum=0.9, weight_decay=0.01))
    graph = program.graph
    start, end = places(graph)
    budget = Budget(transfers="serial", start=start, end=end)
    costs = analytic(graph, find_device("rpi4"))
    schedule = keep_all(graph, costs, budget, Effort()).schedule
    report = poet.check(draft(graph, costs, budget, schedule))
    given = [
        *made.model.parameters(),
        *made.model.buffers(),
        *program.example.tensors,
        *(value for held in program.state.values() for value in held.values()),
    ]
    with LiveStorage(given) as live:
        program.run(schedule=schedule)
    assert live.peak_bytes == pytest.approx(report.peak_bytes, rel=0.01)


OPTIMIZERS = [
    poet.SGD(lr=0.1),
    poet.SGD(lr=0.1, momentum=0.9),
    poet.SGD(lr=0.1, momentum=0.9, dampening=0.3),
    poet.SGD(lr=0.1, momentum=0.9, weight_decay=0.1),
    poet.SGD(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    poet.SGD(lr=0.1, momentum=0.9, nesterov=True),
    poet.Adam(lr=0.1),
    poet.Adam(lr=0.1, weight_decay=0.1),
    poet.AdamW(lr=0.1),
    poet.AdamW(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.0),
]


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_optimizers(optimizer: Any, fuse: bool) -> None:
    made = build("lenet?batch=3")
    assert not differences(*made, optimizer, fuse_updates=fuse)


def test_fused_updates_leave_no_weight_gradients() -> None:
    made = build("lenet")
    apart = captured(made, poet.SGD()).graph
    fused = captured(made, poet.SGD(), fuse_updates=True).graph
    gradients = {f"{name}.grad" for name, _ in made.model.named_parameters()}
    assert gradients <= {tensor.name for tensor in apart.tensors}
    assert not gradients & {tensor.name for tensor in fused.tensors}
    assert len(fused.ops) < len(apart.ops)


def test_updates_stand_as_early_as_they_can() -> None:
    graph = captured(build("lenet"), poet.SGD(), granularity="op").graph
    updates = [(k, op) for k, op in enumerate(graph.ops) if op.phase == "update"]
    assert len(updates) == 10
    for k, op in updates:
        before = graph.ops[k - 1]
        needed = {*op.inputs}
        assert before.phase == "update" or needed & {*before.outputs, *before.inputs}
    assert graph.ops[updates[0][0] + 1].phase == "backward"  # not all at the end


@pytest.mark.usefixtures("eager_bfloat16")
def test_bf16_autocast() -> None:
    made = build("lenet?batch=3")
    assert not differences(*made, poet.SGD(lr=0.1), autocast=torch.bfloat16, schedule=wasteful)


def test_autocast_around_a_capture_is_autocast_asked_for() -> None:
    made = build("lenet?batch=3")
    with torch.autocast("cpu", torch.bfloat16):
        around = captured(made, cache=False)
    asked = captured(made, cache=False, autocast="bfloat16")
    assert around.fingerprint == asked.fingerprint
    assert "bfloat16" in {tensor.dtype for tensor in asked.graph.tensors}


class Block(nn.Module):
    """In-place ops, a shared module, tied weights, a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.mix = nn.Linear(16, 16)
        self.again = self.mix
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight
        self.mean = nn.Buffer(torch.zeros(16))
        self.seen: torch.Tensor = nn.Buffer(torch.zeros((), dtype=torch.long))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.again(F.relu_(self.mix(self.table(tokens))))
        self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        self.seen = self.seen + 1
        scores: torch.Tensor = self.head(x - self.mean).mean(1)
        return scores


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.37, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.encode(x).mean(1))
        return scores


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(16, 8, num_layers=2, dropout=0.3, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.cell(x)[0][:, -1])
        return scores


class Square(torch.autograd.Function):
    """A backward pass that is not the derivative, so that losing it would show."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = ctx.saved_tensors[0]
        return gradients[0] * x * 3


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares: torch.Tensor = Square.apply(self.head(x))  # type: ignore[no-untyped-call]
        return squares


class Constant(nn.Module):
    """A tensor that is neither parameter nor buffer: the step must be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 5)
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(x) * self.scale
        return scores


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.head(x)
        return {"scores": scores, "loss": F.cross_entropy(scores, labels)}


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


X, IMAGE = torch.randn(4, 16), torch.randn(2, 3, 12, 12)
SEQUENCE, Y = torch.randn(4, 7, 16), torch.randint(0, 5, (4,))
PIXELS = torch.randint(0, 8, (2,))
LAST: dict[str, Any] = {"memory_format": torch.channels_last}
WEIGHTED = nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.rand(5))
spectral = nn.utils.parametrizations.spectral_norm
OTHERS: dict[str, Any] = {
    "tied, shared, in place": (
        Block,
        (torch.randint(0, 20, (4, 6)), torch.randint(0, 20, (4,))),
        F.cross_entropy,
    ),
    "transformer": (Attention, (SEQUENCE, Y), F.cross_entropy),
    "lstm": (Recurrent, (SEQUENCE, Y), F.cross_entropy),
    "custom function": (Custom, (X, Y), F.cross_entropy),
    "constant": (Constant, (X, Y), F.cross_entropy),
    "dict in, dict out": (Labelled, {"x": X, "labels": Y}, None),
    "loss with a buffer": (lambda: nn.Linear(16, 5), (X, Y), WEIGHTED),
    "bilinear": (
        lambda: images(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Dropout2d(0.4)),
        (IMAGE, PIXELS),
        F.cross_entropy,
    ),
    "group norm": (lambda: images(nn.GroupNorm(2, 8), nn.SiLU()), (IMAGE, PIXELS), F.cross_entropy),
    "spectral norm": (lambda: spectral(nn.Linear(16, 5)), (X, Y), F.cross_entropy),
    "channels last": (
        lambda: images(nn.BatchNorm2d(8), nn.ReLU()).to(**LAST),
        (IMAGE.contiguous(**LAST), PIXELS),
        F.cross_entropy,
    ),
    "double": (lambda: nn.Linear(16, 5).double(), (X.double(), Y), F.cross_entropy),
    "evaluation": (lambda: images(nn.BatchNorm2d(8)).eval(), (IMAGE, PIXELS), F.cross_entropy),
}


@pytest.mark.parametrize("which", OTHERS)
def test_models_of_every_kind(which: str) -> None:
    make, example, loss = OTHERS[which]
    torch.manual_seed(7)
    model = make()
    assert not differences(model, example, loss, steps=2, granularity="op")
    assert not differences(model, example, loss, poet.Adam(lr=0.01), steps=3)


def test_frozen_layers_shrink_the_graph() -> None:
    whole = captured(build("resnet18-cifar"), poet.SGD(), granularity="op").graph
    head = build("resnet18-cifar?train=head")
    graph = captured(head, poet.SGD(), granularity="op").graph
    assert len(graph.ops) < len(whole.ops) / 2
    assert sum(op.phase == "update" for op in graph.ops) == 2
    assert not differences(*head, poet.SGD(lr=0.1))
