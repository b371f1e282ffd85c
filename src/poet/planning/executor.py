"""The executor of many plans: questions that worker processes of this machine answer.

A question is asked when the answers that it needs are there, in the order in which questions are
given, as many at once as there are workers. A worker that dies, or is killed because it goes beyond
its time or memory, costs its question alone, which is told; another worker takes its place. Nothing
runs any more when the executor is left, whichever way.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from poet.errors import PoetError
from poet.planning.turns import Outcome, Task, Turns
from poet.planning.workers import (
    Answered,
    Begun,
    Function,
    Refused,
    Reply,
    Request,
    Told,
    Work,
    messages,
    send,
)
from poet.values.quantities import bytes_text

_START = (
    "import sys; sys.path[:] = {path!r}; from poet.planning.workers import serve; serve({name!r})"
)
_LOOK_SECONDS = 0.1
"""Between two looks at what workers take."""
_PROC = Path("/proc")


class Limits(NamedTuple):
    """For the executor: its workers, and what each of them may take for one question."""

    workers: int = 1
    seconds: float | None = None
    ram_bytes: int | None = None


ONE_BY_ONE = Limits()


class Executor:
    """Workers for one function, which share what is `given`. A context manager."""

    def __init__(
        self, function: Function[Any, Any, Any], given: Any, limits: Limits = ONE_BY_ONE
    ) -> None:
        if limits.ram_bytes is not None and not _PROC.joinpath("self/statm").exists():
            raise PoetError("a limit on the memory of workers needs /proc, which is not here")
        self._work, self._limits = Work(function), limits
        self._given = msgspec.msgpack.encode(given)
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.end()

    def interrupt(self, key: Any) -> None:
        """Ctrl-C for the worker that has a question, from any thread; it answers what it has."""
        for worker in list(self._workers):
            if worker.has(key):
                worker.interrupt()

    def end(self) -> None:
        """End all workers. What they were asked is given up."""
        while self._workers:
            self._workers.pop().end()

    def run(
        self,
        tasks: Iterable[Task],
        known: Mapping[Any, Any] = {},
        *,
        began: Callable[[Task], None] = lambda task: None,
        heard: Callable[[Task, Any], None] = lambda task, value: None,
    ) -> Iterator[Outcome]:
        """What becomes of each, as it comes. `known` are answers to others; a question without an
        answer is left out of what others are handed.

        `began` is told of each question that is asked, `heard` of what workers say on the way.
        """
        turns = Turns(tasks, known)
        while True:
            while sum(worker.is_busy for worker in self._workers) < self._limits.workers:
                turn = turns.next()
                if turn is None:
                    break
                began(turn[0])
                self._idle().ask(*turn)
            busy = [worker for worker in self._workers if worker.is_busy]
            if not busy:
                return
            for outcome in self._look(busy, heard):
                turns.ended(outcome)
                yield outcome

    def _idle(self) -> "_Worker":
        for worker in self._workers:
            if not worker.is_busy:
                return worker
        self._workers.append(_Worker(self._work, self._given))
        return self._workers[-1]

    def _look(self, busy: "list[_Worker]", heard: Callable[[Task, Any], None]) -> "list[Outcome]":
        limited = self._limits.seconds is not None or self._limits.ram_bytes is not None
        with selectors.DefaultSelector() as pipes:
            for worker in busy:
                pipes.register(worker, selectors.EVENT_READ)
            ready = pipes.select(_LOOK_SECONDS if limited else None)
        spoken = [key.fileobj for key, _ in ready]
        found = []
        for worker in busy:
            outcome = worker.beyond(self._limits)
            if outcome is None and worker in spoken:
                outcome = worker.hear(heard)
            if outcome is None:
                continue
            if outcome.lost:
                self._workers.remove(worker)
                worker.end()
            found.append(outcome)
        return found


class _Worker:
    """One process, seen by its owner."""

    def __init__(self, work: Work, given: bytes) -> None:
        self._work, self._come = work, bytearray()
        self._task: Task | None = None
        self._began_at: float | None = None
        try:  # in a session of its own: Ctrl-C in a terminal is for whoever asked
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START.format(path=sys.path, name=work.name)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise PoetError(f"no worker process can be started: {error.strerror}") from None
        self._send(given)

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def has(self, key: Any) -> bool:
        return self._task is not None and self._task.key == key

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, task: Task, before: list[Any]) -> None:
        self._task, self._began_at = task, None
        asked, known = map(msgspec.msgpack.encode, (task.asked, before))
        self._send(msgspec.msgpack.encode(Request(msgspec.Raw(asked), msgspec.Raw(known))))

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died: whoever listens to it hears that
            send(self._process.stdin, message)

    def hear(self, heard: Callable[[Task, Any], None]) -> Outcome | None:
        """What it has to say, if that is the end of its question."""
        assert self._task is not None
        data = os.read(self.fileno(), 1 << 20)
        if not data:
            return self._lost(_death(self._process.wait()))
        self._come += data
        for message in messages(self._come):
            task = self._task
            reply = msgspec.msgpack.decode(message, type=Reply)
            if isinstance(reply, Begun):
                self._began_at = time.monotonic()
                continue
            if isinstance(reply, Told):
                heard(task, reply.value)
                continue
            self._task = None
            if isinstance(reply, Answered):
                return Outcome(task.key, self._work.found.decode(reply.value))
            if isinstance(reply, Refused):
                return Outcome(task.key, error=reply.error)
            return Outcome(task.key, trace=f"{task.what or task.key}\n{reply.trace}")
        return None

    def beyond(self, limits: Limits) -> Outcome | None:
        """The end of a question that takes more than it may."""
        seconds = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        if limits.seconds is not None and seconds > limits.seconds:
            return self._lost(f"it took more than {limits.seconds:g} s, its limit")
        if limits.ram_bytes is not None:
            taken = sum(map(_resident_bytes, [self._process.pid, *_offspring(self._process.pid)]))
            if taken > limits.ram_bytes:
                limit = bytes_text(limits.ram_bytes)
                return self._lost(f"it took {bytes_text(taken)} of memory; its limit is {limit}")
        return None

    def _lost(self, why: str) -> Outcome:
        assert self._task is not None
        return Outcome(self._task.key, lost=why)

    def end(self) -> None:
        """Kill it and the processes that it has started."""
        number = self._process.pid
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)  # so that it starts no more
            for each in _offspring(number):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # a request that nobody reads any more
                pipe.close()
        self._process.wait()


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed: the machine's memory was at its end, or somebody did it"
    if code < 0:
        return f"its process died of {signal.Signals(-code).name}"
    return f"its process ended by itself, with code {code}"


def _offspring(number: int) -> list[int]:
    """The processes that one has started, and those that they have, where /proc tells."""
    found: list[int] = []
    for file in _PROC.glob(f"{number}/task/*/children"):
        with suppress(OSError):  # a thread that has just ended
            for child in map(int, file.read_text().split()):
                found += [child, *_offspring(child)]
    return found


def _resident_bytes(number: int) -> int:
    try:
        pages = int((_PROC / f"{number}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
