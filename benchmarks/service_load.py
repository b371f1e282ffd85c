"""Fifty people ask a service at once; how long it takes to answer while it solves.

Each client asks for plans one after the other, with the library's own client: it follows the events
of its job, and comes back when it is told to, where it was too early. Meanwhile somebody else asks
for what is answered at once (the health, the models, the page, a job, its log) and measures. The
same is measured of a service that does nothing. Every job must end, and must have been begun once.
"""

import http.client
import logging
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from rich.console import Console

import poet
from benchmarks.serving import served
from poet.errors import PoetError
from poet.reports.tables import print_table
from poet.server.asking import Service

CLIENTS = 50
PLANS = 3
"""Of each client."""
WORKERS = 2
_FILE = "instances/linear-m4.json"
_PATHS = ("/api/health", "/api/models", "/", "/api/plans/{job}", "/api/plans/{job}/log")
_PAUSE_SECONDS = 0.05
_IDLE_SECONDS = 10.0
_MOST_MS = 200.0


class Load(NamedTuple):
    ended: int
    refused: int
    """How often a client was told to come back later."""
    wrong: list[str]
    seconds: float


class Tally(NamedTuple):
    idle_ms: list[float]
    busy_ms: list[float]
    load: Load


def main(clients: int = CLIENTS, plans: int = PLANS) -> Tally:
    with tempfile.TemporaryDirectory() as folder:
        with served(Path(folder), "--workers", str(WORKERS)) as service:
            asked = Service(service.address, None)
            job = msgspec.json.decode(asked.ask("POST", "/api/plans", _question()))["id"]
            for _ in asked.events(f"/api/plans/{job}/events", print):
                pass
            until = time.monotonic() + _IDLE_SECONDS
            idle = list(_measured(service.address, job, lambda: time.monotonic() < until))
            crowd = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.service_load", service.address, f"{clients}",
                 f"{plans}"],
                stdout=subprocess.PIPE,
            )  # fmt: skip
            busy = list(_measured(service.address, job, lambda: crowd.poll() is None))
            assert crowd.stdout is not None
            load = msgspec.json.decode(crowd.stdout.read(), type=Load)
            crowd.stdout.close()
        load.wrong.extend(_begun_twice(Path(folder) / "jobs.sqlite3", 1 + clients * plans))
    return Tally(idle, busy, load)


def _measured(address: str, job: str, goes_on: Callable[[], bool]) -> Iterable[float]:
    """Milliseconds of one answer after the other, connection and all."""
    place = urlsplit(address)
    number = 0
    while goes_on():
        path = _PATHS[number % len(_PATHS)].format(job=job)
        number += 1
        began = time.perf_counter()
        connection = http.client.HTTPConnection(place.hostname or "", place.port)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status == 429:  # this, too, is somebody of this machine
            time.sleep(int(answer.headers["retry-after"]))
            continue
        assert answer.status == 200, answer.status
        yield 1000 * (time.perf_counter() - began)
        time.sleep(_PAUSE_SECONDS)


def _begun_twice(store: Path, wanted: int) -> list[str]:
    jobs = sqlite3.connect(store)
    rows = jobs.execute("SELECT id, status, starts FROM jobs").fetchall()
    jobs.close()
    wrong = [f"{id} is {status}, begun {n} times" for id, status, n in rows if n != 1]
    return wrong + ([] if len(rows) == wanted else [f"there are {len(rows)} jobs, not {wanted}"])


def _question() -> bytes:
    instance = msgspec.json.decode(Path(_FILE).read_bytes())
    return msgspec.json.encode({"instance": instance, "ram": "60%", "work_limit": 1})


def _crowd(address: str, clients: int, plans: int) -> Load:
    """All of them at once, in a process of their own."""
    began, ended, wrong = time.perf_counter(), [0] * clients, []
    refusals = _Refusals()
    logging.getLogger("poet.server.client").addHandler(refusals)
    logging.getLogger("poet.server.client").setLevel(logging.INFO)
    start = threading.Barrier(clients)

    def work(number: int) -> None:
        time.sleep(random.Random(number).uniform(0, 0.2))
        try:
            start.wait()
            client = poet.connect(address)
            for n in range(plans):
                found = client.plan(_FILE, ram="60%", work_limit=1, seed=1 + number * plans + n)
                if poet.check(found).claims_match:
                    ended[number] += 1
        except PoetError as error:
            wrong.append(f"client {number}: {error}")

    people = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for each in people:
        each.start()
    for each in people:
        each.join()
    if sum(ended) != clients * plans:
        wrong.append(f"{sum(ended)} of {clients * plans} plans came")
    return Load(sum(ended), refusals.count, wrong, time.perf_counter() - began)


class _Refusals(logging.Handler):
    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "asking again in" in record.getMessage()


def show(tally: Tally) -> None:
    rows = []
    for name, found in (("idle", tally.idle_ms), ("50 clients", tally.busy_ms)):
        cuts = statistics.quantiles(found, n=100)
        rows.append([
            name, f"{len(found):,}", f"{cuts[49]:.1f} ms", f"{cuts[94]:.1f} ms",
            f"{cuts[98]:.1f} ms", f"{max(found):.1f} ms",
        ])  # fmt: skip
    at = [statistics.quantiles(each, n=20)[18] for each in (tally.idle_ms, tally.busy_ms)]
    rows.append(["ratio", "", "", f"{at[1] / at[0]:.1f}x", "", ""])
    heads = ("", "answers", "median", "95 %", "99 %", "longest")
    print_table(Console(), [(head, "right") for head in heads], rows)
    load = tally.load
    print(
        f"{load.ended} plans in {load.seconds:.0f} s, {load.refused} times told to come back; "
        f"wrong: {len(load.wrong)}; 95 % under {_MOST_MS:.0f} ms: {at[1] < _MOST_MS}"
    )
    for each in load.wrong:
        print(each)


def benchmark() -> None:
    show(main())


BENCHMARKS: dict[str, Callable[[], None]] = {"service-load": benchmark}

if __name__ == "__main__":
    address, clients, plans = sys.argv[1], *map(int, sys.argv[2:])
    print(msgspec.json.encode(_crowd(address, clients, plans)).decode())
