"""Workers: processes that each answer one question at a time. This is the worker's side.

What is asked and answered are values: a message is a length and so much MessagePack, decoded by the
types that the work's function declares, so that nothing in it can run. What all questions share is
sent once, when a worker starts.

A worker whose owner is gone, however that came about, ends itself: its requests come through a pipe
that is then closed. Ctrl-C is for its owner, who may pass it on: the question at hand is broken off
then, and its function says what it has.
"""

import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar, get_type_hints

import msgspec

from poet.errors import Infeasible, PoetError
from poet.planning.breaking_off import break_off

Given = TypeVar("Given")
Asked = TypeVar("Asked")
Found = TypeVar("Found")
Tell = Callable[[Any], None]
"""For what a worker says on the way."""
Function = Callable[[Given, Asked, list[Found], Tell], Found]
"""Of what all questions share, a question, the answers that it needs, and `tell`: an answer."""
_LENGTH_BYTES = 8


class Request(msgspec.Struct, frozen=True):
    asked: msgspec.Raw
    before: msgspec.Raw
    """The answers that it needs."""


class Begun(msgspec.Struct, frozen=True, tag=True):
    """From now on a question takes time: a worker that starts is no part of it."""


class Told(msgspec.Struct, frozen=True, tag=True):
    """On the way."""

    value: Any


class Answered(msgspec.Struct, frozen=True, tag=True):
    value: msgspec.Raw


class Refused(msgspec.Struct, frozen=True, tag=True):
    """An error for people."""

    message: str
    proven: bool | None = None
    """Of `Infeasible`; None of any other."""

    @property
    def error(self) -> PoetError:
        if self.proven is None:
            return PoetError(self.message)
        return Infeasible(self.message, self.proven)


class Broken(msgspec.Struct, frozen=True, tag=True):
    """A bug."""

    trace: str


Reply = Begun | Told | Answered | Refused | Broken


class Work:
    """A function that workers run, and the types of its messages, which its annotations declare.

    It must be found by name in its module.
    """

    def __init__(self, function: Function[Any, Any, Any]) -> None:
        self.function = function
        self.name = f"{function.__module__}:{function.__qualname__}"
        given, asked, before, _, found = get_type_hints(function).values()
        self.given, self.asked = msgspec.msgpack.Decoder(given), msgspec.msgpack.Decoder(asked)
        self.before, self.found = msgspec.msgpack.Decoder(before), msgspec.msgpack.Decoder(found)


def serve(name: str) -> None:
    """What a worker does: requests from stdin, answers to stdout, until stdin is closed."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    asking = _Asking()
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, asking.heard)
    with suppress(OSError):  # where memory ends, rather a worker is killed than its owner
        Path("/proc/self/oom_score_adj").write_text("1000")
    module, _, function = name.partition(":")
    work = Work(getattr(importlib.import_module(module), function))
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=(sys.stdin.buffer, requests), daemon=True).start()
    given = work.given.decode(requests.get())
    lock = threading.Lock()

    def reply(message: Reply) -> None:
        with lock:  # searches tell from any thread
            send(replies, msgspec.msgpack.encode(message))

    while True:
        request = msgspec.msgpack.decode(requests.get(), type=Request)
        asked, before = work.asked.decode(request.asked), work.before.decode(request.before)
        reply(Begun())
        try:
            with asking:
                found = work.function(given, asked, before, lambda value: reply(Told(value)))
            reply(Answered(msgspec.Raw(msgspec.msgpack.encode(found))))
        except Infeasible as error:
            reply(Refused(str(error), error.proven))
        except PoetError as error:
            reply(Refused(str(error)))
        except KeyboardInterrupt:
            reply(Refused("interrupted"))
        except Exception:
            reply(Broken(traceback.format_exc()))


class _Asking:
    """While a question is at hand, SIGINT breaks it off."""

    def __init__(self) -> None:
        self.at_hand = False

    def __enter__(self) -> None:
        self.at_hand = True

    def __exit__(self, *_: object) -> None:
        self.at_hand = False

    def heard(self, number: int, frame: FrameType | None) -> None:
        if self.at_hand:
            break_off(number, frame)


def send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_LENGTH_BYTES, "little") + message)
    stream.flush()


def messages(data: bytearray) -> list[bytes]:
    """The whole messages among bytes that have come so far, which they are taken from."""
    found = []
    while len(data) >= _LENGTH_BYTES:
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        if len(data) < end:
            break
        found.append(bytes(data[_LENGTH_BYTES:end]))
        del data[:end]
    return found


def _hear(stream: IO[bytes], requests: "queue.SimpleQueue[bytes]") -> None:
    come = bytearray()
    while data := os.read(stream.fileno(), 1 << 16):
        come += data
        for message in messages(come):
            requests.put(message)
    os._exit(0)  # nobody is there, whatever is being answered
