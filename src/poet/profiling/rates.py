"""Rates: what this machine's kernels reach, class by class, on networks made to show them.

The probe has every class of work in it, and is captured call by call and timed like any other
network, once wide and once narrow. Of a class, the narrow one shows the time to start a call, the
wide one FLOPs a second, or bytes a second where only memory counts: the figures that analytic costs
need.
"""

from collections import defaultdict
from collections.abc import Iterator

import msgspec
import torch
from torch import nn
from torch.nn import functional as F

from poet.calls.sizes import sized_calls
from poet.costs.classes import class_of
from poet.costs.flops import call_flops
from poet.costs.traffic import call_bytes
from poet.profiling.laps import Laps
from poet.profiling.schedules import keep_all
from poet.tracer.capture import capture
from poet.values.optimizers import Adam

_SECONDS = 2.0
_BATCH = {"cpu": 8, "cuda": 512}
"""Enough for the kernels to get up to speed."""
_NARROW = 8
_BY_BYTES = {"elementwise": 2**22, "reductions": 2**20, "tables": 2**20}
"""Classes that memory alone limits, and the bytes from which on it does."""
_BY_EITHER = ("convolutions", "convolution_gradients")
"""Classes that memory limits where there are fewer than `_INTENSE` FLOPs a byte."""
_INTENSE = 8


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The machine in a few numbers, for each class of work and for what is in none of them.

    `classes` are FLOPs a second, `class_bytes` bytes a second, `class_overheads` the seconds that a
    call takes beside.
    """

    classes: dict[str, float]
    class_bytes: dict[str, float]
    class_overheads: dict[str, float]
    memory_bytes_per_second: float
    op_overhead_seconds: float


class _Timed(msgspec.Struct, frozen=True):
    """A call of a probe."""

    kind: str
    flops: int
    nbytes: int
    seconds: float


class _Probe(nn.Module):
    """Convolutions wide and deep, norms, pools, and a transformer's parts."""

    def __init__(self, narrow: int = 1) -> None:
        super().__init__()
        a, b, c, self.width = 32 // narrow, 64 // narrow, 128 // narrow, 384 // narrow
        self.stem = nn.Conv2d(3, a, 3, padding=1, bias=False)
        self.conv = nn.Conv2d(a, b, 3, padding=1, bias=False)
        self.deep = nn.Conv2d(b, c, 3, padding=1, bias=False)
        self.point = nn.Conv2d(b, b, 1, bias=False)
        self.depthwise = nn.Conv2d(b, b, 3, padding=1, groups=b, bias=False)
        self.norm = nn.BatchNorm2d(b)
        self.heavy = nn.Conv2d(c, 4 * c, 3, padding=1, bias=False)
        self.embed = nn.Embedding(8192 // narrow, self.width)
        self.layer_norm = nn.LayerNorm(self.width)
        self.up = nn.Linear(self.width, 4 * self.width)
        self.down = nn.Linear(4 * self.width, self.width)
        self.tiny = nn.Parameter(torch.zeros(8))

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.stem(images))
        x = F.relu(self.norm(x))
        x = self.depthwise(self.point(x)) + x
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = F.relu6(self.deep(x))
        few = self.heavy(x[:1, :, :2, :2])  # more weights than pixels
        y = self.layer_norm(self.embed(tokens))
        y = F.dropout(self.down(F.gelu(self.up(y))), 0.1) + y
        rows = y.view(4, -1, self.width)
        weights = F.softmax(rows @ rows.transpose(1, 2), -1)
        heads = y.view(4, -1, 6, self.width // 6).transpose(1, 2)
        seen = F.scaled_dot_product_attention(heads, heads, heads)
        small: torch.Tensor = self.tiny
        for _ in range(4):
            small = small * 1.5 + 1.0
        parts = (x, weights @ rows, seen, few)
        return small.sum() + torch.stack([part.mean() for part in parts]).sum()


def measure_rates(device: torch.device, seconds: float = _SECONDS) -> Rates:
    """Run the probes and look at their ops."""
    batch = _BATCH[device.type]
    wide = list(_timed(device, 1, batch, 56, 64 * batch, seconds / 2))
    narrow = list(_timed(device, _NARROW, 1, 8, 32, seconds / 2))
    starts: dict[str, list[float]] = defaultdict(list)
    for call in narrow:
        starts[call.kind].append(call.seconds)
    overheads = {kind: sorted(took)[len(took) // 2] for kind, took in starts.items()}
    least = min(overheads.values())
    flops: dict[str, float] = defaultdict(float)
    moved: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    moving: dict[str, float] = defaultdict(float)
    for call in wide:
        if call.nbytes < _BY_BYTES.get(call.kind, 0):
            continue
        # Some of what a small call takes a large one does not take beside its work.
        took = max(call.seconds - overheads.get(call.kind, least), call.seconds / 2)
        by_bytes = call.kind in _BY_EITHER and call.flops < _INTENSE * call.nbytes
        if by_bytes or call.kind in _BY_BYTES:
            moved[call.kind] += call.nbytes
            moving[call.kind] += took
        else:
            flops[call.kind] += call.flops
            busy[call.kind] += took
    return Rates(
        classes={name: flops[name] / busy[name] for name in busy},
        class_bytes={name: moved[name] / moving[name] for name in moving},
        class_overheads=overheads,
        memory_bytes_per_second=moved["elementwise"] / moving["elementwise"],
        op_overhead_seconds=overheads["elementwise"],
    )


def _timed(
    device: torch.device, narrow: int, batch: int, size: int, words: int, seconds: float
) -> Iterator[_Timed]:
    """The calls of a probe, each with the time that its op took."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        model = _Probe(narrow).to(device)
        images = torch.randn(batch, 3, size, size, device=device)
        tokens = torch.randint(0, 8192 // narrow, (words,), device=device)
        program = capture(
            model,
            optimizer=Adam(lr=0.0),
            example=(images, tokens),
            granularity="op",
            cache=False,
        )
        laps = Laps(program, keep_all(program))
        laps.measure(seconds)
    for k, took in enumerate(laps.op_seconds):
        calls = [call for call in sized_calls(program.graph, k) if not call.is_view]
        for call in calls:
            share = took / len(calls)
            yield _Timed(class_of(call), call_flops(call), call_bytes(call), share)
