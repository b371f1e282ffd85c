"""A service and its workers, killed at random moments in the middle of jobs.

`python -m benchmarks.service_kills 50` kills fifty times with SIGKILL: a worker, the service, or
both. Meanwhile jobs are asked for, without a pause. Afterwards, with a service on the same folder,
every job that was ever answered with an id must be known and end: with its plan, which the referee
replays, or with an error that says how often it was begun. What had ended before a kill must be the
same bytes after it, and must not have been begun again. No process of a killed service may be left.
"""

import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console

import poet
from benchmarks.serving import Served, none_left, start, workers
from poet.errors import PoetError
from poet.reports.tables import print_table
from poet.server.asking import Service
from poet.values.files import decode_json
from poet.values.plan import Plan

KILLS = 50
WHOM = ("worker", "service", "both")
WORKERS = 2
_FILE = Path(__file__).parent.parent / "instances/linear-m4.json"
_PAUSE_SECONDS = 0.4
"""Between two jobs that are asked for: about as many as two workers do."""
_LONGEST_SECONDS = 4.0
"""Until a kill: a job takes about two."""
_JOB_SECONDS = 120.0


class Tally(NamedTuple):
    kills: Counter[str]
    jobs: int
    done: int
    marked: int
    """Jobs that were begun too often, and say so."""
    kept: int
    """Results that were there before a kill, compared after it."""
    wrong: list[str]
    seconds: float


def main(kills: int, seed: int = 0) -> Tally:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trial = _Trial(Path(folder) / "jobs", random.Random(seed))
        try:
            for _ in range(kills):
                trial.kill()
            trial.wait_for_all()
        finally:
            trial.end()
    return trial.tally(time.perf_counter() - began)


class _Trial:
    def __init__(self, folder: Path, moments: random.Random) -> None:
        self._folder, self._moments = folder, moments
        self._port = _free_port()
        self._served = self._start()
        self._service = Service(self._served.address, None)
        self._question = {"instance": msgspec.json.decode(_FILE.read_bytes()), "work_limit": 1}
        self._kills: Counter[str] = Counter()
        self._jobs: list[str] = []
        self._results: dict[str, bytes] = {}
        self._ends: dict[str, str] = {}
        self._wrong: list[str] = []
        self._kept = 0
        self._is_over = threading.Event()
        self._asking = threading.Thread(target=self._ask)
        self._asking.start()

    def _start(self) -> Served:
        options = ("--port", str(self._port), "--workers", str(WORKERS))
        return start(self._folder, *options)

    def _ask(self) -> None:
        """Jobs, one after the other, whether somebody answers or not."""
        number = 0
        while not self._is_over.wait(_PAUSE_SECONDS):
            number += 1
            body = msgspec.json.encode({**self._question, "ram": 3500 + number})
            try:
                told = self._service.ask("POST", "/api/plans", body, patience_seconds=0)
            except PoetError:
                continue  # nobody was there, or as many wait as may
            self._jobs.append(msgspec.json.decode(told)["id"])

    def kill(self) -> None:
        until = time.monotonic() + self._moments.uniform(0, _LONGEST_SECONDS)
        whom = self._moments.choice(WHOM)
        while time.monotonic() < until:
            self._look()
            time.sleep(0.05)
        running = self._a_worker() if whom != "service" else None
        self._kills[whom] += 1
        if whom != "worker":
            self._served.process.kill()
        if running is not None:
            _kill(running)
        if whom != "worker":
            self._served.process.wait()
            assert self._served.process.stdout is not None
            self._served.process.stdout.close()
            if not none_left(self._served):
                self._wrong.append("processes of a killed service went on")
            self._served = self._start()
        for job, content in list(self._results.items())[-10:]:
            self._kept += 1
            if self._get(f"{job}/plan.json") != content:
                self._wrong.append(f"{job} has another result than before a kill")

    def _a_worker(self) -> int | None:
        """One that runs, as soon as there is one."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            found = workers(self._served)
            if found:
                return self._moments.choice(sorted(found))
            self._look()
            time.sleep(0.01)
        return None

    def _look(self) -> None:
        """At the oldest jobs whose end is not known."""
        for job in [each for each in list(self._jobs) if each not in self._ends][:2]:
            answer = msgspec.json.decode(self._get(job))
            if answer["status"] in ("queued", "running"):
                continue
            self._ends[job] = answer["status"]
            if answer["status"] == "done":
                self._results[job] = content = self._get(f"{job}/plan.json")
                if not poet.check(decode_json(content, Plan, "a plan")).claims_match:
                    self._wrong.append(f"{job}: the referee refuses its plan")
            elif "begun" not in (answer["error"] or ""):
                self._wrong.append(f"{job} ended as {answer['status']}: {answer['error']}")

    def _get(self, path: str) -> bytes:
        try:
            return self._service.ask("GET", f"/api/plans/{path}")
        except PoetError as error:
            self._wrong.append(f"{path}: {error}")
            return b'{"status": "lost", "error": "begun"}'

    def wait_for_all(self) -> None:
        self._is_over.set()
        self._asking.join()
        until = time.monotonic() + _JOB_SECONDS + 3 * len(self._jobs)
        while len(self._ends) < len(self._jobs):
            self._look()
            time.sleep(0.05)
            if time.monotonic() > until:
                left = [job for job in self._jobs if job not in self._ends]
                self._wrong += [f"{job} does not end" for job in left]
                return
        for job, content in self._results.items():
            self._kept += 1
            if self._get(f"{job}/plan.json") != content:
                self._wrong.append(f"{job} has another result at the end")
            log = msgspec.json.decode(self._get(f"{job}/log"))["lines"]
            if log.count("done") != 1 or log[-1] != "done":
                self._wrong.append(f"{job} went on after its end: {log}")

    def end(self) -> None:
        self._is_over.set()
        self._asking.join()
        self._served.process.send_signal(signal.SIGTERM)
        self._served.process.wait(20)
        assert self._served.process.stdout is not None
        self._served.process.stdout.close()
        if not none_left(self._served):
            self._wrong.append("processes of a stopped service went on")

    def tally(self, seconds: float) -> Tally:
        ends = Counter(self._ends.values())
        return Tally(
            self._kills, len(self._jobs), ends["done"], ends["failed"], self._kept, self._wrong,
            seconds,
        )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return  # it died with the service, or had just ended


def show(tally: Tally) -> None:
    heads = (*(f"{whom} killed" for whom in WHOM), "jobs", "done", "marked", "results compared",
             "wrong", "time")  # fmt: skip
    cells = [
        *(f"{tally.kills[whom]}" for whom in WHOM), f"{tally.jobs}", f"{tally.done}",
        f"{tally.marked}", f"{tally.kept}", f"{len(tally.wrong)}", f"{tally.seconds:.0f} s",
    ]  # fmt: skip
    print_table(Console(), [(head, "right") for head in heads], [cells])
    for each in tally.wrong:
        print(each)


def benchmark() -> None:
    show(main(KILLS))


BENCHMARKS: dict[str, Callable[[], None]] = {"service-kills": benchmark}

if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    found = main(count, seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    show(found)
    sys.exit(1 if found.wrong else 0)
