"""Worker: a process for one piece of work, which nobody needs to trust.

It has a memory limit, the lowest claim to the processor, and dies with the service, however that
ends. What it has to do is in a file that it is handed open; what it tells are lines on stdout. A
job tells `messages`; a result made of a plan is a line of JSON, `ok` or `error`, and then bytes.
"""

import ctypes
import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO

import msgspec

from poet.errors import PoetError
from poet.planning import breaking_off
from poet.server.messages import Ended, Message, Said

INTERNAL = "the planner failed: this is a fault of POET, which its log tells more about"
_NICE = 10
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is started for; its input is in a file of its own."""

    do: str
    parent: int
    memory_bytes: int
    threads: int = 1
    words: dict[str, str] = {}


def main(task_text: str, handle: int) -> None:
    """A worker, from its start to its end."""
    task = msgspec.json.decode(task_text, type=Task)
    _bind(task)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    breaking_off.hear()
    with open(handle, "rb") as file:
        given = file.read()
    try:
        if task.do == "result":
            _make_result(task, given, answers)
        else:
            _do_job(task, given, answers)
    except BaseException:
        traceback.print_exc()
        answers.flush()
        os._exit(1)
    answers.flush()
    os._exit(0)  # what libraries do at exit is not waited for


def _bind(task: Task) -> None:
    """To the limits of its work, and to the life of the service."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (task.memory_bytes, task.memory_bytes))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != task.parent:
        os._exit(1)


def _do_job(task: Task, given: bytes, answers: IO[bytes]) -> None:
    lock = threading.Lock()

    def tell(message: Message) -> None:
        line = msgspec.json.encode(message) + b"\n"
        with lock:
            answers.write(line)
            answers.flush()

    try:
        from poet.server.kinds import KINDS
        from poet.server.work import perform

        logging.getLogger("poet").addHandler(_Telling(tell))
        logging.getLogger("poet").setLevel(logging.INFO)
        ended = perform(
            msgspec.json.decode(given, type=KINDS[task.do].question), task.threads, tell
        )
    except KeyboardInterrupt:
        ended = Ended(status="cancelled")
    except Exception:
        traceback.print_exc()
        ended = Ended(status="failed", error=INTERNAL)
    breaking_off.be_deaf()
    tell(ended)


def _make_result(task: Task, given: bytes, answers: IO[bytes]) -> None:
    from poet.server.results import make

    try:
        made = make(task.words["kind"], task.words["name"], given, task.words)
    except PoetError as error:
        answers.write(msgspec.json.encode({"error": str(error)}) + b"\n")
        return
    answers.write(b'{"ok":true}\n')
    answers.write(made)


class _Telling(logging.Handler):
    """Tells what the library logs."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        super().__init__(logging.INFO)
        self._told = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._told(Said(record.getMessage()))
