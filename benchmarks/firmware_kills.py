"""`firmware-kills`: an emulated board is killed at random moments, and trains on as if it were not.

Each card is trained on the emulated nRF52840 in stretches that end with SIGKILL; then the emulator
starts again on what is left. When all steps are done the card's network must be, bit for bit, that
of a card that was never disturbed. Of every writing, `tests/mcu/cuts.c` cuts each; this is the same
where whole machines die.
"""

import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

import poet
from poet.firmware.boards import emulator_command, find_board
from poet.firmware.card.commits import commit_of
from poet.firmware.card.image import read_tensors
from poet.firmware.emit import emit
from poet.firmware.emulate.emulation import build
from poet.firmware.write.folder import read_folder
from poet.reports.tables import print_table
from poet.tracer.by_name import capture_named
from poet.values.optimizers import parse_optimizer
from poet.values.schedule import Params

KILLS, STEPS, BOARD = 50, 12, "nrf52840"


class Case(NamedTuple):
    model: str
    optimizer: str
    params: Params
    ram: str


CASES = (
    Case("mlp?size=8&hidden=16&layers=1&dropout=0.3", "adam", "paged", "24 KB"),
    Case("mlp?size=8&hidden=16&layers=1&dropout=0.3", "sgd?momentum=0.9", "resident", "24 KB"),
    Case("lenet?size=16", "sgd", "paged", "122 KB"),
    Case("mlp?size=16&hidden=64&layers=1", "adam", "streamed", "24 KB"),
)


class Killed(NamedTuple):
    kills: int
    is_equal: bool


def killed(case: Case, kills: int, folder: Path, chance: random.Random) -> Killed:
    """A card that is disturbed so often, beside one that is not."""
    fuse = case.params == "streamed"
    program = capture_named(case.model, parse_optimizer(case.optimizer), fuse_updates=fuse)
    plan = poet.plan(program, device=BOARD, ram=case.ram, params=case.params, work_limit=20)
    emit(plan, folder / "fw", BOARD, steps=STEPS, save_every=1)
    made, plan = read_folder(folder / "fw")
    build(folder / "fw", made)
    whole = folder / "whole"
    shutil.copytree(folder / "fw", whole)
    began = time.monotonic()
    run(whole, None)
    seconds = time.monotonic() - began
    wanted = read_tensors(whole / "card.img", plan.graph, made.card)
    done = 0
    card, new = folder / "fw" / "card.img", (folder / "fw" / "card.img").read_bytes()
    is_equal = True
    while done < kills:
        card.write_bytes(new)
        while commit_of(card).steps_done < STEPS:
            limit = chance.uniform(0.1, 1.2) * seconds if done < kills else None
            done += not run(folder / "fw", limit)
        found = read_tensors(card, plan.graph, made.card)
        is_equal &= all(np.array_equal(x, wanted[i], equal_nan=True) for i, x in found.items())
    return Killed(done, is_equal)


def run(folder: Path, seconds: float | None) -> bool:
    """Train until the card is content; False: it was killed before."""
    board = find_board(BOARD)
    assert board is not None
    running = subprocess.Popen(
        emulator_command(board, "train.elf"), cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = running.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGKILL)
        running.communicate()
        return False
    if running.returncode != 0:
        raise SystemExit(f"the firmware ended with {running.returncode}: {said.decode()[-300:]}")
    return True


def main() -> None:
    chance, rows, lost = random.Random(0), [], 0
    share = -(-KILLS // len(CASES))
    for case in CASES:
        with tempfile.TemporaryDirectory() as name:
            came = killed(case, share, Path(name), chance)
        lost += not came.is_equal
        equal = "bit for bit" if came.is_equal else "NOT EQUAL"
        rows.append([case.model, case.optimizer, case.params, str(came.kills), equal])
    print_table(
        Console(),
        [("model", "left"), ("optimizer", "left"), ("parameters", "left"), ("kills", "right"),
         ("against one never killed", "left")],
        rows,
    )  # fmt: skip
    if lost:
        raise SystemExit(f"{lost} cards are not what they should be")


BENCHMARKS = {"firmware-kills": main}
