"""Serving: the application on a socket, until SIGTERM or Ctrl-C.

Connections are few and none is kept for nothing: one that says nothing, or says it too slowly, is
closed.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from poet.errors import PoetError
from poet.server.app import make_app
from poet.server.guard import Guard
from poet.server.settings import Settings

_HEAD_SECONDS = 10.0
"""For a request's line and headers."""
_LAST_SECONDS = 5
"""For answers that are under way when the service is to stop."""


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Answer requests. `ready` is told the address, once there is somebody at it."""
    app = make_app(settings)
    listening = _listen(settings)
    config = uvicorn.Config(
        app,
        http=_protocol(settings.connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=_LAST_SECONDS,
        h11_max_incomplete_event_size=16 * 1024,
    )
    server = _Server(config, app, lambda: ready(_address(settings, listening)))
    _log_to_stderr()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    try:
        server.run(sockets=[listening])
    finally:
        listening.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: Guard, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app, self._ready = app, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Heard in the main thread. The signal is not raised again: this is how one stops it."""
        self._app.service.close()
        self.should_exit = True


def _log_to_stderr() -> None:
    """What went wrong, with its trace, is for whoever runs the service."""
    told = logging.StreamHandler()
    told.setFormatter(logging.Formatter("poet serve: %(asctime)s %(message)s"))
    for name in ("poet.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(told)
        logger.setLevel(logging.WARNING)
        logger.propagate = False


def _listen(settings: Settings) -> socket.socket:
    host = settings.host.strip("[]")
    try:
        family = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, settings.port))
    except OSError as error:
        raise PoetError(
            f"cannot listen at {settings.host} port {settings.port}: {error.strerror or error}"
        ) from None
    listening.set_inheritable(False)
    return listening


def _address(settings: Settings, listening: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host.strip("[]") else settings.host
    return f"http://{host.replace('[[', '[').replace(']]', ']')}:{listening.getsockname()[1]}"


def _protocol(most: int) -> type[asyncio.Protocol]:
    """uvicorn's own, which has no limit on connections but one that answers 503, and none on the
    time that a request's head may take."""

    class Impatient(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait_for_head(self) -> None:
            if self.conn.their_state is not h11.IDLE:
                self._stop_waiting()
            elif self._timer is None:
                self._timer = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Impatient
