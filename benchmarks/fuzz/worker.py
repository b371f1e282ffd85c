"""A worker: makes mutants from their numbers, uses them, and writes down what came of each.

Mutant n of a seed is always the same. A line of the log is a mutant's number, kind, outcome and
the dear things that were done with it; before one is used, its number is in the file `now`, so that
whoever finds the process dead knows which one it was. Mutants that failed are kept.
"""

import contextlib
import io
import os
import shutil
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from random import Random

import torch

from benchmarks.fuzz.files import (
    Mutator,
    mutated_card,
    mutated_json,
    mutated_plan,
    mutated_tensors,
    mutated_toml,
)
from benchmarks.fuzz.good import Surroundings, surroundings
from benchmarks.fuzz.guard import LIMIT_BYTES, Guard
from benchmarks.fuzz.mutations import CANARY, mutated_bytes
from benchmarks.fuzz.uses import KINDS, Here
from poet.errors import PoetError
from poet.firmware import reference, reference_steps

_MUTATORS: dict[str, Mutator] = {
    "plan of an instance": mutated_plan,
    "captured plan": mutated_plan,
    "plan for C": mutated_plan,
    "device": mutated_toml,
    "grid": mutated_toml,
    "weights": mutated_tensors,
    "checkpoint": mutated_tensors,
    "page file": mutated_bytes,
}
reference_steps._end_with_parent = lambda: None
reference_steps._limit_memory = lambda most_bytes: None
_BY_SUFFIX: dict[str, Mutator] = {".safetensors": mutated_tensors, ".img": mutated_card}
_SUFFIXES = (".json", ".safetensors", ".img")
"""The files of a folder that are data."""
_NAMES = {
    "device": "file.toml",
    "grid": "file.toml",
    "weights": "file.safetensors",
    "checkpoint": "file.safetensors",
}


class Worker:
    """Mutants in `folder/use`, failures in `folder/failures`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.failures = folder / "failures"
        self.failures.mkdir(exist_ok=True)
        self.place = folder / "use"
        self.place.mkdir(exist_ok=True)
        os.chdir(self.place)
        os.environ["POET_CACHE"] = str(self.place / "cache")
        tempfile.tempdir = str(self.place / "beside")
        (self.place / "beside").mkdir(exist_ok=True)
        reference.write_reference = _reference_here
        self.guard = Guard(self.place)
        made = folder / "good"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        self.good: Surroundings = surroundings(made)
        for kind in KINDS:  # all that is imported on first use is imported now
            for n in range(3):
                self._use(kind, Random(n), None)
        self.guard.limit_memory()

    def run(self, n: int) -> tuple[str, str, list[str], str]:
        """Kind, outcome, dear things done, and for a failure what was seen."""
        chance = Random(f"{self.seed} {n}")
        kinds = list(KINDS)
        (kind,) = chance.choices(kinds, [KINDS[each][0] for each in kinds])
        self.guard.seen.clear()
        self.guard.limit_time()
        self.guard.armed = True
        try:
            outcome, deep, why = self._use(kind, chance, n)
        finally:
            self.guard.armed = False
        if self.guard.seen:
            outcome, why = "executed", "; ".join(self.guard.seen)
        if (self.place / CANARY).exists():
            outcome, why = "executed", "the canary is there"
            (self.place / CANARY).unlink()
        return kind, outcome, deep, why

    def _use(self, kind: str, chance: Random, n: int | None) -> tuple[str, list[str], str]:
        """Write a mutant (None: a good file), use it, and look at what is left."""
        for name in ("out", "in"):
            shutil.rmtree(self.place / name, ignore_errors=True)
            (self.place / name).mkdir()
        path = self._written(kind, chance, mutate=n is not None)
        here = Here(path, self.place / "out", chance, self.good, n is not None, [], set())
        before = _tree(self.place / "in")
        outcome, why = "accepted", ""
        try:
            KINDS[kind][1](here)
        except PoetError as error:
            outcome, why = "refused", str(error)
            if "allocate memory" in why or "out of memory" in why:
                outcome = "memory"
        except MemoryError:
            outcome, why = "memory", traceback.format_exc()
        except Exception:
            outcome, why = "traceback", traceback.format_exc()
        left = _tree(here.out) - here.made
        if outcome in ("accepted", "refused") and left:
            outcome, why = "left", f"{sorted(left)}, {outcome}: {why}"
        if kind != "firmware folder" and not before <= _tree(self.place / "in"):
            outcome, why = "left", "what was there is gone"
        if n is None and outcome != "accepted":
            raise AssertionError(f"a good {kind} is {outcome}: {why}")
        return outcome, here.deep, why

    def _written(self, kind: str, chance: Random, mutate: bool) -> Path:
        place = self.place / "in"
        if kind not in self.good.folders:
            data = chance.choice(self.good.good[kind])
            path = place / _NAMES.get(kind, "file.json")
            path.write_bytes(_MUTATORS.get(kind, mutated_json)(data, chance) if mutate else data)
            return path
        folder = place / "folder"
        folder.mkdir()
        contents = self.good.folders[kind]
        for name, data in contents.items():
            (folder / name).write_bytes(data)
        if mutate:
            names = [name for name in sorted(contents) if Path(name).suffix in _SUFFIXES]
            path = folder / chance.choice(names)
            if chance.random() < 0.05:
                path.unlink()
            else:
                change = mutated_plan if path.name == "plan.json" else mutated_json
                path.write_bytes(_BY_SUFFIX.get(path.suffix, change)(path.read_bytes(), chance))
        return folder


def _reference_here(folder: Path) -> None:
    """What emission does in a process of its own, in this one, which is watched and limited."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        if reference_steps.main(folder, LIMIT_BYTES):
            raise PoetError(said.getvalue())


def _tree(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def main(folder: Path, seed: int, numbers: range) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    worker = Worker(folder, seed)
    now = os.open(folder / "now", os.O_RDWR | os.O_CREAT)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for n in numbers:
        os.pwrite(now, f"{n:<12}".encode(), 0)
        kind, outcome, deep, why = worker.run(n)
        os.write(log, f"{n}\t{kind}\t{outcome}\t{','.join(deep)}\n".encode())
        if outcome not in ("accepted", "refused"):
            keep(worker, n, kind, outcome, why)


def _end_with_parent() -> None:
    """Nothing comes over the pipe but its end."""
    os.read(0, 1)
    os._exit(1)


def keep(worker: Worker, n: int, kind: str, outcome: str, why: str) -> None:
    """A failure: the mutant, and what was seen."""
    folder = worker.failures / f"{worker.seed}-{n}"
    shutil.copytree(worker.place / "in", folder, dirs_exist_ok=True)
    (folder / "why.txt").write_text(f"{kind}: {outcome}\n{why}\n", errors="backslashreplace")


if __name__ == "__main__":
    place, seed, *span = sys.argv[1:]
    main(Path(place), int(seed), range(*map(int, span)))
