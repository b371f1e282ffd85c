"""Asking: requests to a service, for the client. The standard library is enough.

A service that is busy says when to come back, and one that is being restarted loses nothing: both
are waited for. Everything that is asked may be asked twice.
"""

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from poet.errors import PoetError
from poet.server.answers import Refusal
from poet.values.files import MAX_FILE_BYTES
from poet.values.graph import printable

_PATIENCE_SECONDS = 60.0
"""How long a service that does not answer is asked again."""
_AGAIN_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_SILENT_SECONDS = 45.0
"""Events come with a beat every 15 s: what says nothing for so long is gone."""
_GONE_FOR_NOW = (502, 503, 504)
"""It is stopping, or a proxy in front of it finds it gone."""
_TOO_MANY = 429
Waiting = Callable[[str], None]


class Event(NamedTuple):
    kind: str
    data: bytes


class Refused(PoetError):
    """An answer that is an error. `status` is HTTP's; `seconds` are until one may come back."""

    def __init__(self, message: str, status: int, seconds: float) -> None:
        super().__init__(message)
        self.status, self.seconds = status, seconds

    @property
    def is_for_now(self) -> bool:
        return self.status == _TOO_MANY


class _NoAnswer(Exception):
    """For now."""

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.seconds = seconds


class Service:
    """One that is asked, by its address, with a token or without."""

    def __init__(self, address: str, token: str | None) -> None:
        self.address = address.rstrip("/")
        try:
            place = urlsplit(self.address)
            port = place.port
        except ValueError as error:
            raise PoetError(f"{address!r} is no address: {error}") from None
        if place.scheme not in ("http", "https") or not place.hostname or place.query:
            raise PoetError(
                f'{address!r} is no address of a service; one looks like "http://127.0.0.1:8000"'
            )
        if place.username is not None:
            raise PoetError("an address has no name or password in it; give a token=")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise PoetError("a token is of printable ASCII characters")
        self._kind = (
            http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        )
        self._host, self._port, self._path = place.hostname, port, place.path
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        say: Waiting = lambda text: None,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> bytes:
        """What it answers. While it does not, or says that it is busy, `say` is told."""
        until = time.monotonic() + patience_seconds
        while True:
            try:
                with closing(self._connection()) as connection:
                    return _content(self._answer(connection, method, path, body))
            except _NoAnswer as none:
                if time.monotonic() + none.seconds > until:
                    raise PoetError(f"{self.address}: {none}") from None
                say(f"{none}; trying again")
                time.sleep(none.seconds)
            except Refused as refused:
                if not (refused.is_for_now and patience_seconds):
                    raise
                say(f"the service is busy; asking again in {refused.seconds:.0f} s")
                time.sleep(refused.seconds)
                until = time.monotonic() + patience_seconds

    def events(self, path: str, say: Waiting) -> Iterator[Event]:
        """Server-sent events, taken up again where they broke off, until one that is `end`."""
        last, until = "", time.monotonic() + _PATIENCE_SECONDS
        while True:
            why, pause = "the connection broke off", _AGAIN_SECONDS
            try:
                with closing(self._connection()) as connection:
                    answer = self._answer(connection, "GET", path, None, last)
                    try:
                        for event, number in _events(answer):
                            last = number or last
                            yield event
                            if event.kind == "end":
                                return
                    finally:
                        until = time.monotonic() + _PATIENCE_SECONDS
            except _NoAnswer as none:
                why, pause = str(none), none.seconds
            except Refused as refused:
                if not refused.is_for_now:
                    raise
                why, pause = "the service is busy", refused.seconds
                until = time.monotonic() + pause + _PATIENCE_SECONDS
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() + pause > until:
                raise PoetError(f"{self.address}: {why}")
            say(f"{why}; trying again")
            time.sleep(pause)

    def _connection(self) -> http.client.HTTPConnection:
        return self._kind(self._host, self._port, timeout=_SILENT_SECONDS)

    def _answer(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        last_event: str = "",
    ) -> http.client.HTTPResponse:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if last_event:
            headers["Last-Event-ID"] = last_event
        try:
            connection.request(method, self._path + path, body, headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            say = f"the service does not answer ({getattr(error, 'strerror', None) or error})"
            raise _NoAnswer(say, _AGAIN_SECONDS) from None
        if answer.status in _GONE_FOR_NOW:
            raise _NoAnswer("the service is not there now", _seconds(answer))
        if not 200 <= answer.status < 300:
            usual = f"{self.address} answers {answer.status} {printable(answer.reason)}"
            text = _error_in(_content(answer)) or usual
            raise Refused(text, answer.status, _seconds(answer))
        return answer


def _seconds(answer: http.client.HTTPResponse) -> float:
    """When to come back."""
    told = answer.headers.get("Retry-After", "")
    seconds = float(told) if told.isdigit() else _AGAIN_SECONDS
    return min(max(seconds, _AGAIN_SECONDS), _LONGEST_PAUSE_SECONDS)


def _content(answer: http.client.HTTPResponse) -> bytes:
    try:
        content = answer.read(MAX_FILE_BYTES + 1)
    except (OSError, http.client.HTTPException):
        raise _NoAnswer("the connection broke off", _AGAIN_SECONDS) from None
    if len(content) > MAX_FILE_BYTES:
        raise PoetError(f"the answer is larger than {MAX_FILE_BYTES:,} bytes, the most POET reads")
    return content


def _error_in(content: bytes) -> str:
    try:
        return printable(msgspec.json.decode(content, type=Refusal).error)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[Event, str]]:
    """The events of a stream, each with its number."""
    fields: dict[str, str] = {}
    while line := answer.readline():
        name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif line.strip():
            continue  # a beat
        elif fields:
            if "data" in fields:
                event = Event(fields.get("event", "message"), fields["data"].encode())
                yield event, fields.get("id", "")
            fields = {}
