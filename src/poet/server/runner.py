"""The runner: one thread that begins queued jobs in workers, hears them and ends them.

Whatever happens to a worker costs its job alone. One that goes on after it was asked to stop, holds
too much memory or takes too long is killed; one that dies by itself is begun again once. What could
not be written, on a full disk, is kept and tried again.
"""

import logging
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from poet.server import processes
from poet.server.jobs import MOST_STARTS, Job, Jobs, NoRoom
from poet.server.messages import Ended, Message, Progress, Said, message
from poet.server.settings import Settings
from poet.server.worker import Task
from poet.values.quantities import short_bytes_text

_LOOK_SECONDS = 0.25
_AGAIN_SECONDS = 5.0
"""Until what could not be written is tried again."""
_CHUNK = 1 << 20
_log = logging.getLogger(__name__)


class _Worker:
    """A process, its job, and what was heard of it."""

    def __init__(self, job: Job, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.job, self.process = job, process
        self.handle = process.stdout.fileno()
        self.started = time.monotonic()
        self.asked_at: float | None = None
        self.why: str | None = None
        """Which limit of the service ended it, in words."""
        self.ended: Ended | None = None
        self._heard = bytearray()

    def hear(self) -> tuple[list[Message], bool]:
        """What was told since, and whether there may be more."""
        chunk = os.read(self.handle, _CHUNK)
        self._heard += chunk
        *lines, rest = self._heard.split(b"\n")
        self._heard = rest
        return [message(bytes(line)) for line in lines], bool(chunk)

    def ask_to_stop(self) -> None:
        if self.asked_at is None:
            self.asked_at = time.monotonic()
            self.process.send_signal(signal.SIGINT)


class Runner(threading.Thread):
    def __init__(self, jobs: Jobs, settings: Settings, changed: Callable[[str], None]) -> None:
        super().__init__(name="poet runner", daemon=True)
        self._jobs, self._settings, self._changed = jobs, settings, changed
        self._workers: dict[int, _Worker] = {}
        self._unwritten: list[tuple[Job, Callable[[], None]]] = []
        """What became of jobs, and how it is written."""
        self._write_at = 0.0
        self._cancelled: set[int] = set()
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._heard, self._called = os.pipe()
        os.set_blocking(self._called, False)
        self._selector.register(self._heard, selectors.EVENT_READ)

    def wake(self) -> None:
        """Something was asked, or is to be cancelled."""
        try:
            os.write(self._called, b"!")
        except BlockingIOError:
            return  # it was called often enough

    def cancel(self, job: Job) -> None:
        self._cancelled.add(job.number)
        self.wake()

    def stop(self) -> None:
        """End all workers; their jobs are begun again when the service is."""
        self._stopping = True
        self.wake()
        self.join()

    def run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except NoRoom as error:
                _log.error("cannot write: %s", error)
                time.sleep(_LOOK_SECONDS)
            except Exception:  # jobs go on, whatever this was
                _log.exception("the runner stumbled")
                time.sleep(_LOOK_SECONDS)
        for worker in self._workers.values():
            self._end(worker)
            self._put_back(worker.job, counts=False)
        self._write_ends(last=True)

    def _turn(self) -> None:
        self._begin()
        for key, _ in self._selector.select(_LOOK_SECONDS):
            if key.data is None:
                os.read(self._heard, _CHUNK)
            else:
                self._hear(key.data)
        self._cancel()
        for worker in list(self._workers.values()):
            self._limit(worker)
        self._write_ends()

    def _begin(self) -> None:
        while len(self._workers) < self._settings.workers and not self._unwritten:
            job = self._jobs.begin_next()
            if job is None:
                return
            task = Task(
                do=job.kind,
                parent=os.getpid(),
                memory_bytes=self._settings.memory_bytes,
                threads=self._settings.threads,
            )
            try:
                worker = _Worker(job, processes.start(task, self._jobs.question(job)))
            except OSError as error:  # no memory for a process, no room for a file
                _log.error("cannot start a worker: %s", error)
                self._put_back(job, counts=False)
                return
            self._workers[job.number] = worker
            self._selector.register(worker.handle, selectors.EVENT_READ, worker)
            self._changed(job.id)

    def _hear(self, worker: _Worker) -> None:
        told, more = worker.hear()
        events, figures = [], None
        for each in told:
            match each:
                case Progress(figures=latest):
                    figures = bytes(latest)
                    events.append(("progress", figures))
                case Said(text=text):
                    events.append(("log", msgspec.json.encode(text)))
                case Ended():
                    worker.ended = each
        if events:
            try:
                self._jobs.note(worker.job, events, figures)
                self._changed(worker.job.id)
            except NoRoom as error:  # they are on the way to something, not the thing itself
                _log.error("cannot keep the events of a job: %s", error)
        if worker.ended is not None or not more:
            self._reap(worker)

    def _reap(self, worker: _Worker) -> None:
        """It has told its end, or closed it: whatever it does now is of no use."""
        self._selector.unregister(worker.handle)
        code = self._end(worker)
        del self._workers[worker.job.number]
        was_asked = worker.job.number in self._cancelled
        self._cancelled.discard(worker.job.number)
        ended = worker.ended
        if ended is not None and ended.status == "cancelled":
            ended = msgspec.structs.replace(ended, error=worker.why)
        if ended is None and worker.why is not None:
            ended = Ended(status="failed", error=worker.why)
        if ended is None and was_asked:
            ended = Ended(status="cancelled")
        if ended is None and worker.job.starts < MOST_STARTS - 1:
            _log.warning("a worker ended with %s; its job is begun again", code)
            self._put_back(worker.job, counts=True)
        else:
            ended = ended or Ended(
                status="failed", error="the planner's process died each time it was begun"
            )
            self._write(worker.job, partial(self._jobs.end, worker.job, ended))

    def _end(self, worker: _Worker) -> int:
        processes.kill(worker.process)
        code = worker.process.wait()
        assert worker.process.stdout is not None
        worker.process.stdout.close()
        return code

    def _put_back(self, job: Job, counts: bool) -> None:
        self._write(job, partial(self._jobs.put_back, job, counts))

    def _write(self, job: Job, how: Callable[[], None]) -> None:
        """Soon, and again where it cannot be."""
        self._unwritten.append((job, how))
        self._write_at = 0.0

    def _cancel(self) -> None:
        for number in list(self._cancelled):
            worker = self._workers.get(number)
            if worker is None:
                self._cancelled.discard(number)  # it had ended by itself
            else:
                worker.ask_to_stop()

    def _limit(self, worker: _Worker) -> None:
        now, most = time.monotonic(), self._settings.memory_bytes
        if worker.asked_at is not None and now - worker.asked_at > self._settings.grace_seconds:
            processes.kill(worker.process)
        elif now - worker.started > self._settings.job_seconds and worker.why is None:
            worker.why = f"stopped after {self._settings.job_seconds:g} s, the most for a job here"
            worker.ask_to_stop()
        elif processes.held_bytes(worker.process.pid) > most:
            worker.why = f"needs more memory than {short_bytes_text(most)}, the most for a job here"
            processes.kill(worker.process)

    def _write_ends(self, last: bool = False) -> None:
        if not self._unwritten or (time.monotonic() < self._write_at and not last):
            return
        left = []
        for job, write in self._unwritten:
            try:
                write()
                self._changed(job.id)
            except NoRoom as error:
                _log.error("cannot write what became of a job: %s", error)
                left.append((job, write))
        self._unwritten = left
        self._write_at = time.monotonic() + _AGAIN_SECONDS
