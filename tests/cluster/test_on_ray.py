"""A sweep on a Ray cluster of two nodes, one of which is killed: the same table as without Ray."""

import csv
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import Cluster, offspring, two_nodes
from tests.conftest import INSTANCES

PATIENT = 120.0
CLOCK = ("solve_seconds", "first_seconds")
GRID = f"""
models = ["{INSTANCES}/linear-m4.json", "{INSTANCES}/transformer-m4.json"]
budgets = "3 points"
methods = ["poet", "paging", "checkmate", "keep-all", "chen-greedy"]
work_limit = 1
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        import ray  # noqa: F401
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail("ray is not installed; sweeps on a cluster need it")
        pytest.skip("ray is not installed (pip install ray)")
    with tempfile.TemporaryDirectory(prefix="ray") as folder, two_nodes(Path(folder)) as started:
        yield started


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return path


def command(grid: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "poet", "sweep", str(grid), "-o", str(folder), *more]


def table(folder: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO((folder / "results.csv").read_text())))
    return [{name: text for name, text in row.items() if name not in CLOCK} for row in rows]


def serving(cluster: Cluster) -> list[int]:
    """The workers of POET's own on either node."""
    started = [*cluster.head.processes, *cluster.node.processes]
    return [number for number in started if b"workers import serve" in command_of(number)]


def command_of(number: int) -> bytes:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_node_is_killed_and_the_table_is_the_same(
    cluster: Cluster, grid: Path, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    subprocess.run(command(grid, here), check=True, capture_output=True)
    sweep = subprocess.Popen(
        command(grid, there, "--ray"), env=cluster.env, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    node = cluster.node.processes[0]
    until = time.monotonic() + PATIENT
    while not any(b"workers import serve" in command_of(n) for n in offspring(node)):
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    cluster.node.kill()  # while it has a question
    _, said = sweep.communicate(timeout=PATIENT)
    assert sweep.returncode == 0, said
    assert "asked again" in said
    assert len(list((there / "cells").iterdir())) == 2 + 30
    assert table(there) == table(here)
    assert len(table(there)) == 30
    until = time.monotonic() + PATIENT
    while serving(cluster):
        assert time.monotonic() < until, "workers run on"
        time.sleep(0.05)


def test_a_cluster_that_is_not_there(grid: Path, tmp_path: Path) -> None:
    for address, why in (
        ("", "RAY_ADDRESS is not set"),
        ("127.0.0.2:9", "there is no Ray cluster at 127.0.0.2:9"),
    ):
        done = subprocess.run(
            command(grid, tmp_path / "none", "--ray"),
            env={**os.environ, "RAY_ADDRESS": address}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert why in done.stderr
        assert "Traceback" not in done.stderr


def test_a_cell_that_takes_too_much_memory_is_lost(
    cluster: Cluster, grid: Path, tmp_path: Path
) -> None:
    grid.write_text(grid.read_text().replace("3 points", "90%").replace('"poet", "paging", ', ""))
    done = subprocess.run(
        command(grid, tmp_path / "out", "--ray", "--cell-memory", "20MB"),
        env=cluster.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    rows = table(tmp_path / "out")
    assert len(rows) == 2 * 3
    assert {row["outcome"] for row in rows} == {"lost"}
    assert all("its limit is 20,000,000 B" in row["reason"] for row in rows)
