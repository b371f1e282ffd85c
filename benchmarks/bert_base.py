"""BERT-base, all 109 million parameters of it, fine-tuned in the 256 KB of an nRF52840.

`python -m benchmarks firmware-bert-base`, or `make demo-bert-m4`: plans the step, writes it as C
with a card of real text, and trains on the emulated board, step by step. It begins with a seed's
weights and learns whether a passage is in capitals, from two pairs of passages. Each step begins
from a copy of the card, so that a run which was stopped goes on after the last whole step.
Everything is in build/boards/bert-base; delete it to begin anew.

Peer: the same steps in PyTorch. Limits: weights as near to float64's as rounding explains, a loss
that falls, held-out accuracy at least 10 points higher after than before, a card traffic of at most
1.5 times what reading every weight forward and backward and writing it once takes.
"""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

import poet
from benchmarks.lessons import HELD_OUT, accuracy, network_of, write_samples
from poet.firmware.card.commits import commit_of
from poet.firmware.emulate.comparison import compare_card
from poet.firmware.emulate.emulation import StepCounts, emulate
from poet.firmware.write.folder import read_folder
from poet.referee.replay import check
from poet.reports.tables import print_table
from poet.values.progress import SearchProgress
from poet.values.quantities import amount_text, bytes_text

HOME = Path("build/boards/bert-base")
MODEL = "bert-base?batch=2&seq=16"
BOARD = "nrf52840"
SAMPLES, STEPS, RATE = 2, 8, 0.002
LEAST_LEARNT = 0.1
LEAST_TRAFFIC = 86e6 * 4 * 3
"""Weights outside the embeddings: read forward, read backward, written."""


def bert_base() -> None:
    console = Console()
    folder, log = HOME / "firmware", HOME / "steps.json"
    if not (folder / "firmware.json").exists():
        _begin(console, folder)
    card, before = folder / "card.img", HOME / "card.before"
    steps = msgspec.json.decode(log.read_bytes(), type=list[StepCounts]) if log.exists() else []
    while len(steps) < STEPS:
        if before.exists():  # a step was begun and not ended
            before.replace(card)
        assert commit_of(card).steps_done == len(steps)
        copy = HOME / "card.copy"
        shutil.copyfile(card, copy)
        copy.replace(before)
        started = time.perf_counter()
        with console.status(f"step {len(steps) + 1} of {STEPS}: 35 billion instructions"):
            done = emulate(folder, steps=1, seconds=3600.0)
        steps += done.steps
        log.write_bytes(msgspec.json.encode(steps))
        before.unlink()
        console.print(
            f"step {len(steps)}  loss {steps[-1].loss:.6f}  "
            f"{steps[-1].instructions:,} instructions, {time.perf_counter() - started:.0f} s here"
        )
        for text in done.differences:
            console.print(f"not as planned: {text}")
    _show(console, folder, steps)


def _begin(console: Console, folder: Path) -> None:
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    with console.status("planning") as status:

        def tell(progress: SearchProgress) -> None:
            if progress.joules is not None:
                found = amount_text(progress.joules, "J")
                status.update(f"planning: {found}, at least {progress.bound_joules:.4g} J")

        plan = poet.plan(MODEL, BOARD, time_limit=60, progress=tell)
    print(plan)
    with console.status(f"writing C, a card of {SAMPLES} samples, and {STEPS} steps of PyTorch"):
        new, samples = HOME / "new", HOME / "samples.safetensors"
        write_samples(MODEL, samples, SAMPLES)
        poet.emit(plan, new, BOARD, data=samples, steps=STEPS, lr=RATE)
    with console.status(f"{HELD_OUT} held-out passages"):
        before = accuracy(MODEL, _weights(new))
        (HOME / "before.json").write_text(json.dumps(before))
    new.replace(folder)


def _weights(folder: Path) -> dict[str, Any]:
    made, plan = read_folder(folder)
    return network_of(folder, made, plan)


def _show(console: Console, folder: Path, steps: list[StepCounts]) -> None:
    made, plan = read_folder(folder)
    report, last = check(plan), steps[-1]
    against = compare_card(folder)
    assert against is not None
    turns = [steps[n : n + SAMPLES] for n in range(0, len(steps), SAMPLES)]
    means = [sum(step.loss for step in turn) / len(turn) for turn in turns]
    moved = last.streamed_bytes + last.page_in_bytes + last.page_out_bytes
    first = json.loads((HOME / "before.json").read_text())
    learnt = accuracy(MODEL, _weights(folder))
    rows = [
        [f"right of {HELD_OUT} held-out passages", f"{first:.1%} before, {learnt:.1%} after"],
        ["loss, mean of a turn", ", ".join(f"{mean:.4f}" for mean in means)],
        ["arena", bytes_text(made.arena_bytes)],
        ["instructions a step", f"{last.instructions:,}"],
        ["card traffic a step", f"{bytes_text(moved)}, {moved / LEAST_TRAFFIC:.2f} of the least"],
        ["predicted", f"{amount_text(report.seconds, 's')}, {amount_text(report.joules, 'J')}"],
        ["weights against PyTorch", f"{against.difference:.1e} of their change apart"],
        ["error against float64", f"{against.error_ratio:.2f} times PyTorch's"],
        ["worst tensor", f"{against.worst}: {against.worst_ratio:.2f} of what rounding explains"],
    ]
    print_table(console, [("BERT-base", "left"), (f"on {BOARD}", "left")], rows)
    limits = {
        "loss": means[-1] < means[0],
        "weights": against.is_close,
        "card traffic": moved <= 1.5 * LEAST_TRAFFIC,
        "accuracy": learnt >= first + LEAST_LEARNT,
    }
    (HOME / "result.json").write_text(json.dumps({"losses": means, "moved": moved, **limits}))
    missed = [name for name, is_met in limits.items() if not is_met]
    if missed:
        raise SystemExit(f"a limit is not met: {', '.join(missed)}")


BENCHMARKS = {"firmware-bert-base": bert_base}
