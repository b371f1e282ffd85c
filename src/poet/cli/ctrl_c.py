"""Ctrl-C at the command line: the first ends what is under way, the second leaves at once.

The first is a KeyboardInterrupt as usual, but never in the middle of an import. A short one is
waited for; after a second the process leaves, since long ones come first, when nothing is in hand.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from poet.cli.exit_codes import INTERRUPTED
from poet.planning.breaking_off import is_importing, look_again

_IMPORT_SECONDS = 1.0
_SHELLS_OWN = 128
"""What a shell adds to the number of the signal that ended a process."""


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """A process that was told to ignore SIGINT, or has its own way with it, is left alone."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked_at: float | None = None

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal asked_at
        if asked_at is not None:
            _leave()
        asked_at = time.monotonic()
        end(number, frame)

    def end(number: int, frame: FrameType | None) -> None:
        if not is_importing(frame):
            raise KeyboardInterrupt
        if time.monotonic() - (asked_at or 0.0) > _IMPORT_SECONDS:
            _leave()
        look_again()

    usual = signal.signal(signal.SIGALRM, end)
    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:  # a process that was asked is on its way out
        last = signal.default_int_handler if asked_at is None else signal.SIG_IGN
        signal.signal(signal.SIGINT, last)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


@contextmanager
def ending_well() -> Iterator[None]:
    """While this holds, SIGTERM unwinds: temporary folders go, and processes that were started."""
    usual = signal.getsignal(signal.SIGTERM)
    if usual is not signal.SIG_DFL:
        yield
        return

    def heard(number: int, _: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is unwound is not broken off again
        raise SystemExit(_SHELLS_OWN + number)

    signal.signal(signal.SIGTERM, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


def _leave() -> NoReturn:
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)
