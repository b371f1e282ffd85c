"""The service: what all requests share, jobs, the thread that runs them, and who waits for news."""

import asyncio
import fcntl
import os
import subprocess
from pathlib import Path

from poet.errors import PoetError
from poet.server import processes
from poet.server.jobs import Jobs
from poet.server.runner import Runner
from poet.server.settings import Settings

_DATABASE, _LOCK = "jobs.sqlite3", "lock"


class Service:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = _locked(settings.folder)
        self.jobs = Jobs(settings.folder / _DATABASE, settings.store_bytes)
        self.runner = Runner(self.jobs, settings, self._changed)
        self.is_closing = False
        self.streams = 0
        self.making = asyncio.Semaphore(settings.workers)
        """Of results that are made at once."""
        self.makers: set[subprocess.Popen[bytes]] = set()
        """The processes that make them now."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.jobs.recover()
        self.runner.start()

    def stop(self) -> None:
        self.runner.stop()
        self.jobs.close()
        os.close(self._lock)

    def news(self, id: str) -> asyncio.Event:
        """Set when there is something new of a job; whoever waits takes it before looking."""
        return self._news.setdefault(id, asyncio.Event())

    def _changed(self, id: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.ring, id)

    def ring(self, id: str) -> None:
        waited = self._news.pop(id, None)
        if waited is not None:
            waited.set()

    def close(self) -> None:
        """No more requests: those that wait for news or for a result are let go."""
        self.is_closing = True
        for id in list(self._news):
            self.ring(id)
        for maker in list(self.makers):
            processes.kill(maker)


def _locked(folder: Path) -> int:
    """A folder that is this user's alone, and this service's."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PoetError(f"cannot keep jobs in {folder}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise PoetError(
            f"another poet serve keeps its jobs in {folder}: give this one another folder="
        ) from None
    return handle
