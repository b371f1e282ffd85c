"""Pages in host memory: for models on a GPU, whose memory is the scarce one, and for tests.

One pool holds all pages. Where the process uses CUDA the pool is pinned, so that copies run at the
bus's full speed. Copies are synchronous on the store's thread.
"""

import os
from functools import partial
from time import perf_counter
from typing import Any

import torch

from poet.errors import PoetError
from poet.runtime.stores.call_thread import CallThread
from poet.runtime.stores.host_memory import HostMemory
from poet.runtime.stores.queued import Order, QueuedStore, Stage
from poet.values.quantities import bytes_text

_ALIGN_BYTES = 64


class MemoryStore(QueuedStore):
    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._pool = _Pool()
        self._thread = CallThread()
        super().__init__(self._pool.empty, self._thread)

    @property
    def buffer_bytes(self) -> int:
        """Nothing: pages go straight to their places. The pages themselves are `size_bytes`."""
        return 0

    @property
    def where(self) -> str:
        return "host memory"

    def _slot_bytes(self, nbytes: int) -> int:
        return -(-nbytes // _ALIGN_BYTES) * _ALIGN_BYTES

    def _make_room(self, nbytes: int) -> None:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = physical if self.limit_bytes is None else self.limit_bytes
        if nbytes > limit:
            raise PoetError(
                f"the pages need {bytes_text(nbytes)} of host memory; the limit is "
                f"{bytes_text(limit)}. Keep pages in a folder instead, or raise the limit."
            )
        self._pool.resize(nbytes)

    def _stages(self, order: Order) -> list[tuple[CallThread, Stage]]:
        return [(self._thread, self._move)]

    def _move(self, order: Order) -> None:
        started = perf_counter()
        order.attempt(partial(self._begin, order))
        order.attempt(order.wait_for_kernels)
        memory = self._pool.memory
        copy = memory.fill if order.out else memory.spill
        start, count, at = order.part
        order.attempt(lambda: copy(order.slot.offset + start, order.storage, at, count))
        self._end(order, started)
        order.finish()


class _Pool:
    """The memory of all pages."""

    def __init__(self) -> None:
        self.memory = HostMemory(0)
        self._pinned = False

    def resize(self, nbytes: int) -> None:
        """Be as large as that; what was inside is gone."""
        self.empty()
        try:
            self.memory = HostMemory(nbytes)
        except OSError as error:
            raise PoetError(
                f"cannot reserve {bytes_text(nbytes)} of host memory: {error.strerror}. "
                "Keep pages in a folder instead."
            ) from None
        if nbytes and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # torch's own pinned memory would be rounded up to a power of two. Where pinning
            # fails, memory that is not pinned serves as well, only slower.
            self._pinned = int(_cuda().cudaHostRegister(self.memory.address, nbytes, 0)) == 0

    def empty(self) -> None:
        if self._pinned:
            _cuda().cudaHostUnregister(self.memory.address)
            self._pinned = False
        self.memory = HostMemory(0)


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
