"""The searches on the processors of a Raspberry Pi and a Jetson: the same bits as here.

Both are built as poet.native builds them, for this machine and for aarch64, and run on the same
problems, the latter in an emulator. What they print is equal to the last bit of the joules.
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from poet import Budget, Costs, Graph, Schedule, check
from poet.firmware.place import arena
from poet.firmware.place.lifetimes import Block
from poet.native import COMPILERS, FLAGS
from poet.planner.proof.floor import memory_floor
from poet.planner.search import anneal, compiled
from poet.values.instances import read_instance
from poet.values.plan import draft
from tests.conftest import INSTANCES
from tests.packaging.conftest import Demand
from tests.unit.random_problems import random_budget, random_costs, random_graph

CROSS, OBJDUMP = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
LIBRARIES = "/usr/aarch64-linux-gnu"
DRIVERS = Path(__file__).with_name("csrc")
MOVES = 50_000
SEED = 7

Problem = tuple[Graph, Costs, Budget]
Machines = dict[str, tuple[str, list[str]]]
"""For each machine its compiler, and what stands before a command that runs on it."""


@pytest.fixture(scope="session")
def machines(demand: Demand) -> Machines:
    here = next(filter(None, map(shutil.which, COMPILERS)), "")
    emulator = next(filter(None, map(shutil.which, EMULATORS)), "")
    found = {"a C compiler": here, CROSS: shutil.which(CROSS), EMULATORS[0]: emulator}
    demand([name for name, path in found.items() if not path])
    return {"host": (here, []), "aarch64": (CROSS, [emulator, "-L", LIBRARIES])}


class Driven:
    """A library of POET's, and a program that calls it, for each machine."""

    def __init__(self, machines: Machines, source: Path, driver: str, folder: Path) -> None:
        self.machines, self.folder = machines, folder
        alone = [flag for flag in FLAGS if flag != "-shared"]
        for machine, (compiler, _) in machines.items():
            linked = [self.library(machine), f"-Wl,-rpath,{folder}", "-lm"]
            program = folder / machine
            output(compiler, *FLAGS, "-o", self.library(machine), source, "-lm")
            output(compiler, *alone, "-I", source.parent, "-o", program, DRIVERS / driver, *linked)

    def library(self, machine: str) -> Path:
        return self.folder / f"{machine}.so"

    def run(self, machine: str, *words: object) -> str:
        return output(*self.machines[machine][1], self.folder / machine, *words)


def output(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def annealing(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    return Driven(machines, compiled.SOURCE, "anneal_driver.c", tmp_path_factory.mktemp("anneal"))


@pytest.fixture(scope="module")
def placing(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    return Driven(machines, arena._SOURCE, "place_driver.c", tmp_path_factory.mktemp("place"))


def test_no_multiplication_is_fused_with_an_addition(annealing: Driven, placing: Driven) -> None:
    """aarch64 has instructions for it, and they round once where two operations round twice."""
    for driven, multiplies in ((annealing, True), (placing, False)):
        listing = output(OBJDUMP, "-d", driven.library("aarch64"))
        assert ("fmul" in listing) == multiplies
        assert not re.search(r"\bf(n?m(add|sub)|ml[as])\b", listing)


def instance_problem(name: str, ram_bytes: int, transfers: Any) -> Problem:
    instance = read_instance(INSTANCES / f"{name}.json")
    deadline = 1.5 * instance.costs.keep_all_seconds
    budget = Budget(ram_bytes=ram_bytes, deadline_seconds=deadline, transfers=transfers)
    return instance.graph, instance.costs, budget


def random_problem(seed: int) -> Problem:
    """Small, with everything that problems can have: variants, streams, in-place ops, ends."""
    rng = Random(seed)
    graph = random_graph(rng, 14)
    costs = random_costs(rng, graph)
    budget = msgspec.structs.replace(random_budget(rng, graph), transfers="serial")
    floor = memory_floor(graph, costs, budget).nbytes
    return graph, costs, msgspec.structs.replace(budget, ram_bytes=floor + floor // 4)


def write_problem(search: anneal.Annealer, path: Path) -> None:
    flat = search._flat
    parts = [bytes(flat.problem)[: anneal._Problem.nbytes.offset]]
    for name, element in anneal._ARRAYS.items():
        content = bytes((element * len(flat.columns[name]))(*flat.columns[name]))
        parts += [len(content).to_bytes(8, "little"), content]
    path.write_bytes(b"".join(parts))


def schedule_of_both(problem: Problem, driven: Driven, folder: Path) -> Schedule | None:
    """The schedule that both machines, and the planner here, find; None where none does."""
    search, file = anneal.Annealer(*problem), folder / "problem"
    write_problem(search, file)
    printed = driven.run("aarch64", file, MOVES, SEED)
    assert printed == driven.run("host", file, MOVES, SEED)
    head, *triples = printed.splitlines()
    valid, _, joules = head.split()
    found = search._schedule(int(word) for line in triples for word in line.split())
    assert search.run(None, seconds=1e9, moves=MOVES, seed=SEED) == (found or None)
    if valid == "0":
        return None
    report = check(draft(*problem, found))
    assert report.violation is None
    assert report.joules == pytest.approx(float.fromhex(joules), rel=1e-9)
    return found


@pytest.mark.parametrize(
    ("name", "ram_bytes", "transfers"),
    [("resnet18_cifar-m4", 500_000, "free"), ("bert-m4", 60_000_000, "serial")],
)
def test_the_search_finds_the_same_schedule(
    name: str, ram_bytes: int, transfers: Any, annealing: Driven, tmp_path: Path
) -> None:
    problem = instance_problem(name, ram_bytes, transfers)
    assert schedule_of_both(problem, annealing, tmp_path)


def test_also_where_problems_have_everything(annealing: Driven, tmp_path: Path) -> None:
    problems = map(random_problem, range(12))
    found = [schedule_of_both(each, annealing, tmp_path) for each in problems]
    assert len(list(filter(None, found))) >= 6


class ElsewherePlaced:
    """poet_place, run by a driver on another machine."""

    def __init__(self, run: Callable[[Path], str], file: Path) -> None:
        self.run, self.file, self.restype = run, file, None

    def __call__(self, *arguments: Any) -> int:
        (count, sizes, alignments, starts, rivals, order, best, height, steps, seed) = (
            argument.value for argument in arguments
        )
        pairs = ctypes.c_int32.from_address(starts + 4 * count).value
        head = (ctypes.c_int64 * 4)(count, height, steps, seed)
        arrays = ((sizes, 8 * count), (alignments, 8 * count), (starts, 4 * count + 4),
                  (rivals, 4 * pairs), (order, 4 * count))  # fmt: skip
        parts = [bytes(head)]
        parts += [ctypes.string_at(*array) for array in arrays if array[1]]
        self.file.write_bytes(b"".join(parts))
        left, *offsets = map(int, self.run(self.file).split())
        ctypes.memmove(best, (ctypes.c_int64 * count)(*offsets), 8 * count)
        return left


def random_blocks(seed: int) -> list[Block]:
    rng, blocks = Random(seed), []
    for n in range(60):
        first = rng.randrange(100)
        spans = [(first, first + rng.randrange(40))]
        blocks.append(
            Block(name=f"b{n}", nbytes=rng.randrange(1, 4000), alignment=8, spans=spans,
                  dtype="float32")
        )  # fmt: skip
    return blocks


@pytest.mark.parametrize("seed", range(3))
def test_blocks_get_the_same_addresses(
    seed: int, placing: Driven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = random_blocks(seed)
    here = arena.place(blocks, limit=0)

    class Library:
        poet_place = ElsewherePlaced(lambda file: placing.run("aarch64", file), tmp_path / "blocks")

    monkeypatch.setattr(arena, "built", lambda _: Library)
    there = arena.place(blocks, limit=0)
    assert (tmp_path / "blocks").exists()
    assert there == here
    arena.check(blocks, there, there.arena_bytes)
