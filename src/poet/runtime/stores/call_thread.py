"""A thread that makes calls in order.

It knows only its calls: whoever owns it can be forgotten while it waits.

Ctrl-C may come between any two steps of the thread that makes one, and `threading.Thread.start`
does not stand that: it leaves a thread of which nobody knows whether it runs. So the thread is
started by one call of C, and sees for itself whether it is the first.
"""

import _thread
import queue
import threading
from collections.abc import Callable
from functools import partial


class CallThread:
    """The calls must not raise. The thread starts when it is first needed."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._served = threading.Lock()
        self._server = 0

    def entry(self, call: Callable[[], None]) -> Callable[[], None]:
        """What must be called to give it a call. It is C: all of it happens or nothing."""
        if not self._served.locked():
            _thread.start_new_thread(self._serve, ())  # does not keep the process alive
        return partial(self._calls.put, call)

    def stop(self) -> None:
        """End after the calls that were put."""
        self._calls.put(None)
        if self._server != threading.get_ident():
            with self._served:
                pass

    def _serve(self) -> None:
        if not self._served.acquire(blocking=False):
            return
        self._server = threading.get_ident()
        while (call := self._calls.get()) is not None:
            call()
            del call  # it holds a storage, and the store
        self._calls.put(None)  # for a second thread that comes late
        self._served.release()
