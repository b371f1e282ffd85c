"""A service as people run it: `poet serve`, a process of its own, which leaves none behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_PROC = Path("/proc")


class Served(NamedTuple):
    address: str
    process: "subprocess.Popen[str]"
    folder: Path


_SERVE = (
    "import sys, json, pathlib; from poet.server.serving import serve; "
    "from poet.server.settings import Settings; "
    "serve(Settings(folder=pathlib.Path(sys.argv[1]), port=0, **json.loads(sys.argv[2])), "
    "lambda address: print(address, flush=True))"
)
"""For settings that the command has no options for."""


def start(folder: Path, *options: str, **settings: Any) -> Served:
    """It is there when this returns."""
    command = [sys.executable, "-m", "poet", "serve", "--folder", str(folder), *options]
    if "--port" not in options:
        command += ["--port", "0"]
    if settings:
        command = [sys.executable, "-c", _SERVE, str(folder), json.dumps(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    if not said:
        process.stdout.close()
        raise AssertionError(f"it ended with {process.wait(20)}")
    return Served(said.split()[-1], process, folder)


@contextmanager
def served(folder: Path, *options: str, **settings: Any) -> Iterator[Served]:
    service = start(folder, *options, **settings)
    try:
        yield service
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(20) == 0
    finally:
        service.process.kill()
        service.process.wait()
        assert service.process.stdout is not None
        service.process.stdout.close()
    assert none_left(service)


def workers(service: Served) -> list[int]:
    """The processes that a service has started, and theirs, also when it is gone."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir(_PROC))) if _is_of(pid, service)]


def _is_of(pid: int, service: Served) -> bool:
    try:
        words = (_PROC / f"{pid}/cmdline").read_text()
    except OSError:
        return False
    return f'"parent":{service.process.pid},' in words


def none_left(service: Served, seconds: float = 10.0) -> bool:
    """Whether all of them end within so long."""
    until = time.monotonic() + seconds
    while workers(service):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
