"""A service in this process, with its workers, and small questions for it."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from poet.server.app import make_app
from poet.server.settings import Settings
from tests.conftest import INSTANCES

HERE = "http://127.0.0.1:8000"
Asking = Callable[..., TestClient]


def small(**terms: Any) -> dict[str, Any]:
    """A question that is answered in a moment, always with the same plan."""
    instance = json.loads((INSTANCES / "linear-m4.json").read_text())
    return {"instance": instance, "work_limit": 1, **terms}


def endless(**terms: Any) -> dict[str, Any]:
    """One whose search goes on until it is told to stop; it has a plan at once."""
    instance = json.loads((INSTANCES / "bert-m4.json").read_text())
    return {"instance": instance, "ram": "45%", "gap": 0, "time_limit": 600, **terms}


def settings(folder: Path, **changed: Any) -> Settings:
    return Settings(folder=folder, **changed)


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that several tests ask."""
    app = make_app(settings(tmp_path_factory.mktemp("jobs"), workers=2, posts_a_minute=6000))
    with TestClient(app, HERE) as client:
        yield client


def asked(client: TestClient, question: dict[str, Any], path: str = "plans") -> str:
    """The path of a job."""
    answer = client.post(f"/api/{path}", json=question)
    assert answer.status_code == 202, answer.text
    return f"/api/{path}/{answer.json()['id']}"


def ended(client: TestClient, job: str, seconds: float = 120) -> dict[str, Any]:
    """A job when it has ended."""
    until = time.monotonic() + seconds
    while True:
        answer: dict[str, Any] = client.get(job).json()
        if answer["status"] not in ("queued", "running"):
            return answer
        assert time.monotonic() < until, answer
        time.sleep(0.05)


def running(client: TestClient, job: str, seconds: float = 60) -> None:
    """Wait until a job's search has told something."""
    until = time.monotonic() + seconds
    while client.get(job).json()["joules"] is None:
        assert time.monotonic() < until
        time.sleep(0.05)
