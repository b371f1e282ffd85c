"""Helpers: processes that solve programs, and that can be ended at any moment.

A helper answers one request after the other. Whoever asks looks up every few hundredths of a second
whether the answer is still wanted, and kills the helper where it is not. A helper whose owner is
gone, however that came about, ends itself: its requests come through a pipe that is then closed.

A message is a length, so much JSON, and the bytes of the arrays that it names: nothing in it can
run. Deadlines travel as moments of the system's monotonic clock, which all processes share.
"""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from poet.planner.backends import Answer, Limits

Arrays = Mapping[str, np.ndarray[Any, Any]]
LOOK_UP_SECONDS = 0.03
_START = (
    "import sys; sys.path[:] = {path!r}; from poet.planner.backends.helper import serve; serve()"
)
_STOPPED = Answer(status="stopped")


class Helper:
    """One process. `is_alive` until it was killed, or died; `has_answered` at least once."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C in a terminal is for whoever asked.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START.format(path=sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self.is_alive, self.has_answered = True, False

    def ask(self, what: str, limits: Limits, arrays: Arrays) -> Answer:
        """The answer; `stopped` once `limits.stop` says so, `failed` where the process died."""
        if not self.is_alive:
            return _STOPPED
        request = {
            "what": what,
            "until": time.monotonic() + limits.seconds,
            "nodes": limits.nodes,
            "seed": limits.seed,
            "cutoff": limits.cutoff,
            "relative_gap": limits.relative_gap,
            "log_file": limits.log_file,
        }
        try:
            _send(self._requests, request, arrays)
            while not _is_readable(self._answers):
                if limits.stop():
                    self.end()
                    return _STOPPED
            fields, found = _receive(self._answers)
        except (OSError, EOFError):
            self.end()
            return Answer(status="failed")
        except BaseException:  # Ctrl-C: what it says next would answer another question
            self.end()
            raise
        self.has_answered = True
        told: dict[str, Any] = {**fields, **found}
        return Answer(**told)

    def end(self) -> None:
        self.is_alive = False
        self._process.kill()
        for pipe in (self._requests, self._answers):
            try:
                pipe.close()
            except OSError:  # a request that nobody reads any more
                continue
        self._process.wait()


class Helpers:
    """Helpers of several threads: started when asked for, used again, and ended together."""

    def __init__(self) -> None:
        self._all: list[Helper] = []
        self._idle: list[Helper] = []
        self.can_start = bool(sys.executable)
        """Python itself may be part of another program, and no process answers as it does."""

    def take(self) -> Helper | None:
        """None where none can be started."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        if not self.can_start:
            return None
        try:
            helper = Helper()
        except OSError:
            return None
        self._all.append(helper)
        return helper

    def give_back(self, helper: Helper) -> None:
        if helper.is_alive:
            self._idle.append(helper)

    def close(self) -> None:
        for helper in self._all:
            helper.end()
        self._all.clear()
        self._idle.clear()


def serve() -> None:
    """What a helper does: requests from stdin, answers to stdout, until stdin is closed."""
    from poet.planner.backends.highs_here import Program, Session, solve_integer, solve_linear

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    requests: queue.SimpleQueue[tuple[dict[str, Any], Arrays]] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=(sys.stdin.buffer, requests), daemon=True).start()
    session: Session | None = None
    while True:
        request, arrays = requests.get()
        what, seconds = request.pop("what"), request.pop("until") - time.monotonic()
        limits = Limits(seconds=seconds, **request)
        if what == "linear":
            answer = solve_linear(Program(**arrays), limits)
        elif what == "integer":
            answer = solve_integer(Program(**arrays), limits)
        elif what == "session":
            session = Session(Program(**arrays), limits)
            answer = Answer(status="optimal")
        else:
            assert session is not None
            answer = session.solve(arrays["low"], arrays["high"], seconds)
        told = vars(answer)
        found = {name: each for name, each in told.items() if isinstance(each, np.ndarray)}
        _send(answers, {name: each for name, each in told.items() if name not in found}, found)


def _hear(stream: IO[bytes], requests: "queue.SimpleQueue[tuple[dict[str, Any], Arrays]]") -> None:
    try:
        while True:
            requests.put(_receive(stream))
    except BaseException:
        os._exit(0)  # nobody is there, whatever is being solved


def _send(stream: IO[bytes], fields: Mapping[str, Any], arrays: Arrays) -> None:
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    kinds = [(name, array.dtype.str, array.nbytes) for name, array in plain.items()]
    head = json.dumps([fields, kinds]).encode()
    stream.write(len(head).to_bytes(8, "little") + head)
    for array in plain.values():
        stream.write(array.data)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[dict[str, Any], Arrays]:
    size = int.from_bytes(_exactly(stream, 8), "little")
    fields, kinds = json.loads(_exactly(stream, size))
    return fields, {
        name: np.frombuffer(_exactly(stream, nbytes), dtype=kind) for name, kind, nbytes in kinds
    }


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _is_readable(stream: IO[bytes]) -> bool:
    """Whether something comes, or the other side is gone, within a moment."""
    look = select.poll()
    look.register(stream, select.POLLIN | select.POLLHUP)
    return bool(look.poll(1000 * LOOK_UP_SECONDS))
