"""What happens to jobs when workers hang, eat memory or die, when the disk is full, and when the
service is stopped or killed in the middle."""

import os
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks.service_kills import main as killed
from benchmarks.serving import served, start
from starlette.testclient import TestClient

import poet
from poet.server.app import make_app
from poet.server.client import Client
from tests.conftest import INSTANCES
from tests.server.conftest import HERE, asked, ended, endless, running, settings, small

Open = Callable[..., TestClient]
FILE, LARGE = str(INSTANCES / "linear-m4.json"), str(INSTANCES / "bert-m4.json")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_with(**changed: Any) -> TestClient:
            app = make_app(settings(tmp_path / "jobs", **changed))
            return stack.enter_context(TestClient(app, HERE))

        yield open_with


def worker_of(client: TestClient) -> int:
    """The process of the only job that is running."""
    runner = client.app.service.runner  # type: ignore[attr-defined]
    (worker,) = runner._workers.values()
    return int(worker.process.pid)


def test_a_worker_that_hangs_costs_its_job_alone(opened: Open) -> None:
    client = opened(grace_seconds=0.5)
    job = asked(client, endless())
    running(client, job)
    os.kill(worker_of(client), signal.SIGSTOP)
    next_job = asked(client, small(ram="60%"))
    client.delete(job)
    assert ended(client, job, 10)["status"] == "cancelled"
    assert ended(client, next_job)["plan"]["schedule"]


def test_a_job_has_so_much_time(opened: Open) -> None:
    client = opened(job_seconds=3)
    answer = ended(client, asked(client, endless()), 60)
    assert answer["status"] == "cancelled"
    assert answer["error"] == "stopped after 3 s, the most for a job here"
    assert answer["plan"]["schedule"]


@pytest.mark.parametrize("memory_bytes", [100 << 20, 24 << 20])
def test_a_job_has_so_much_memory(opened: Open, memory_bytes: int) -> None:
    client = opened(memory_bytes=memory_bytes)
    answer = ended(client, asked(client, endless(time_limit=60)))
    assert answer["status"] == "failed"
    assert "memory" in answer["error"] or "died each time" in answer["error"]
    assert client.get("/api/health").json()["status"] == "ok"


def test_a_worker_that_dies_is_begun_again_once(opened: Open) -> None:
    client = opened()
    job = asked(client, endless())
    running(client, job)
    first = worker_of(client)
    os.kill(first, signal.SIGKILL)
    until = time.monotonic() + 60
    while (log := client.get(f"{job}/log").json()["lines"]).count(
        "running"
    ) < 2 or "s: " not in log[-1]:
        assert time.monotonic() < until, log
        time.sleep(0.05)
    os.kill(worker_of(client), signal.SIGKILL)
    answer = ended(client, job, 30)
    assert answer["status"] == "failed"
    assert "died each time" in answer["error"]


def limit_files(process: int, nbytes: int) -> None:
    """No file of it can grow beyond that, as on a full disk."""
    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (nbytes, hard))


def ask(client: Client, patience_seconds: float = 60.0, **terms: Any) -> str:
    """The path of a job, by the client's own way to ask."""
    body = msgspec.json.encode(small(**terms))
    told = client._service.ask("POST", "/api/plans", body, patience_seconds=patience_seconds)
    return f"/api/plans/{msgspec.json.decode(told)['id']}"


def test_a_full_disk_loses_nothing_that_was_found(tmp_path: Path) -> None:
    with served(tmp_path / "jobs", "--workers", "1") as service:
        client = poet.connect(service.address)
        found = client.plan(FILE, ram="60%", work_limit=1)
        process, heard = service.process.pid, list[object]()
        limit_files(process, 0)
        with pytest.raises(poet.PoetError, match="no room on the disk"):
            ask(client, 0.0, ram="61%")
        limit_files(process, -1)
        assert client.plan(FILE, ram="60%", work_limit=1) == found
        back = threading.Timer(3.5, limit_files, (process, -1))

        def fill(now: object) -> None:
            if not heard:
                limit_files(process, 0)
                back.start()
            heard.append(now)

        assert client.plan(LARGE, ram="54%", time_limit=1, gap=0.0, progress=fill).schedule
        back.join()


def test_a_service_that_is_stopped_goes_on_with_its_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    with served(folder, "--workers", "1") as service:
        client = poet.connect(service.address)
        done = client.plan(FILE, ram="60%", work_limit=1)
        large = {"instance": msgspec.json.decode(Path(LARGE).read_bytes()), "work_limit": None}
        job = ask(client, ram="55%", gap=0, time_limit=2, **large)
        queued = ask(client, ram="56%")
        next(
            each for each in client._service.events(f"{job}/events", print) if each.kind != "status"
        )
    with served(folder, "--workers", "1") as service:
        again = poet.connect(service.address)
        assert again.plan(FILE, ram="60%", work_limit=1) == done
        for each in (job, queued):
            *_, last = again._service.events(f"{each}/events", print)
            assert msgspec.json.decode(last.data)["status"] == "done"
    store = sqlite3.connect(folder / "jobs.sqlite3")
    assert store.execute("SELECT status, starts FROM jobs").fetchall() == [("done", 1)] * 3
    store.close()


def test_one_folder_has_one_service(tmp_path: Path) -> None:
    with served(tmp_path / "jobs"), pytest.raises(AssertionError, match="it ended with 2"):
        start(tmp_path / "jobs")


def test_killed_services_and_workers_lose_nothing() -> None:
    tally = killed(kills=3, seed=1)
    assert tally.wrong == []
