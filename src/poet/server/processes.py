"""Processes: how a worker is started, watched and ended."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from poet.server.worker import Task

_START = (
    "import sys; sys.path[:] = {path!r}; from poet.server.worker import main; "
    "main(sys.argv[1], int(sys.argv[2]))"
)
_SECRET = "POET_TOKEN"


def command(task: Task, handle: int) -> list[str]:
    start = _START.format(path=[str(Path(each).absolute()) for each in sys.path])
    return [sys.executable, "-I", "-c", start, msgspec.json.encode(task).decode(), str(handle)]


def environment() -> dict[str, str]:
    """A worker's: libraries count threads of their own, and the token is none of its business."""
    kept = {name: value for name, value in os.environ.items() if name != _SECRET}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def start(task: Task, given: bytes) -> subprocess.Popen[bytes]:
    """A worker on its task. It is in a session of its own: Ctrl-C in a terminal is not for it."""
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        return subprocess.Popen(
            command(task, file.fileno()), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            pass_fds=[file.fileno()], start_new_session=True, env=environment(),
        )  # fmt: skip


def kill(process: subprocess.Popen[bytes]) -> None:
    """With what it started, where the system tells; elsewhere that ends by itself."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)  # so that it starts no more
    for each in _family(process.pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    process.kill()


def held_bytes(process: int) -> int:
    """The memory that a process and its descendants hold; 0 where the system does not tell."""
    found = 0
    for each in _family(process):
        with suppress(OSError, IndexError):  # it has just ended
            found += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return found * os.sysconf("SC_PAGE_SIZE")


def _family(process: int) -> list[int]:
    """A process and its descendants."""
    found, waiting = [], [process]
    while waiting:
        found.append(waiting.pop())
        with suppress(OSError):
            for task in Path(f"/proc/{found[-1]}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return found
