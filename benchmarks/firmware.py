"""`firmware-arenas`: the arena beside the planned peak, for the models of the zoo at three budgets:
the RAM of an nRF52840, and 70 % and 40 % of what all that is kept takes. Limit: 1.01.

Without addresses a plan is no plan, so one that found none says so; it counts as missed, unless
what a step needs at once is more than the budget. Where the first schedule found no addresses the
step was planned again in less RAM: how often schedules were placed, and what the plan takes beside
the first of them, are in the table. `python -m benchmarks firmware-arenas` takes a few minutes a
model on a busy machine; its rows lie in build/arenas.md as they come. `--model NAME` makes the rows
of one model, and adds them.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import poet
from poet.devices import find_device
from poet.firmware.place.arena import place
from poet.firmware.place.lifetimes import lifetimes
from poet.planning.problem import Problem, read_problem
from poet.reports.tables import print_table
from poet.values.progress import SearchProgress
from poet.zoo import MODELS

LIMIT = 1.01
BUDGETS = (None, "70%", "40%")
SECONDS = 8.0
PAGE = Path("build/arenas.md")
HEADS = (
    "model",
    "RAM",
    "blocks",
    "planned peak",
    "arena",
    "÷ peak (1.01)",
    "schedules placed",
    "J ÷ first",
    "s to plan",
    "s to place",
)


def arenas(models: Sequence[str] = ()) -> None:
    rows, missed = [], []
    board = find_device("nrf52840")
    PAGE.parent.mkdir(exist_ok=True)
    with PAGE.open("a" if models else "w") as page:
        if not page.tell():
            page.write(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}\n")
        for model in models or MODELS:
            problem = read_problem(model, board=board)
            for ram in BUDGETS:
                row, is_met = _row(model, problem, ram)
                rows.append(row)
                page.write(f"| {' | '.join(row)} |\n")
                page.flush()
                if not is_met:
                    missed.append(f"{model} at {row[1]}")
    print_table(Console(), [(head, "right" if n else "left") for n, head in enumerate(HEADS)], rows)
    if missed:
        raise SystemExit(f"a limit is not met: {'; '.join(missed)}")


def _row(model: str, problem: Problem, ram: str | None) -> tuple[list[str], bool]:
    placed: list[float] = []

    def progress(now: SearchProgress) -> None:
        if now.placing and now.joules is not None:
            placed.append(now.joules)

    began = time.monotonic()
    plan = poet.plan(
        problem, device="nrf52840", ram=ram, time_limit=SECONDS, threads=1, progress=progress
    )
    took = f"{time.monotonic() - began:.1f}"
    text = ram or "240 KiB"
    if plan.arena is None or plan.peak_bytes is None or plan.joules is None:
        why = plan.reason[:90]
        return [model, text, "", "", why, "", "", "", took, ""], plan.status == "infeasible"
    blocks = lifetimes(plan).blocks
    began = time.monotonic()
    place(blocks, plan.budget.ram_bytes or 2**62)
    ratio = plan.arena.nbytes / plan.peak_bytes
    row = [
        model, text, str(len(blocks)), f"{plan.peak_bytes:,}", f"{plan.arena.nbytes:,}",
        f"{ratio:.4f}", str(len(placed)), f"{plan.joules / placed[0]:.4f}", took,
        f"{time.monotonic() - began:.1f}",
    ]  # fmt: skip
    return row, ratio <= LIMIT


BENCHMARKS = {"firmware-arenas": arenas}
