"""How fast the referee replays.

Peer: the simple replay of the tests, on a short schedule (it is quadratic). Limit: a bare Python
loop that only looks at each instruction's type, the least any replay in Python can take.
"""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from tests.unit.simple_replay import simple_replay

from poet import Budget, Compute, Free, PageIn, PageOut, Plan, Schedule, check, read_instance
from poet.reports.tables import print_table
from poet.values.plan import draft
from poet.values.schedule import Instruction, Transfers

INSTANCES = Path(__file__).parent.parent / "instances"


def long_plan(length: int, transfers: Transfers) -> Plan:
    """All ops once, then tensors paged out, freed, and paged in or recomputed, in turn."""
    problem = read_instance(INSTANCES / "bert_captured-m4.json")
    count = len(problem.graph.ops)
    steps: list[Instruction] = [Compute(k) for k in range(count)]
    while len(steps) < length:
        i = len(steps) % count
        again = PageIn(i) if i % 2 else Compute(i)
        steps += [PageOut(i), Free(i), again]
    budget = Budget(transfers=transfers)
    return draft(problem.graph, problem.costs, budget, tuple(steps))


def look(schedule: Schedule) -> int:
    return sum(isinstance(step, Compute) for step in schedule)


def best_seconds(call: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    rows = []
    for transfers in ("serial", "overlap"):
        for length in (2_000, 100_000):
            plan = long_plan(length, transfers)
            ours = best_seconds(lambda plan=plan: check(plan))  # type: ignore[misc]
            bare = best_seconds(lambda plan=plan: look(plan.schedule))  # type: ignore[misc]
            row = [transfers, f"{len(plan.schedule):,}", f"{ours:.3f} s", f"{ours / bare:.0f}x"]
            if length <= 2_000:
                peer = best_seconds(lambda plan=plan: simple_replay(plan), repeats=1)  # type: ignore[misc]
                row.append(f"{peer / ours:.0f}x slower")
            else:
                row.append("not run")
            rows.append(row)
    print_table(
        Console(),
        [
            ("transfers", "left"),
            ("instructions", "right"),
            ("referee", "right"),
            ("over a bare loop", "right"),
            ("simple replay", "right"),
        ],
        rows,
    )
