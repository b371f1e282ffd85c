"""A compiled step in a budget in bytes, beside torch's own ways, on the CPU.

`compile`: peak, by the allocator, and time of a forward and backward pass. Peers: torch.compile as
it is, and with `activation_memory_budget`, a share of what it would save, at several values. What a
peer was measured to take is the budget of the row of POET's below it. Limits: that budget, and 1.05
times the peer's time. Times are medians of steps in turn, in one process.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch._functorch.config as functorch_config
from rich.console import Console
from tests.torch.test_compile import Attention, Residual, measured, one_thread_net
from torch import nn

import poet
from poet.reports.tables import print_table

BUDGETS = (0.6, 0.3, 0.0)
ROUNDS = 15


def nets() -> dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]]:
    return {
        "transformer, 4 blocks": lambda: (
            nn.Sequential(*(Attention(128, 4, 0.1) for _ in range(4))),
            torch.randn(8, 128, 128),
        ),
        "residual, 6 blocks": lambda: (
            nn.Sequential(*(Residual(16) for _ in range(6))),
            torch.randn(16, 16, 32, 32),
        ),
        "dropout, 8 layers": lambda: one_thread_net(8, 256, 1024),
    }


def main() -> None:
    rows = []
    for name, make in nets().items():
        torch.manual_seed(0)
        model, x = make()
        plain = torch.compile(model, fullgraph=True, dynamic=False)
        runs: list[tuple[str, Any, int | None]] = [("torch.compile", plain, None)]
        plain(x).sum().backward()
        for share in BUDGETS:
            with functorch_config.patch(activation_memory_budget=share):
                torch._dynamo.reset()
                theirs = torch.compile(model, fullgraph=True, dynamic=False)
                theirs(x).sum().backward()
            peak = measured(model, theirs, x)
            runs.append((f"activation_memory_budget={share}", theirs, None))
            try:
                ours = poet.compile(model, example=(x,), ram=peak, time_limit=10)
            except poet.Infeasible as error:
                rows.append([name, f"poet.compile, {peak:,} B", "", str(error)[-60:], "", "", ""])
                continue
            runs.append((f"poet.compile(ram={peak})", ours, peak))
        rows += _compared(name, model, x, runs)
    columns = ("model", "compiled by", "peak", "limit", "ms", "of the peer's", "limit")
    print_table(
        Console(),
        [(each, "right" if k > 1 else "left") for k, each in enumerate(columns)],
        rows,
    )
