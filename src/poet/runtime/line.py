"""A thread that makes calls in order.

It knows only its calls: whoever owns it can be forgotten while it waits.
"""

import queue
import threading
from collections.abc import Callable
from functools import partial


class Line:
    """The calls must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def entry(self, call: Callable[[], None]) -> Callable[[], None]:
        """What must be called to put a call on the line. It is C: all of it happens or nothing."""
        if self._thread is None:
            # A daemon, since a line that nobody stops must not keep the process alive.
            self._thread = threading.Thread(
                target=_serve, args=(self._calls,), name=self._name, daemon=True
            )
            self._thread.start()
        return partial(self._calls.put, call)

    def stop(self) -> None:
        """End after the calls that were put."""
        self._calls.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _serve(calls: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it holds a storage, and the store
