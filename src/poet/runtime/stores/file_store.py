"""Pages in a file, checked when they come back.

Direct I/O wants memory aligned to blocks, and torch's is not. So pages go through two buffers, in
chunks: one thread moves chunks between storages and buffers and takes checksums, another moves them
between buffers and the disk. Both take the transfers in the same order, and either may be ahead:
the disk waits for neither copies nor checksums.

    out   storage -> memory thread -> filled -> disk thread -> free
    in    storage <- memory thread <- landed <- disk thread <- free

Where something fails the buffers go round all the same, without being used, so that the next
transfer finds them. Two buffers of 1 MiB, in one huge page, keep a fast disk busy four fifths of
the time; half the size costs a quarter of the speed, twice the size gains a quarter.

Small pages are moved by the disk thread alone, through a buffer of their own. Parts of pages pass
through that buffer, too, in the calling thread and in whole blocks, since each block of a page that
moves in parts has a checksum. What a part leaves of a block that it changes is read first: so it
takes no memory but the store's own.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter

from poet.errors import PageError, PoetError
from poet.runtime.stores.base import PagePart
from poet.runtime.stores.call_thread import CallThread
from poet.runtime.stores.checksum import checksum
from poet.runtime.stores.host_memory import HostMemory, expect_all
from poet.runtime.stores.page_file import BLOCK_BYTES, PageFile
from poet.runtime.stores.queued import Order, QueuedStore, Stage

CHUNK_BYTES = 2**20
CHUNKS = 2
SMALL_BYTES = 256 * 2**10  # to wake a second thread takes longer than to copy this


def buffers_bytes(chunk_bytes: int) -> int:
    """RAM that a store takes whose chunks are so large."""
    return CHUNKS * chunk_bytes + min(SMALL_BYTES, chunk_bytes)


class FileStore(QueuedStore):
    """`folder` is made if it is missing. `direct` tells whether I/O goes past the page cache.

    `chunk_bytes`, a multiple of 4096, is how much moves at once: smaller ones take less RAM.
    """

    def __init__(
        self, folder: str | Path, direct: bool = True, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        if chunk_bytes < BLOCK_BYTES or chunk_bytes % BLOCK_BYTES:
            raise PoetError(f"chunk_bytes is {chunk_bytes}; it must be a multiple of {BLOCK_BYTES}")
        self._chunk_bytes = chunk_bytes
        self._small_bytes = min(SMALL_BYTES, chunk_bytes)
        self._file = PageFile(folder, direct)
        self._buffers = HostMemory(buffers_bytes(chunk_bytes))
        # Places in the buffers, by what can be done with them.
        self._free: SimpleQueue[int] = SimpleQueue()
        self._filled: SimpleQueue[int] = SimpleQueue()
        self._landed: SimpleQueue[int] = SimpleQueue()
        for chunk in range(CHUNKS):
            self._free.put(chunk * chunk_bytes)
        self._disk_thread, self._memory_thread = CallThread(), CallThread()
        super().__init__(self._file.remove, self._disk_thread, self._memory_thread)

    @property
    def direct(self) -> bool:
        return self._file.direct

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def removed_stale(self) -> tuple[Path, ...]:
        """Files of processes that had died, removed when this store was opened."""
        return self._file.removed_stale

    @property
    def buffer_bytes(self) -> int:
        return self._buffers.nbytes

    @property
    def where(self) -> str:
        return str(self._file.path)

    def _slot_bytes(self, nbytes: int) -> int:
        return _blocks_bytes(nbytes, BLOCK_BYTES)

    def _make_room(self, nbytes: int) -> None:
        self._file.reserve(nbytes)

    def _stages(self, order: Order) -> list[tuple[CallThread, Stage]]:
        if order.part.nbytes <= self._small_bytes or not order.whole:
            return [(self._disk_thread, self._small)]
        return [(self._disk_thread, self._disk), (self._memory_thread, self._memory)]

    def _small(self, order: Order) -> None:
        started = perf_counter()
        order.attempt(partial(self._begin, order))
        order.attempt(order.wait_for_kernels)
        at = CHUNKS * self._chunk_bytes
        if order.whole:
            steps = (self._copy, self._transfer) if order.out else (self._transfer, self._copy)
            for start, count in _chunks(order.slot.nbytes, self._chunk_bytes):
                for step in steps:
                    order.attempt(partial(step, order, start, count, at))
        else:
            for start, count in _stretches(order.part, self._small_bytes):
                order.attempt(partial(self._move_part, order, start, count, at))
        self._end(order, started)
        order.finish()

    def _disk(self, order: Order) -> None:
        started = perf_counter()
        order.attempt(partial(self._begin, order))
        source, target = (self._filled, self._free) if order.out else (self._free, self._landed)
        for start, count in _chunks(order.slot.nbytes, self._chunk_bytes):
            at = source.get()
            order.attempt(partial(self._transfer, order, start, count, at))
            target.put(at)
        self._end(order, started)
        if order.out:
            order.finish()

    def _memory(self, order: Order) -> None:
        order.attempt(order.wait_for_kernels)
        if not order.out:
            order.attempt(lambda: expect_all(order.storage))
        source, target = (self._free, self._filled) if order.out else (self._landed, self._free)
        for start, count in _chunks(order.slot.nbytes, self._chunk_bytes):
            at = source.get()
            order.attempt(partial(self._copy, order, start, count, at))
            target.put(at)
        if not order.out:
            order.finish()

    def _transfer(self, order: Order, start: int, count: int, at: int) -> None:
        """Between the buffer's place `at` and the file."""
        move = self._file.write if order.out else self._file.read
        move(order.page, self._blocks(count, at), order.slot.offset + start)

    def _blocks(self, count: int, at: int) -> memoryview:
        return self._buffers.view[at : at + _blocks_bytes(count, self._file.align_bytes)]

    def _copy(self, order: Order, start: int, count: int, at: int) -> None:
        """Between the buffer's place `at` and the storage, with its checksums."""
        if order.out:
            self._buffers.fill(at, order.storage, start, count)
            self._sign(order, start, count, at)
        else:
            self._verify(order, start, count, at)
            self._buffers.spill(at, order.storage, start, count)

    def _move_part(self, order: Order, start: int, count: int, at: int) -> None:
        """Some bytes of a page, by way of the blocks that they lie in."""
        first, end = start - start % BLOCK_BYTES, start + count
        until = min(_blocks_bytes(end, BLOCK_BYTES), order.slot.nbytes)
        place = order.part.at + start - order.part.start
        if not order.out:
            self._transfer(order, first, until - first, at)
            self._verify(order, first, until - first, at)
            self._buffers.spill(at + start - first, order.storage, place, count)
            return
        torn = {first} if start > first else set()
        if end < until:
            torn.add((end - 1) // BLOCK_BYTES * BLOCK_BYTES)
        for block in torn:
            nbytes, there = min(BLOCK_BYTES, order.slot.nbytes - block), at + block - first
            if block not in order.slot.checksums:  # of a page that has begun anew
                self._buffers.bytes[there : there + nbytes] = 0
                continue
            self._file.read(order.page, self._blocks(nbytes, there), order.slot.offset + block)
            self._verify(order, block, nbytes, there)
        self._buffers.fill(at + start - first, order.storage, place, count)
        self._sign(order, first, until - first, at)
        self._transfer(order, first, until - first, at)

    def _sign(self, order: Order, start: int, count: int, at: int) -> None:
        """Keep the checksums of what is in the buffer's place `at`."""
        for first, nbytes, there in _signed(order, start, count, at):
            found = checksum(self._buffers.bytes[there : there + nbytes])
            order.slot.checksums[first] = found

    def _verify(self, order: Order, start: int, count: int, at: int) -> None:
        """Compare the checksums of what is in the buffer's place `at`."""
        for first, nbytes, there in _signed(order, start, count, at):
            found = checksum(self._buffers.bytes[there : there + nbytes])
            wanted = order.slot.checksums.get(first)
            if wanted is None:
                raise PageError(
                    f"page {order.page} has nothing from byte {first:,} on in {self._file.path}: "
                    "it was not written since it began anew"
                )
            if found != wanted:
                raise self._file.wrong(
                    order.page,
                    f"of its {order.slot.nbytes:,} bytes, those from {first:,} to "
                    f"{first + nbytes:,} have checksum {found:08x} instead of {wanted:08x}",
                )


def _chunks(nbytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Where each chunk of a page starts, and its bytes."""
    for start in range(0, nbytes, chunk_bytes):
        yield start, min(chunk_bytes, nbytes - start)


def _stretches(part: PagePart, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Where each piece of a part starts, and its bytes: the blocks of each fit the buffer."""
    start, end = part.start, part.start + part.nbytes
    while start < end:
        until = min(start - start % BLOCK_BYTES + most_bytes, end)
        yield start, until - start
        start = until


def _signed(order: Order, start: int, count: int, at: int) -> Iterator[tuple[int, int, int]]:
    """What has a checksum of its own among bytes in a buffer: where in the page, bytes, place.

    It is a chunk, or a block where a page can be moved in parts.
    """
    step = BLOCK_BYTES if order.slot.in_parts else max(1, count)
    for first in range(start, start + count, step):
        yield first, min(step, start + count - first), at + first - start


def _blocks_bytes(nbytes: int, block_bytes: int) -> int:
    """The bytes of as many blocks as it takes."""
    return -(-nbytes // block_bytes) * block_bytes
