"""Sweeps on a Ray cluster of two nodes, one of which is killed when half of the cells are there.

`sweep-ray`: 200 cells, counted, by workers of this machine and by the cluster. Peer: the sweep
without Ray. Limit: no row differs but in what the clock said, none is missing or lost, and nothing
of either sweep runs on.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from tests.cluster.nodes import Cluster, two_nodes, wait_for_end
from tests.cluster.test_on_ray import PATIENT, command, serving, table

from poet.reports.tables import print_table
from poet.sweeps.grid import read_grid

ROOT = Path(__file__).parents[1]
GRID = f"""
models = [
    "{ROOT}/instances/linear-m0.json", "{ROOT}/instances/linear-m4.json",
    "{ROOT}/instances/linear-a72.json", "{ROOT}/instances/transformer-m4.json",
]
budgets = "10 points"
methods = ["poet", "paging", "checkmate", "keep-all", "chen-greedy"]
work_limit = 1
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ray") as short, two_nodes(Path(short)) as cluster:
        found = _compare(cluster, Path(short))
    print_table(Console(), [("", "left"), ("", "right")], found)


def _compare(cluster: Cluster, folder: Path) -> list[list[str]]:
    grid, here, there = folder / "grid.toml", folder / "here", folder / "there"
    grid.write_text(GRID)
    cells = read_grid(grid).cells
    started = time.monotonic()
    subprocess.run(command(grid, here, "--workers", "2"), check=True, capture_output=True)
    alone_seconds = time.monotonic() - started
    started = time.monotonic()
    sweep = subprocess.Popen(
        command(grid, there, "--ray"), env=cluster.env, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    at = _wait_for_half(sweep, there, cells)
    killed = cluster.node.processes
    cluster.node.kill()
    _, said = sweep.communicate()
    ray_seconds = time.monotonic() - started
    if sweep.returncode:
        sys.exit(said)
    for number in killed:
        wait_for_end(number)
    until = time.monotonic() + PATIENT
    while serving(cluster) and time.monotonic() < until:
        time.sleep(0.1)
    ours, theirs = table(here), table(there)
    differing = sum(one != other for one, other in zip(ours, theirs, strict=False))
    return [
        ["cells", f"{cells:,}"],
        ["rows without Ray, with it", f"{len(ours):,}, {len(theirs):,}"],
        ["cells there when a node was killed", f"{at:,}"],
        ["cells asked again (1 or more)", str(said.count("asked again"))],
        ["rows that differ (0)", str(differing + abs(len(ours) - len(theirs)))],
        ["rows that were lost (0)", str(sum(row["outcome"] == "lost" for row in theirs))],
        ["workers that run on (0)", str(len(serving(cluster)))],
        ["time with Ray, as a multiple", f"{ray_seconds / alone_seconds:.2f}"],
    ]


def _wait_for_half(sweep: subprocess.Popen[str], folder: Path, cells: int) -> int:
    """How many cells are there once it is half of them."""
    cells_folder = folder / "cells"
    while sweep.poll() is None:
        there = len(os.listdir(cells_folder)) if cells_folder.exists() else 0
        if there >= cells // 2:
            return there
        time.sleep(0.01)
    sys.exit(f"the sweep ended before half of its cells were there: {sweep.communicate()[1]}")


BENCHMARKS = {"sweep-ray": main}
