"""A compiled step in a budget in bytes, beside torch's own ways, on the CPU.

`compile`: peak, by the allocator, and time of a forward and backward pass. Peers: torch.compile as
it is, and with `activation_memory_budget`, a share of what it would save, at several values. What a
peer was measured to take is the budget of POET's row below it. Limits: that budget, and 1.05 times
the peer's time. Times are medians of steps in turn, in one process.
"""

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
import torch._functorch.config as functorch_config
from rich.console import Console
from tests.torch.test_compile import Attention, Residual, measured
from torch import nn

import poet
from poet.reports.tables import print_table

SHARES = (0.6, 0.3, 0.0)
ROUNDS = 11
LIMIT = 1.05


def transformer() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Attention(128, 4, 0.1) for _ in range(3))), torch.randn(8, 128, 128)


def residual_net() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Residual(16) for _ in range(4))), torch.randn(16, 16, 32, 32)


def dropout_net() -> tuple[nn.Module, torch.Tensor]:
    layers = [(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
    return nn.Sequential(*itertools.chain(*layers)), torch.randn(2048, 256)


NETS = {
    "3 transformer blocks": transformer,
    "4 residual blocks": residual_net,
    "6 layers with dropout": dropout_net,
}


class Compiled(NamedTuple):
    """Something that was compiled; `peer` is what it is held against."""

    how: str
    run: Callable[..., Any]
    peak_bytes: int
    peer: "Compiled | None" = None


def main() -> None:
    rows: list[list[str]] = []
    for name, make in NETS.items():
        torch.manual_seed(0)
        rows += compared(name, *make())
    names = ("model", "compiled by", "peak", "limit", "step", "of the peer's", "limit")
    columns = [(each, "right" if k > 1 else "left") for k, each in enumerate(names)]
    print_table(Console(width=150), columns, rows)  # type: ignore[arg-type]


def compared(name: str, model: nn.Module, x: torch.Tensor) -> list[list[str]]:
    plain = by_torch("torch.compile", model, x, 1.0)
    runs, refused = [plain], []
    for share in SHARES:
        peer = by_torch(f"activation_memory_budget={share}", model, x, share)
        runs.append(peer)
        try:
            small: Any = poet.compile(model, example=(x,), ram=peer.peak_bytes, time_limit=10)
        except poet.Infeasible as error:
            refused.append([name, "poet.compile", str(error), f"{peer.peak_bytes:,}", "", "", ""])
            continue
        runs.append(Compiled("poet.compile", small, measured(model, small, x), peer))
    seconds = in_turn(model, x, runs)
    rows = []
    for each in runs:
        row = [name, each.how, f"{each.peak_bytes:,}", "", f"{seconds[id(each)] * 1e3:.1f} ms"]
        if each.peer is not None:
            row[3] = f"{each.peer.peak_bytes:,}"
            ratio = seconds[id(each)] / seconds[id(each.peer)]
            row += [f"{ratio:.3f}", str(LIMIT)]
        rows.append([*row, "", ""][:7])
    return rows + refused


def by_torch(how: str, model: nn.Module, x: torch.Tensor, share: float) -> Compiled:
    def run(x: torch.Tensor) -> Any:
        return model(x)

    # Torch keeps what it compiled by code: another budget is to be compiled anew.
    run.__code__ = run.__code__.replace(co_name=f"run_{how.translate({46: 95, 61: 95})}")
    with functorch_config.patch(activation_memory_budget=share):
        compiled = torch.compile(run, fullgraph=True, dynamic=False)
        compiled(x).sum().backward()
    return Compiled(how, compiled, measured(model, compiled, x))


def in_turn(model: nn.Module, x: torch.Tensor, runs: list[Compiled]) -> dict[int, float]:
    took: dict[int, list[float]] = {id(each): [] for each in runs}
    for number in range(ROUNDS):
        for each in runs if number % 2 else reversed(runs):
            model.zero_grad()
            start = time.perf_counter()
            made = each.run(x)
            made.backward(torch.ones_like(made))
            took[id(each)].append(time.perf_counter() - start)
    return {each: median(seconds) for each, seconds in took.items()}


BENCHMARKS: dict[str, Callable[[], None]] = {"compile": main}
