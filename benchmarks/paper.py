"""The original paper's own model beside ours: same instance, same solver, same seconds and cores.

Written afresh from its description (tests/unit/paper_model.py). It is given all that it can use: a
start, a schedule that pages by Belady's rule within its own rules, presolve, and every core. Its
dual bound is the solver's word, unverified, and one for its model; ours is certified, and one for
every schedule in the op order. Joules are percent of keep-all.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from tests.unit.paper_model import Blocks, Rows, paper_rows

from poet import Graph, plan, read_instance
from poet.reports.tables import print_table
from poet.values.quantities import parse_bytes, parse_deadline

INSTANCES = Path(__file__).parent.parent / "instances"
SECONDS = 60.0
CASES = (
    ("linear-m4", "4000"),
    ("transformer-m4", "32000000"),
    ("vgg16-m4", "60MB"),
    ("resnet18_cifar-a72", "3000000"),
    ("resnet18_cifar-m4", "737719"),
)


def paging_start(graph: Graph, blocks: Blocks, ram_bytes: int) -> dict[int, float] | None:
    """A point of the paper's model, as released, that recomputes nothing; None if none was found.

    A tensor is held for a stage before it can be paged out, and paged in a stage before it is used.
    What stays is what is read soonest.
    """
    count = len(graph.ops)
    size = [tensor.nbytes for tensor in graph.tensors]
    point = {column: 0.0 for block in blocks for row in block for column in row}
    kept: set[int] = set()
    loaded: set[int] = set()
    for t in range(count):
        after = [set(graph.ops[v].inputs) for v in range(t, count)]

        def next_use(i: int, after: list[set[int]] = after) -> int:
            return next((n for n, reads in enumerate(after) if i in reads), count)

        must = set(graph.ops[t].inputs)
        fresh = {t - 1} if t and next_use(t - 1) < count else set()
        must |= fresh
        room = ram_bytes - size[t] - sum(size[i] for i in must)
        if room < 0:
            return None
        missing = must - kept - fresh
        loaded |= missing
        for i in missing:
            point[blocks.page_in[t - 1][i]] = 1.0
        for i in sorted(kept - must, key=next_use):
            if next_use(i) < count and size[i] <= room:
                must.add(i)
                room -= size[i]
        kept = must
        for i in kept:
            point[blocks.in_ram[t][i]] = 1.0
        point[blocks.compute[t][t]] = 1.0
    for i in loaded:
        point[blocks.page_out[i + 1][i]] = 1.0
        for t in range(i + 2, count):
            point[blocks.in_store[t][i]] = 1.0
    return point


def solved(rows: Rows, start: dict[int, float] | None) -> tuple[float | None, float]:
    """The best objective found, and the solver's bound."""
    highs: Any = rows.highs
    highs.setOptionValue("presolve", "on")
    highs.setOptionValue("threads", os.cpu_count() or 1)
    highs.setOptionValue("time_limit", SECONDS)
    if start is not None:
        columns = np.array(sorted(start), dtype=np.int32)
        values = np.array([start[int(c)] for c in columns])
        highs.setSolution(columns.size, columns, values)
    highs.run()
    info = highs.getInfo()
    found = info.objective_function_value if info.primal_solution_status == 2 else None
    return found, float(info.mip_dual_bound)


def paper() -> None:
    rows = []
    for name, ram in CASES:
        problem = read_instance(INSTANCES / f"{name}.json")
        deadline = parse_deadline("1.5x", problem.costs.keep_all_seconds)
        base = problem.costs.keep_all_joules
        program, blocks = paper_rows(
            problem.graph, problem.costs, parse_bytes(ram), deadline, as_released=True
        )
        start = paging_start(problem.graph, blocks, parse_bytes(ram))
        began = time.monotonic()
        theirs, their_bound = solved(program, start)
        took = time.monotonic() - began
        ours = plan(problem, ram=ram, deadline="1.5x", transfers="free", time_limit=SECONDS)
        assert ours.joules is not None
        assert ours.bound_joules is not None
        found = "none found" if theirs is None else f"{100 * theirs / base:.3f}"
        ratio = "-" if theirs is None else f"{ours.joules / theirs:.4f}"
        rows.append(
            [
                *(name, ram, "yes" if start else "none"),
                *(found, f"{100 * their_bound / base:.3f}", f"{took:.1f} s"),
                f"{100 * ours.joules / base:.3f}",
                f"{100 * ours.bound_joules / base:.3f}",
                *(f"{ours.solve_seconds or 0.0:.1f} s", ratio),
            ]
        )
    print_table(
        Console(),
        [
            ("instance", "left"),
            *((each, "right") for each in ("RAM", "start", "paper's", "its bound", "seconds")),
            *((each, "right") for each in ("ours", "bound", "seconds", "ours ÷ paper's")),
        ],
        rows,
    )


BENCHMARKS: dict[str, Callable[[], None]] = {"planner-paper": paper}
