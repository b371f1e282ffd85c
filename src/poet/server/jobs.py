"""Jobs: what was asked and what came of it, in one SQLite file that survives whatever ends us.

A job is queued, running, and then done, cancelled or failed. What was asked before, and is not
cancelled or failed, is the same job again: the index on `key` sees to it, whoever asks at once.
Events are numbered from 1 within their job. One connection, used by one thread at a time.
"""

import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from poet.errors import PoetError
from poet.server.messages import Ended, EndStatus
from poet.version import __version__

Status = Literal["queued", "running", "done", "cancelled", "failed"]
ENDED = ("done", "cancelled", "failed")
LAYOUT = 1
MOST_STARTS = 3
"""A job that ended the service, or its worker, so often is not begun again."""
_TABLES = """
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, kind TEXT NOT NULL, key BLOB NOT NULL,
  status TEXT NOT NULL, starts INTEGER NOT NULL, asked_at REAL NOT NULL, ended_at REAL,
  figures BLOB, error TEXT
);
CREATE UNIQUE INDEX same ON jobs (key) WHERE status IN ('queued', 'running', 'done');
CREATE INDEX waiting ON jobs (status, number);
CREATE TABLE files (
  job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, name TEXT NOT NULL, content BLOB NOT NULL,
  PRIMARY KEY (job, name)
);
CREATE TABLE events (
  job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, n INTEGER NOT NULL, kind TEXT NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY (job, n)
) WITHOUT ROWID;
"""
_COLUMNS = "number, id, kind, status, starts, figures, error"


class NoRoom(Exception):
    """The disk is full, or cannot be written."""


class TooMany(Exception):
    """As many jobs are waiting as may."""


class Job(NamedTuple):
    number: int
    id: str
    kind: str
    status: Status
    starts: int
    figures: bytes | None
    error: str | None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class Event(NamedTuple):
    n: int
    kind: str
    data: bytes


class Jobs:
    def __init__(self, file: Path, most_bytes: int) -> None:
        self._lock = threading.RLock()
        self._most_bytes = most_bytes
        try:
            self._db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
                self._db.execute(f"PRAGMA {pragma}")
            (layout,) = self._db.execute("PRAGMA user_version").fetchone()
            if layout == 0:
                self._db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={LAYOUT}; COMMIT;")
        except sqlite3.Error as error:
            raise PoetError(f"cannot keep jobs in {file}: {error}") from None
        if layout not in (0, LAYOUT):
            raise PoetError(f"{file} is of another POET; this one reads layout {LAYOUT}")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def ask(self, kind: str, question: bytes, most_waiting: int) -> Job:
        """The job for a question: the one that has its answer or will have it, or a new one."""
        key = sha256(b"\0".join((kind.encode(), __version__.encode(), question))).digest()
        with self._writing():
            found = self._one("key = ? AND status IN ('queued', 'running', 'done')", key)
            if found is not None:
                return found
            if self.waiting() >= most_waiting:
                raise TooMany
            added = self._db.execute(
                "INSERT INTO jobs (id, kind, key, status, starts, asked_at)"
                " VALUES (?, ?, ?, 'queued', 0, ?)",
                (secrets.token_urlsafe(16), kind, key, time.time()),
            )
            number = added.lastrowid
            assert number is not None
            self._db.execute("INSERT INTO files VALUES (?, 'question', ?)", (number, question))
            self._tell(number, [("status", b'{"status":"queued"}')])
            job = self._one("number = ?", number)
            assert job is not None
            return job

    def find(self, kind: str, id: str) -> Job | None:
        with self._lock:
            return self._one("kind = ? AND id = ?", kind, id)

    def question(self, job: Job) -> bytes:
        return self._file(job, "question") or b""

    def result(self, job: Job) -> bytes | None:
        return self._file(job, "result")

    def events(self, job: Job, after: int, most: int = 1000) -> list[Event]:
        with self._lock:
            rows = self._db.execute(
                "SELECT n, kind, data FROM events WHERE job = ? AND n > ? ORDER BY n LIMIT ?",
                (job.number, after, most),
            )
            return [Event(*row) for row in rows]

    def waiting(self) -> int:
        with self._lock:
            (count,) = self._db.execute(
                "SELECT count(*) FROM jobs WHERE status IN ('queued', 'running')"
            ).fetchone()
            return int(count)

    def ahead(self, job: Job) -> int:
        """The queued jobs that come before this one."""
        with self._lock:
            (count,) = self._db.execute(
                "SELECT count(*) FROM jobs WHERE status = 'queued' AND number < ?", (job.number,)
            ).fetchone()
            return int(count)

    def begin_next(self) -> Job | None:
        """The queued job that waited longest, which is running from now on."""
        with self._writing():
            job = self._one("status = 'queued' ORDER BY number LIMIT 1")
            if job is None:
                return None
            self._db.execute(
                "UPDATE jobs SET status = 'running', starts = starts + 1 WHERE number = ?",
                (job.number,),
            )
            self._tell(job.number, [("status", b'{"status":"running"}')])
            return job._replace(status="running", starts=job.starts + 1)

    def note(self, job: Job, events: Iterable[tuple[str, bytes]], figures: bytes | None) -> None:
        """What a worker told, all of it or nothing."""
        with self._writing():
            self._tell(job.number, events)
            if figures is not None:
                self._db.execute(
                    "UPDATE jobs SET figures = ? WHERE number = ?", (figures, job.number)
                )

    def end(self, job: Job, ended: Ended) -> None:
        with self._writing():
            if ended.result is not msgspec.UNSET:
                self._db.execute(
                    "INSERT OR REPLACE INTO files VALUES (?, 'result', ?)",
                    (job.number, bytes(ended.result)),
                )
            self._set_end(job, ended.status, ended.error)
            if ended.figures is not msgspec.UNSET:
                self._db.execute(
                    "UPDATE jobs SET figures = ? WHERE number = ?",
                    (bytes(ended.figures), job.number),
                )
        self._forget_oldest()

    def cancel_queued(self, job: Job) -> bool:
        """Whether it was queued still, and will not be begun."""
        with self._writing():
            now = self._one("number = ?", job.number)
            if now is None or now.status != "queued":
                return False
            self._set_end(job, "cancelled", None)
            return True

    def put_back(self, job: Job, counts: bool) -> None:
        """To be begun again, before those that were asked later. `counts`: that it was begun, for
        it may have been its own fault."""
        with self._writing():
            self._put_back(job)
            if not counts:
                self._db.execute(
                    "UPDATE jobs SET starts = starts - 1 WHERE number = ?", (job.number,)
                )

    def recover(self) -> None:
        """After a start: what was running then is begun again, unless it was so too often."""
        with self._writing():
            was_running = f"SELECT {_COLUMNS} FROM jobs WHERE status = 'running'"
            for job in [Job(*row) for row in self._db.execute(was_running)]:
                if job.starts < MOST_STARTS:
                    self._put_back(job)
                else:
                    error = f"was begun {job.starts} times, and the service ended each time"
                    self._set_end(job, "failed", error)

    def _put_back(self, job: Job) -> None:
        self._db.execute("UPDATE jobs SET status = 'queued' WHERE number = ?", (job.number,))
        self._tell(job.number, [("status", b'{"status":"queued"}')])

    def _set_end(self, job: Job, status: EndStatus, error: str | None) -> None:
        self._db.execute(
            "UPDATE jobs SET status = ?, error = ?, ended_at = ? WHERE number = ?",
            (status, error, time.time(), job.number),
        )
        told = {"status": status} | ({} if error is None else {"error": error})
        self._tell(job.number, [("status", msgspec.json.encode(told))])

    def _tell(self, number: int, events: Iterable[tuple[str, bytes]]) -> None:
        (last,) = self._db.execute(
            "SELECT coalesce(max(n), 0) FROM events WHERE job = ?", (number,)
        ).fetchone()
        self._db.executemany(
            "INSERT INTO events VALUES (?, ?, ?, ?)",
            [(number, last + 1 + i, kind, data) for i, (kind, data) in enumerate(events)],
        )

    def _forget_oldest(self) -> None:
        while self._used_bytes() > self._most_bytes:
            with self._writing():
                gone = self._db.execute(
                    "DELETE FROM jobs WHERE number = (SELECT number FROM jobs"
                    " WHERE ended_at IS NOT NULL ORDER BY ended_at LIMIT 1)"
                ).rowcount
            if not gone:
                return

    def _used_bytes(self) -> int:
        with self._lock:
            pages, free, size = (
                self._db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            return int((pages - free) * size)

    def _file(self, job: Job, name: str) -> bytes | None:
        with self._lock:
            row = self._db.execute(
                "SELECT content FROM files WHERE job = ? AND name = ?", (job.number, name)
            ).fetchone()
            return None if row is None else bytes(row[0])

    def _one(self, where: str, *values: object) -> Job | None:
        row = self._db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE {where}", values).fetchone()
        return None if row is None else Job(*row)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: all of it, or nothing."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise NoRoom(str(error)) from None
