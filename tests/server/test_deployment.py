"""docs/service.md on a server: its unit is read by systemd, its proxy stands before a service."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import msgspec
import pytest
from benchmarks.serving import served

import poet
from tests.conftest import INSTANCES, ROOT
from tests.server.conftest import small

PAGE = (ROOT / "docs/service.md").read_text()
TOKEN = "a token of some length"
FILE = str(INSTANCES / "linear-m4.json")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def tool(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed; the tests of docs/service.md need it")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    poet_command = Path(sys.executable).parent / "poet"
    unit = tmp_path / "poet.service"
    unit.write_text(block("ini").replace("/opt/poet/.venv/bin/poet", str(poet_command)))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, check=False
    )
    about = [line for line in done.stderr.splitlines() if "poet.service" in line]
    assert (done.returncode, about) == (0, [])


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[str]:
    """The address of nginx, as the page configures it, before a service."""
    nginx = tool("nginx")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key, pem = tmp_path / "poet.key", tmp_path / "poet.pem"
    subprocess.run(
        [tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", str(key), "-out", str(pem)],
        check=True, capture_output=True,
    )  # fmt: skip
    options = ("--token", TOKEN, "--name", "poet.example", "--workers", "1")
    with served(tmp_path / "jobs", *options) as service:
        server = block("nginx")
        for old, new in (
            ("http://127.0.0.1:8000", service.address),
            ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
            ("/etc/ssl/poet.pem", str(pem)),
            ("/etc/ssl/poet.key", str(key)),
        ):
            assert old in server
            server = server.replace(old, new)
        config = tmp_path / "nginx.conf"
        places = "".join(
            f"{name}_temp_path {tmp_path};"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config.write_text(
            f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/errors;\n"
            "events {}\n"
            f"http {{ access_log off; {places}\n{server} }}\n"
        )
        with subprocess.Popen(
            [nginx, "-c", str(config), "-e", f"{tmp_path}/errors"], stderr=subprocess.PIPE
        ) as proxy:
            try:
                _wait_for(port, proxy)
                yield f"https://localhost:{port}"
            finally:
                proxy.terminate()


def _wait_for(port: int, proxy: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until and proxy.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("nginx does not answer")


def test_a_proxy_passes_on_tokens_events_and_clients(
    proxied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "poet.pem"))
    with pytest.raises(poet.PoetError, match="token"):
        poet.connect(proxied)
    client = poet.connect(proxied, token=TOKEN)
    assert client.plan(FILE, ram="60%", work_limit=1).schedule
    large = {"instance": msgspec.json.decode((INSTANCES / "bert-m4.json").read_bytes())}
    question = msgspec.json.encode(small(**large, ram="55%", gap=0, work_limit=None, time_limit=30))
    told = client._service.ask("POST", "/api/plans", question)
    job = f"/api/plans/{msgspec.json.decode(told)['id']}"
    events = client._service.events(f"{job}/events", print)
    assert next(each for each in events if each.kind == "progress")  # while it is searching
    assert msgspec.json.decode(client._service.ask("GET", job))["status"] == "running"
    client._service.ask("DELETE", job)

    place = proxied.removeprefix("https://").partition(":")
    secure = ssl.create_default_context(cafile=str(tmp_path / "poet.pem"))
    entered = HTTPSConnection("localhost", int(place[2]), context=secure)
    said = msgspec.json.encode({"token": TOKEN})
    headers = {"Content-Type": "application/json", "Host": "poet.example"}
    entered.request("POST", "/api/session", said, {**headers, "Origin": "https://poet.example"})
    answer = entered.getresponse()
    assert answer.status == 204
    assert "Secure" in (answer.getheader("set-cookie") or "")
    entered.close()
    entered.request("GET", "/", headers={"Host": "other.example"})
    assert entered.getresponse().status == 403
    entered.close()
