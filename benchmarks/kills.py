"""Processes killed at random moments, resumed, and compared with one that was left alone.

`python -m benchmarks.kills 100` kills a hundred. A small net with dropout and batch statistics
trains with AdamW, parameters and state paged to a file, a checkpoint every other step. Each process
is killed with SIGKILL at a moment drawn uniformly from the time that an undisturbed one takes,
start-up included; a second process resumes from the same folder and trains to the end. The end
counts if the last checkpoint has the same checksum as the undisturbed one's: weights, buffers,
optimizer state, steps and random states, bit for bit.

Processes are forked from one that has imported everything and started no thread yet.
"""

import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from rich.console import Console
from torch import nn

import poet
import poet.tracer.pipeline  # now, since it takes a second, and not in each process
from poet.reports.tables import print_table
from poet.runtime.state.checkpoints import Checkpoint
from poet.runtime.state.generations import steps_in
from poet.values.files import read_json, write_json
from poet.values.plan import Plan

KILLS = 100
STEPS = 16
EVERY = 2
PHASES = ("start-up", "step", "checkpoint", "end")
_START, _STEP, _CHECKPOINT, _END = range(len(PHASES))


class Tally(NamedTuple):
    kills: int
    hits: Counter[str]
    """What the processes were doing when they were killed."""
    equal: int
    """Ends that are bit-equal to the undisturbed one."""
    leftovers: int
    """Files of killed processes that a resumed one left lying about."""
    seconds: float


def main(kills: int, seed: int) -> Tally:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        tally = _all(kills, seed, Path(folder), started)
    hits = [f"{tally.hits[phase]}" for phase in PHASES[:_END]]
    heads = ("kills", *(f"in {phase}" for phase in PHASES[:_END]), "bit-equal ends", "left", "time")
    print_table(
        Console(),
        [(head, "right") for head in heads],
        [[f"{kills}", *hits, f"{tally.equal}", f"{tally.leftovers}", f"{tally.seconds:.0f} s"]],
    )
    return tally


def _all(kills: int, seed: int, folder: Path, started: float) -> Tally:
    os.environ["POET_CACHE"] = str(folder / "captures")
    moments = random.Random(seed)
    plan = folder / "plan.json"
    _finish(_forked(lambda: _make_plan(plan, folder / "pages")))
    undisturbed = folder / "undisturbed"
    phase = _Phase()
    began = time.perf_counter()
    _finish(_forked(lambda: _train(undisturbed, plan, phase)))
    whole_seconds = time.perf_counter() - began
    wanted = _end(undisturbed)
    hits: Counter[str] = Counter()
    equal = leftovers = done = trial = 0
    while done < kills:
        trial += 1
        place = folder / f"trial{trial}"
        phase.set(_START)
        process = _forked(lambda place=place: _train(place, plan, phase))  # type: ignore[misc]
        time.sleep(moments.uniform(0, whole_seconds))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):  # it had reached the end
            continue
        done += 1
        hits[PHASES[phase.get()]] += 1
        _finish(_forked(lambda place=place: _train(place, plan, phase)))  # type: ignore[misc]
        equal += _end(place) == wanted
        leftovers += len([*place.rglob("*.part"), *(place / "pages").iterdir()])
    return Tally(kills, hits, equal, leftovers, time.perf_counter() - started)


class _Phase:
    """A byte that a process and those it forked share."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def set(self, phase: int) -> None:
        self._byte[0] = phase

    def get(self) -> int:
        return self._byte[0]


def _trainer(pages: Path, plan: Plan | None) -> poet.Trainer:
    torch.manual_seed(0)
    width = 96
    model = nn.Sequential(
        nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(width, 10),
    )  # fmt: skip
    return poet.Trainer(
        model,
        nn.CrossEntropyLoss(),
        poet.AdamW(lr=0.01),
        example=_batch(0),
        store=pages,
        params="paged",
        plan=plan,
        time_limit=2,
    )


def _make_plan(path: Path, pages: Path) -> None:
    with _trainer(pages, None) as trainer:
        write_json(trainer.plan, path)


def _train(folder: Path, plan: Path, phase: _Phase) -> None:
    """What a person's script does: resume where there is something, train, save."""
    folder.mkdir(exist_ok=True)
    run = folder / "run"
    trainer = _trainer(folder / "pages", read_json(plan, Plan))
    torch.manual_seed(1)
    random.seed(1)  # Python's and NumPy's are others in each process, and are kept too
    np.random.seed(1)
    if steps_in(run):
        trainer.load(run)
    while trainer.steps < STEPS:
        phase.set(_STEP)
        trainer.step(*_batch(trainer.steps))
        if trainer.steps % EVERY == 0:
            phase.set(_CHECKPOINT)
            trainer.save(run)
    phase.set(_END)
    trainer.close()


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(16, 64, generator=draw), torch.randint(0, 10, (16,), generator=draw)


def _end(folder: Path) -> str | None:
    """The checksum of all that a run has come to."""
    path = folder / "run" / f"step-{STEPS:08}.json"
    return msgspec.json.decode(path.read_bytes(), type=Checkpoint).file_checksum


def _forked(call: Callable[[], None]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        torch.set_num_threads(1)
        call()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _finish(process: int) -> None:
    _, status = os.waitpid(process, 0)
    if status:
        raise SystemExit(f"a process ended with status {status}")


def benchmark() -> None:
    """In a process of its own, since this one may have threads, which do not survive a fork."""
    subprocess.run([sys.executable, "-m", "benchmarks.kills"], check=True)


BENCHMARKS: dict[str, Callable[[], None]] = {"kills": benchmark}

if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    ended = main(count, seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    sys.exit(0 if ended.equal == count and not ended.leftovers else 1)
