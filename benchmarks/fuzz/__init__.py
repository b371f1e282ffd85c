"""Mutated files of every kind, used as people use files: each ends well, or in one message.

`python -m benchmarks.fuzz 1000 [SEED]` makes a thousand. Plans, graphs, instances, boards, costs,
profiles, checkpoints, weights, captures and firmware folders are changed, by their structure or by
their bytes, with their fingerprints, checksums and HMACs repaired, and then read, checked, planned,
reported, emitted and trained with. A mutant may be accepted, or refused with a PoetError that
leaves nothing behind. Anything else is a failure: another exception, more than 10 s or 2 GB, a
process, an import, code that POET did not write, a file outside of the place. Failures are kept in
`build/fuzz/worker*/failures`, and counted.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from poet.reports.tables import print_table

MUTANTS = 100_000
FOLDER = Path("build/fuzz")
GOOD = ("accepted", "refused")


class Tally(NamedTuple):
    outcomes: Counter[tuple[str, str]]
    """By kind and outcome."""
    deep: Counter[tuple[str, str]]
    """By kind and what was done besides reading."""
    seconds: float

    @property
    def failures(self) -> int:
        return sum(count for (_, what), count in self.outcomes.items() if what not in GOOD)


def run(mutants: int, seed: int = 0, workers: int | None = None, folder: Path = FOLDER) -> Tally:
    """So many mutants, on all cores; what fails is in `folder`."""
    started = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    count = workers or len(os.sched_getaffinity(0))
    places = [folder / f"worker{each}" for each in range(count)]
    for place in places:
        place.mkdir(parents=True)
    running = {
        place: _start(place, seed, each, mutants, count) for each, place in enumerate(places)
    }
    try:
        while running:
            for place, process in list(running.items()):
                try:
                    code = process.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    continue
                del running[place]
                if code:
                    last = _died(place, seed, code)
                    if last + count < mutants:
                        running[place] = _start(place, seed, last + count, mutants, count)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    outcomes: Counter[tuple[str, str]] = Counter()
    deep: Counter[tuple[str, str]] = Counter()
    for place in places:
        for line in (place / "log").read_text().splitlines():
            _, kind, outcome, done = line.split("\t")
            outcomes[kind, outcome] += 1
            deep.update((kind, each) for each in done.split(",") if each)
    return Tally(outcomes, deep, time.perf_counter() - started)


def _start(place: Path, seed: int, first: int, last: int, by: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "benchmarks.fuzz.worker", str(place.resolve()), str(seed)]
    with open(place / "said.txt", "ab") as said:
        return subprocess.Popen(
            [*command, str(first), str(last), str(by)], stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        )  # fmt: skip


def _died(place: Path, seed: int, code: int) -> int:
    """Write down which mutant a process died of: of time, or of what it did."""
    said = (place / "said.txt").read_bytes()[-4000:].decode(errors="replace")
    now = place / "now"
    if not now.exists():
        raise SystemExit(f"a worker could not begin:\n{said}")
    n = int(now.read_text())
    now.unlink()
    outcome = "timeout" if -code == signal.SIGXCPU or "Timeout (" in said else "crash"
    with open(place / "log", "a") as log:
        log.write(f"{n}\t?\t{outcome}\t\n")
    kept = place / "failures" / f"{seed}-{n}"
    shutil.copytree(place / "use" / "in", kept, dirs_exist_ok=True)
    (kept / "why.txt").write_text(f"{outcome}, exit code {code}\n{said}")
    return n


def table(tally: Tally) -> None:
    kinds = sorted({kind for kind, _ in tally.outcomes})
    rows = []
    for kind in (*kinds, "all"):
        found: Counter[str] = Counter()
        for (each, outcome), count in tally.outcomes.items():
            if kind in (each, "all"):
                found[outcome] += count
        done = [f"{n:,} {what}" for (each, what), n in sorted(tally.deep.items()) if each == kind]
        bad = [f"{n:,} {what}" for what, n in sorted(found.items()) if what not in GOOD]
        rows.append([
            kind, f"{found.total():,}", *(f"{found[each]:,}" for each in GOOD),
            ", ".join(bad) or "0", ", ".join(done),
        ])  # fmt: skip
    print_table(
        Console(width=150),
        [("file", "left"), ("mutants", "right"), *((each, "right") for each in GOOD),
         ("failures", "right"), ("beyond reading and checking", "left")],
        rows,
    )  # fmt: skip
    total = tally.outcomes.total()
    print(f"{total:,} mutants in {tally.seconds:.0f} s, {tally.failures} failures")


def main(mutants: int = MUTANTS, seed: int = 0) -> int:
    tally = run(mutants, seed)
    table(tally)
    return tally.failures


def benchmark() -> None:
    if main():
        raise SystemExit(f"failures are in {FOLDER}")


BENCHMARKS = {"fuzz": benchmark}
