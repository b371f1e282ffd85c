"""Breaking off: SIGINT as a KeyboardInterrupt, but never in the middle of an import.

A library that is broken off while it is imported raises whatever it likes, or hangs.
"""

import signal
from types import FrameType

_LOOK_SECONDS = 0.02


def is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def look_again() -> None:
    """SIGALRM, in a moment, for whoever waits until an import is done."""
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS)


def break_off(number: int, frame: FrameType | None) -> None:
    """A handler of SIGINT, and of SIGALRM, for a process that may wait for its imports."""
    if not is_importing(frame):
        raise KeyboardInterrupt
    look_again()


def hear() -> None:
    """From now on SIGINT breaks off."""
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, break_off)


def be_deaf() -> None:
    """What is ending is not broken off any more."""
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
