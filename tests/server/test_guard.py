"""The guard: who is let in, how often and with how much, and what every answer leaves with."""

import asyncio
import io
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from poet.errors import PoetError
from poet.server.app import make_app
from poet.server.guard import CSP
from poet.server.settings import Settings
from poet.tracer.by_name import layout_named
from poet.values.optimizers import parse_optimizer
from tests.conftest import ROOT
from tests.server.conftest import HERE, asked, ended, endless, settings, small

TOKEN = "a token of some length"
BEARER = {"authorization": f"Bearer {TOKEN}"}
Open = Callable[..., TestClient]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Services of a test's own, with other settings."""
    with ExitStack() as stack:

        def open_with(address: str = HERE, **changed: Any) -> TestClient:
            app = make_app(settings(tmp_path / "jobs", **changed))
            return stack.enter_context(TestClient(app, address))

        yield open_with


def test_others_are_let_in_with_a_token_alone(opened: Open) -> None:
    client = opened(token=TOKEN, posts_a_minute=6000)
    assert client.get("/api/health").json()["needs_token"] is True
    assert client.get("/").status_code == 200
    attempts: tuple[Any, ...] = (
        {}, {"authorization": "Bearer no"}, {"authorization": f"Basic {TOKEN}"},
        {"authorization": b"Bearer \xff"}, {"cookie": f"poet_session={TOKEN}"}, {"cookie": "a=;;="},
    )  # fmt: skip
    for headers in attempts:
        refused = client.get("/api/models", headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert list(refused.json()) == ["error"]
        assert client.post("/api/plans", json=small(), headers=headers).status_code == 401
    assert client.get("/api/models", headers=BEARER).status_code == 200
    assert client.get("/api/health", headers=BEARER).json()["needs_token"] is False


def test_a_browser_keeps_a_cookie_that_is_not_the_token(opened: Open) -> None:
    client = opened(token=TOKEN)
    assert client.post("/api/session", json={"token": "another of this length"}).status_code == 401
    assert client.post("/api/session", json={"token": 3}).status_code == 422
    entered = client.post("/api/session", json={"token": TOKEN})
    assert entered.status_code == 204
    kept = entered.headers["set-cookie"]
    assert TOKEN not in kept
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(kept.split("; "))
    assert client.get("/api/models").status_code == 200
    assert client.delete("/api/session").status_code == 204
    assert client.get("/api/models").status_code == 401


@pytest.mark.parametrize(
    "wrong",
    [{"host": "0.0.0.0"}, {"host": "192.0.2.1"}, {"names": ("poet.example",)}, {"token": "short"}],
)
def test_nobody_else_is_let_in_without_a_token(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(PoetError, match="token"):
        Settings(folder=tmp_path, **wrong)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},  # a name of theirs that they point here
        {"host": "127.0.0.1.evil.example"},
        {"host": "evil.example@127.0.0.1"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},  # another program of this machine
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_pages_from_elsewhere_drive_nothing(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/api/plans", json=small(), headers=headers).status_code == 403
    assert client.get("/api/models", headers=headers).status_code == 403


def test_a_form_of_another_page_is_not_json(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        sent = client.post(
            "/api/plans", content=json.dumps(small()), headers={"content-type": kind}
        )
        assert sent.status_code == 415


def test_who_asks_too_often_is_told_when_to_come_back(opened: Open) -> None:
    client = opened(posts_a_minute=60, requests_a_minute=600)
    answers = [client.post("/api/plans?validate=true", json=small()) for _ in range(12)]
    late = [answer for answer in answers if answer.status_code == 429]
    assert 0 < len(late) < 12
    assert late[0].json() == {"error": "too many requests; try again in 1 s"}
    time.sleep(int(late[-1].headers["retry-after"]))
    assert client.post("/api/plans?validate=true", json=small()).status_code == 200
    for _ in range(100):
        if client.get("/api/health").status_code == 429:
            break
    else:
        pytest.fail("nobody is told")


def test_so_many_jobs_may_wait(opened: Open) -> None:
    client = opened(waiting_jobs=2, posts_a_minute=6000)
    first = asked(client, endless())
    second = asked(client, endless(seed=1))
    full = client.post("/api/plans", json=endless(seed=2))
    assert full.status_code == 429
    assert int(full.headers["retry-after"]) > 0
    assert "2 jobs are waiting" in full.json()["error"]
    assert asked(client, endless(seed=1)) == second
    assert client.get(second).json()["ahead"] == 0
    for job in (second, first):
        client.delete(job)
    assert ended(client, second)["plan"] is None
    assert ended(client, first)["status"] == "cancelled"
    client.delete(asked(client, endless(seed=2)))


def test_a_service_that_stops_says_so_and_that_alone_is_503(opened: Open) -> None:
    client = opened()
    job = asked(client, endless())
    client.app.service.close()  # type: ignore[attr-defined]
    for path in ("/", "/api/health", job, f"{job}/events"):
        gone = client.get(path)
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "5")
    assert "its jobs go on" in gone.json()["error"]


def test_uploads_that_are_too_large_are_not_read(opened: Open) -> None:
    client = opened(upload_bytes=100_000)
    large = client.post("/api/plans", json={"model": "x" * 100_001})
    assert large.status_code == 413
    assert "100,000 bytes" in large.json()["error"]

    kind = {"content-type": "application/json"}
    pieces = iter([b"x" * 60_000] * 3)  # it is not said how many
    assert client.post("/api/plans", content=pieces, headers=kind).status_code == 413


def test_an_upload_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    app, said = make_app(settings(tmp_path / "jobs", upload_seconds=0.3)), []
    scope = {
        "type": "http", "method": "POST", "path": "/api/plans", "raw_path": b"/api/plans",
        "query_string": b"", "scheme": "http", "client": ("127.0.0.1", 1), "http_version": "1.1",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(5)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(app(scope, receive, send))
    app.service.jobs.close()
    assert said[0]["status"] == 408
    assert b"within 0.3 s" in said[1]["body"]


def test_every_answer_leaves_with_its_headers(client: TestClient) -> None:
    job = asked(client, small(ram="60%"))
    ended(client, job)
    paths = ["/", "/main.js", "/nothing", "/api/health", "/api/nothing", job, f"{job}/events",
             f"{job}/plan.json", f"{job}/nothing", "/api/openapi.json", "/api/docs"]  # fmt: skip
    for path in [*paths, "/%2e%2e/%2e%2e/etc/passwd", "/..%2fapp.py"]:
        told = client.get(path).headers
        assert told["content-security-policy"] == CSP, path
        assert told["x-content-type-options"] == "nosniff"
        assert told["x-frame-options"] == "SAMEORIGIN"
        assert "server" not in told
    assert client.get("/..%2fapp.py").status_code == 404
    assert "default-src 'none'" in CSP
    assert "unsafe" not in CSP


PLACE = re.compile(rf"{re.escape(str(ROOT))}|site-packages|\.py\b|Traceback|/home/|/root/|/tmp/")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model":' + b"[" * 100_000, b'{"ram": 1e999}',
        b'{"model": "../../etc/passwd"}', b'{"model": "own.py:make", "device": "rpi4"}',
        b'{"model": "mlp", "device": "../../x.toml"}',
        b'{"model": "mlp?batch=-1", "device": "rpi4"}',
        b'{"graph": {"format": "poet-graph/9"}}', b'{"graph": {"format": "poet-plan/1"}}',
        b'{"instance": {"name": "/tmp/x", "nodes": []}}', b'{"model": "\\u0000", "device": "rpi4"}',
        b'{"model": "\\ud800", "device": "rpi4"}',
        b'{"instance": {"name": "\\udfff", "nodes": []}}',
    ],
)  # fmt: skip
def test_no_answer_tells_a_path_or_a_trace(client: TestClient, body: bytes) -> None:
    told = client.post("/api/plans", content=body, headers={"content-type": "application/json"})
    assert told.status_code == 422
    assert list(told.json()) == ["error"]
    assert not PLACE.search(told.text.replace("own.py", "")), told.text


HOSTILE = (
    "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "*/ system(\"x\"); /*",
    "a\\\n#include \"/etc/passwd\"", "=HYPERLINK(\"http://evil\")", "\x1b[31m", "${x}`x`", "a'b",
)  # fmt: skip


def test_names_reach_neither_html_nor_tables_unescaped(client: TestClient) -> None:
    question = small(ram="60%")
    for n, node in enumerate(question["instance"]["nodes"]):
        node["name"] = HOSTILE[n % len(HOSTILE)] + str(n)
    question["instance"]["name"] = HOSTILE[0]
    job = asked(client, question)
    assert ended(client, job)["status"] == "done"
    page = client.get(f"{job}/report")
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "<img src=x" not in page.text
    table = client.get(f"{job}/plan.csv").text
    assert "\x1b" not in table
    assert not re.search(r'(^|,)"?=', table, re.MULTILINE)


def test_names_do_not_reach_c(client: TestClient) -> None:
    step = layout_named("mlp?hidden=8", parse_optimizer("sgd"))
    named = [
        msgspec.structs.replace(tensor, name=HOSTILE[n % len(HOSTILE)])
        for n, tensor in enumerate(step.graph.tensors)
    ]
    ops = [
        msgspec.structs.replace(op, name=HOSTILE[n % len(HOSTILE)])
        for n, op in enumerate(step.graph.ops)
    ]
    graph = msgspec.structs.replace(
        step.graph, name=HOSTILE[2], tensors=tuple(named), ops=tuple(ops)
    )
    hostile = msgspec.structs.replace(step, graph=graph)
    question = {"graph": msgspec.to_builtins(hostile), "device": "nrf52840", "work_limit": 1}
    job = asked(client, question)
    assert ended(client, job)["status"] == "done"
    packed = client.get(f"{job}/firmware.zip", params={"target": "host"})
    assert packed.status_code == 200, packed.text
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        for name in archive.namelist():
            if name.endswith((".c", ".h", "Makefile")):
                text = archive.read(name).decode()
                code = re.sub(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', "", text, flags=re.DOTALL)
                assert "system(" not in code
                assert "??/" not in text
                assert '#include "/etc' not in text
