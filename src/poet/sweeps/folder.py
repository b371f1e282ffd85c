"""Folder: the answers of a sweep on disk, one file a cell, written whole or not at all.

A cell's name is a digest of its question, so that whoever asks the same again, after an
interruption or with a grid that has changed around it, finds the answer. What was lost is kept,
too, with why.
"""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from poet.errors import PoetError
from poet.planning.rows import Found
from poet.planning.turns import Outcome
from poet.values.files import read_json, write_json
from poet.version import __version__

CELLS = "cells"
_LOCK = ".lock"


class Kept(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="format",
    tag="poet-cell/1",
):
    """What became of a question. `asked` and `version` are for people."""

    asked: str
    version: str = __version__
    found: Found | None = None
    lost: str = ""
    """Why its worker was."""
    refused: str = ""
    """Why there can be no answer."""
    proven: bool = False
    """That there is none."""
    trace: str = ""
    """Of a bug, which is why it was lost."""

    @classmethod
    def of(cls, outcome: Outcome, asked: str) -> Self:
        if outcome.error is not None:
            proven = getattr(outcome.error, "proven", False)
            return cls(asked=asked, refused=str(outcome.error), proven=proven)
        if outcome.trace:
            what = outcome.trace.strip().rpartition("\n")[2]
            return cls(asked=asked, lost=f"a bug of POET's ({what})", trace=outcome.trace)
        return cls(asked=asked, found=outcome.found, lost=outcome.lost)

    def without_schedule(self) -> Self:
        """The same for tables, which hold many."""
        if self.found is None:
            return self
        row_alone = msgspec.structs.replace(self.found, schedule=(), costs=None, start={})
        return msgspec.structs.replace(self, found=row_alone)


class Folder:
    """Where a sweep keeps its answers. A context manager: one sweep at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        try:
            (self.path / CELLS).mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PoetError(f"cannot keep results in {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise PoetError(
                f"another sweep writes to {self.path}: wait for it, or give this one another folder"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    def find(self, key: str) -> Kept | None:
        """What became of a question, if that is known."""
        file = self._file(key)
        return read_json(file, Kept) if file.exists() else None

    def keep(self, key: str, kept: Kept) -> None:
        write_json(kept, self._file(key), force=True)

    def _file(self, key: str) -> Path:
        return self.path / CELLS / f"{key}.json"
