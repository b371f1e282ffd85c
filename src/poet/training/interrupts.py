"""Interrupts: Ctrl-C and SIGTERM let a running step finish; asked for twice, they do not wait.

    with Interrupts(print) as interrupts:
        while not interrupts.asked:
            trainer.step(x, y)

A step that is broken off leaves a model that is neither before nor after it. Signals that the
process was told to ignore stay ignored. The signals' former meaning comes back at the end.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """`say` is told when the first comes. In threads other than the main one, nothing is heard."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self.asked = False
        self._say = say
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say(f"{signal.Signals(number).name}: finishing this step (again: leave at once)")
