"""Ctrl-C at the command line: the first ends what is under way, the second leaves at once.

The first is a KeyboardInterrupt as usual, but not in the middle of an import: a library that is
broken off there raises whatever it likes, or hangs. Nothing is in hand then that could be lost, so
the process leaves. Helpers of the planner see that, and end.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from poet.cli.exit_codes import INTERRUPTED


@contextmanager
def hearing_ctrl_c() -> Iterator[None]:
    """A process that was told to ignore SIGINT, or has its own way with it, is left alone."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked = False

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or _is_importing(frame):
            os.write(2, b"error: interrupted\n")
            os._exit(INTERRUPTED)
        asked = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:  # a process that was asked is on its way out
        signal.signal(signal.SIGINT, signal.SIG_IGN if asked else signal.default_int_handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
