"""Rates: what this machine's kernels reach, class by class, on a network made to show them.

The probe is a small network with every class of work in it, captured call by call and timed like
any other. Its ops give FLOPs a second for each class, bytes a second where only memory counts, and
the time of an op that does next to nothing: the figures that analytic costs need.
"""

from collections import defaultdict

import msgspec
import torch
from torch import nn
from torch.nn import functional as F

from poet.capturing import capture
from poet.costs.classes import class_of
from poet.costs.flops import call_flops
from poet.costs.sizes import sized_calls
from poet.costs.traffic import call_bytes
from poet.optimizers import Adam
from poet.profiling.laps import Laps
from poet.profiling.schedules import keep_all

_SECONDS = 2.0
_TINY_BYTES = 4096
_LARGE_BYTES = 2**22
_BATCH = {"cpu": 8, "cuda": 512}
"""Enough for the kernels to get up to speed."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The machine in a few numbers. `classes` are FLOPs a second by class of work."""

    classes: dict[str, float]
    memory_bytes_per_second: float
    op_overhead_seconds: float


class _Probe(nn.Module):
    """Convolutions wide and deep, norms, pools, and a transformer's parts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.conv = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.deep = nn.Conv2d(64, 128, 3, padding=1, bias=False)
        self.point = nn.Conv2d(64, 64, 1, bias=False)
        self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.embed = nn.Embedding(8192, 384)
        self.layer_norm = nn.LayerNorm(384)
        self.up = nn.Linear(384, 1536)
        self.down = nn.Linear(1536, 384)
        self.tiny = nn.Parameter(torch.zeros(8))

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.stem(images))
        x = F.relu(self.norm(x))
        x = self.depthwise(self.point(x)) + x
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = F.relu6(self.deep(x))
        y = self.layer_norm(self.embed(tokens))
        y = F.dropout(self.down(F.gelu(self.up(y))), 0.1) + y
        rows = y.view(4, -1, 384)
        weights = F.softmax(rows @ rows.transpose(1, 2), -1)
        small: torch.Tensor = self.tiny
        for _ in range(4):
            small = small * 1.5 + 1.0
        total: torch.Tensor = x.mean() + (weights @ rows).mean() + small.sum()
        return total


def measure_rates(device: torch.device, seconds: float = _SECONDS) -> Rates:
    """Run the probe and look at its ops."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        model = _Probe().to(device)
        batch = _BATCH[device.type]
        images = torch.randn(batch, 3, 56, 56, device=device)
        tokens = torch.randint(0, 8192, (64 * batch,), device=device)
        program = capture(
            model, (images, tokens), None, Adam(lr=0.0), granularity="op", cache=False
        )
        laps = Laps(program, keep_all(program))
        laps.measure(seconds)
    graph = program.graph
    flops: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    moved = moving = 0.0
    tiny = []
    for k, took in enumerate(laps.op_seconds):
        for call in sized_calls(graph, k):
            if call.is_view:
                continue
            nbytes = call_bytes(call)
            if nbytes <= _TINY_BYTES:
                tiny.append(took)
                continue
            if nbytes < _LARGE_BYTES and class_of(call) == "elementwise":
                continue
            flops[class_of(call)] += call_flops(call)
            busy[class_of(call)] += took
            if class_of(call) == "elementwise":
                moved += nbytes
                moving += took
    classes = {name: flops[name] / busy[name] for name in busy if name != "elementwise"}
    return Rates(
        classes=classes,
        memory_bytes_per_second=moved / moving,
        op_overhead_seconds=sorted(tiny)[len(tiny) // 2],
    )
