"""Checkpointing at scale: plans with paging off on graphs of up to thousands of ops.

GPT-2s of 24 and 48 narrow layers (1,605 and 3,189 ops), a deep BERT and a deep ViT at two shares of
keep-all's peak, and U-Net where it is tight, on a Raspberry Pi 4, 60 s each. Peers: DTR, PyTorch's
activation budget and Chen's square root, in percent of keep-all's energy. Limit: the certified
bound. Bars: a first schedule within a second, a gap of 1 % in 55 % of the RAM, 3 % in 32 %, 2 % for
U-Net, and no peer ahead.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from rich.console import Console

import poet
from poet.planning.problem import Problem, problem_of, read_problem
from poet.reports.tables import Align, print_table

SECONDS = 60.0
FIRST_SECONDS = 1.0
PEERS = ("dtr", "torch-budget", "chen-sqrt")
COLUMNS: list[tuple[str, Align]] = [
    ("problem", "left"),
    *((name, "right") for name in ("ops", "RAM", "first", "joules", "bound", "gap", "asked")),
    *((name, "right") for name in PEERS),
]


class Question(NamedTuple):
    name: str
    problem: Callable[[], Problem]
    budgets: dict[str, float]
    """RAM, and the gap asked for, in percent."""


def gpt2(layers: int) -> Problem:
    transformers: Any = import_module("transformers")  # untyped
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=128,
        n_head=4,
        vocab_size=512,
        n_positions=128,
        bos_token_id=511,
        eos_token_id=511,
        attn_implementation="eager",
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
    )
    tokens = torch.randint(0, 512, (8, 64))
    example = {"input_ids": tokens, "labels": tokens}
    model = transformers.GPT2LMHeadModel(config)
    return problem_of(poet.capture(model, None, poet.SGD(0.1), example=example))


SHARES = {"55%": 1.0, "32%": 3.0}
QUESTIONS = (
    Question("GPT-2, 24 layers", lambda: gpt2(24), SHARES),
    Question("GPT-2, 48 layers", lambda: gpt2(48), SHARES),
    Question("BERT, 36 layers", lambda: read_problem("bert-tiny?layers=36&batch=8", "sgd"), SHARES),
    Question(
        "ViT-Ti, 36 layers", lambda: read_problem("vit-tiny?layers=36&batch=8", "sgd"), SHARES
    ),
    Question("U-Net", lambda: read_problem("unet", "sgd"), {"221MB": 2.0}),
)


def thousands() -> None:
    console, rows, missed = Console(), list[list[str]](), 0
    for question in QUESTIONS:
        problem = question.problem()
        for ram, gap_percent in question.budgets.items():
            row, is_met = _row(problem, ram, gap_percent)
            rows.append([question.name, *row])
            missed += not is_met
    print_table(console, COLUMNS, rows)
    print(f"{len(rows) - missed} of {len(rows)} rows meet their bars")


def _row(problem: Problem, ram: str, gap_percent: float) -> tuple[list[str], bool]:
    ours = _plan(problem, ram)
    peers = [_plan(problem, ram, method) for method in PEERS]
    row = [f"{len(problem.graph.ops):,}", ram]
    if ours.joules is None or ours.gap is None or ours.first_seconds is None:
        return [*row, ours.status, *[""] * (len(COLUMNS) - 4)], False
    assert ours.bound_joules is not None
    is_met = (
        100 * ours.gap <= gap_percent
        and ours.first_seconds <= FIRST_SECONDS
        and all(peer.joules is None or ours.joules <= peer.joules for peer in peers)
    )
    row += [f"{ours.first_seconds:.2f} s", _percent(ours)]
    row += [f"{100 * ours.bound_joules / (ours.baseline_joules or 1.0):.3f}"]
    row += [f"{100 * ours.gap:.3f} %", f"{gap_percent:g} %" + ("" if is_met else " missed")]
    return [*row, *map(_percent, peers)], is_met


def _plan(problem: Problem, ram: str, method: str | None = None) -> poet.Plan:
    return poet.plan(
        problem, "rpi4", ram=ram, paging=False, method=method, time_limit=SECONDS, threads=2
    )


def _percent(plan: poet.Plan) -> str:
    if plan.joules is None:
        return "none"
    return f"{100 * plan.joules / (plan.baseline_joules or 1.0):.3f}"


BENCHMARKS = {"thousands": thousands}
