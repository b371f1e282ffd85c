"""What commands say: data on stdout, talk on stderr, where progress is, too.

On a terminal progress is a bar or a line that changes. Where stderr is a pipe or a file, it is a
line now and then, and what is done within seconds says nothing.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from poet.cli.options import as_options
from poet.reports import waiting
from poet.values.progress import CountProgress, SearchProgress

if TYPE_CHECKING:
    from rich.status import Status

    from poet.reports.tables import Align

PAIRS: "tuple[tuple[str, Align], ...]" = (("", "left"), ("", "left"))
"""The heads of a table of labels and texts."""
_QUIET_SECONDS = 2.0
"""A capture that takes no longer says nothing."""
_SELDOM_SECONDS = 10.0
"""From line to line, where nobody may be looking."""


def print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode())


def show_table(
    heads: "Sequence[tuple[str, Align]]", rows: Sequence[Sequence[str]], cut_last: bool = False
) -> None:
    """A table on stdout, as wide as the terminal."""
    from rich.console import Console

    from poet.reports.tables import print_table

    print_table(Console(), heads, rows, cut_last=cut_last)


def tell(text: str) -> None:
    """Talk goes to stderr."""
    print(as_options(text), file=sys.stderr)


def say(text: str) -> None:
    """The same, with a name in front: among lines that others may have written."""
    tell(f"poet: {text}")


def complain(message: str) -> None:
    color = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print("\033[1;31merror:\033[0m" if color else "error:", as_options(message), file=sys.stderr)


@contextmanager
def listening() -> Iterator[None]:
    """While this holds, what the library logs is said: plans and warnings, and long captures."""
    logger, training = logging.getLogger("poet"), logging.getLogger("poet.training")
    capturing = logging.getLogger("poet.tracer.capture")
    handlers: list[tuple[logging.Logger, logging.Handler, int]] = [
        (logger, _Said(), logging.WARNING),
        (training, logging.NullHandler(), logging.INFO),
    ]
    handlers.append((capturing, _Capturing(), logging.INFO))
    before = [(each, each.level) for each, _, _ in handlers]
    for each, handler, level in handlers:
        each.addHandler(handler)
        each.setLevel(level)
    try:
        yield
    finally:
        for each, handler, _ in handlers:
            each.removeHandler(handler)
            handler.close()
        for each, level in before:
            each.setLevel(level)


class _Said(logging.Handler):
    """Says records as a command says things."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or record.name.startswith("poet.training"):
            say(record.getMessage())


class Seldom:
    """Says the latest of many texts, at most every few seconds: the first when so long is over."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last >= _SELDOM_SECONDS:
            self._last = now
            say(text)


class _Capturing(logging.Handler):
    """A line that says how far a long capture has come."""

    def __init__(self) -> None:
        super().__init__()
        self._status: Status | None = None
        self._timer: threading.Timer | None = None
        self._seldom: Seldom | None = None

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("captured"):
            self._end()
        elif not sys.stderr.isatty():
            self._seldom = self._seldom or Seldom()
            self._seldom(text)
        elif self._status is not None:
            self._status.update(text)
        else:
            self._status = waiting.console().status(text)
            self._timer = threading.Timer(_QUIET_SECONDS, self._status.start)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        if self._timer is not None and self._status is not None:
            self._timer.cancel()
            self._timer.join()
            self._status.stop()
        self._timer = self._status = self._seldom = None

    def close(self) -> None:
        self._end()
        super().close()


@contextmanager
def progress_bar() -> Iterator[CountProgress]:
    """A progress bar on a terminal's stderr, and a line now and then anywhere else."""
    if not sys.stderr.isatty():
        seldom = Seldom()
        yield lambda what, done, count: seldom(f"{what} ({done} of {count} done)")
        return
    with waiting.bar() as show:
        yield show


@contextmanager
def planning_line() -> Iterator[Callable[[SearchProgress], None]]:
    """A line on stderr that says how far the planner has come."""
    if not sys.stderr.isatty():
        seldom = Seldom()
        yield lambda progress: seldom(waiting.planning_text(progress))
        return
    with waiting.line("planning …") as show:
        yield lambda progress: show(waiting.planning_text(progress))
