"""Pages in a file, checked when they come back.

Large pages go to the disk straight from the tensor's memory, and come back straight to it. Direct
I/O wants both aligned to blocks, and torch's memory is not. So a page lies in the file as it lay in
memory: at the same distance from a block's start, its `phase`. The blocks in the middle move as
they are, the two at the edges through a buffer. If the page comes back to memory of another phase,
it lands a little late, on the next block's start, and is then moved down to its place.

Small pages, and those of a GPU, go through the buffer as a whole.

Two threads work: one moves pages, in order; the other moves down what landed late and takes the
checksums, which must agree before a read is done. So the disk waits for neither. Where a process
forks while pages come in, kernels before 5.19 may lose bytes; the checksum finds that too.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from poet.runtime.checksum import Checksum
from poet.runtime.host_memory import HostMemory
from poet.runtime.landing import Landing
from poet.runtime.line import Line
from poet.runtime.page_file import BLOCK_BYTES, PageFile
from poet.runtime.queued import Order, QueuedStore

SMALL_BYTES = 256 * 2**10  # copying this is nothing beside the disk's own delay
RUN_BYTES = 8 * 2**20  # one call to the disk: checksums are taken while the next one runs
_BUFFER_BYTES = 2**20


class FileStore(QueuedStore):
    """`folder` is made if it is missing. `direct` tells whether I/O goes past the page cache."""

    def __init__(self, folder: str | Path, direct: bool = True) -> None:
        self._file = PageFile(folder, direct)
        self._buffer = HostMemory(_BUFFER_BYTES)
        self._checker = Line("poet-checksums")
        super().__init__(self._file.remove, self._checker)

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
        return self._buffer.nbytes

    @property
    def where(self) -> str:
        return str(self._file.path)

    def _slot_bytes(self, nbytes: int) -> int:
        """The most blocks that a page touches, whatever its phase."""
        return (((nbytes + BLOCK_BYTES - 2) // BLOCK_BYTES) + 1) * BLOCK_BYTES if nbytes else 0

    def _make_room(self, nbytes: int) -> None:
        self._file.reserve(nbytes)

    def _write(self, order: Order) -> None:
        slot, checksum = order.slot, Checksum(order.held)
        self._file.check_there(order.page)
        if _in_place(order):
            self._check(order, partial(checksum.advance, slot.nbytes))
            self._write_in_place(order)
        else:
            self._write_copied(order)

        def keep() -> None:
            slot.checksum = checksum.value()

        self._check(order, keep)

    def _read(self, order: Order) -> None:
        slot, checksum = order.slot, Checksum(order.held)
        self._file.check_there(order.page)
        if _in_place(order):
            self._read_in_place(order, checksum)
        else:
            self._read_copied(order)

        def compare() -> None:
            found = checksum.value()
            if found != slot.checksum:
                raise self._file.wrong(
                    order.page,
                    f"its {slot.nbytes:,} bytes have checksum {found:08x} instead of "
                    f"{slot.checksum:08x}",
                )

        self._check(order, compare)

    def _check(self, order: Order, call: Callable[[], None]) -> None:
        """Call when the order's calls before this one have returned; beside the disk if it pays."""
        attempt = partial(order.attempt, call)
        if _alone(order):
            attempt()
        else:
            self._checker.put(attempt)

    def _finish(self, order: Order) -> None:
        if _alone(order):
            order.finish()
        else:
            self._checker.put(order.finish)

    def _write_in_place(self, order: Order) -> None:
        address, slot = order.held.data_ptr(), order.slot
        slot.phase = address % self._file.align_bytes
        landing = Landing.of(address, slot.nbytes, slot.phase, self._file.align_bytes)
        head, tail = landing.body_address - address, slot.nbytes - landing.tail_start
        ctypes.memmove(self._buffer.address + slot.phase, address, head)
        ctypes.memmove(self._buffer.address + BLOCK_BYTES, address + landing.tail_start, tail)
        for offset, _, _, buffers in self._runs(landing):
            self._file.write(order.page, buffers, slot.offset + offset)

    def _read_in_place(self, order: Order, checksum: Checksum) -> None:
        slot = order.slot
        landing = Landing.of(order.held.data_ptr(), slot.nbytes, slot.phase, self._file.align_bytes)
        for offset, start, end, buffers in self._runs(landing):
            self._file.read(order.page, buffers, slot.offset + offset)
            if offset == 0 and landing.head_bytes:
                head = self._buffer.address + slot.phase
                ctypes.memmove(landing.address, head, landing.head_bytes - slot.phase)
            tail = b""
            if end == landing.body_bytes:  # the buffer will be used again before the tail can land
                tail_bytes = slot.nbytes - landing.tail_start
                tail = bytes(self._buffer.view[BLOCK_BYTES : BLOCK_BYTES + tail_bytes])
            self._check(order, partial(_settle, landing, start, end, tail, checksum))

    def _runs(self, landing: Landing) -> Iterator[tuple[int, int, int, list[memoryview]]]:
        """For each call to the disk: its place in the file, its part of the body, its buffers."""
        for start, end in landing.runs(RUN_BYTES):
            offset, buffers = (
                landing.head_bytes + start,
                [_view(landing.body_address + start, end - start)],
            )
            if start == 0 and landing.head_bytes:
                offset, buffers = 0, [self._buffer.view[:BLOCK_BYTES], *buffers]
            if end == landing.body_bytes and landing.tail_bytes:
                buffers.append(self._buffer.view[BLOCK_BYTES : BLOCK_BYTES + landing.tail_bytes])
            yield offset, start, end, buffers

    def _write_copied(self, order: Order) -> None:
        slot = order.slot
        slot.phase = 0
        for start in range(0, slot.nbytes, self._buffer.nbytes):
            count = min(self._buffer.nbytes, slot.nbytes - start)
            self._buffer.fill(0, order.held, start, count)
            self._file.write(order.page, [self._blocks(count)], slot.offset + start)

    def _read_copied(self, order: Order) -> None:
        slot = order.slot
        end = slot.phase + slot.nbytes
        for start in range(0, end, self._buffer.nbytes):
            count = min(self._buffer.nbytes, end - start)
            self._file.read(order.page, [self._blocks(count)], slot.offset + start)
            before = max(0, slot.phase - start)  # bytes in front of the page
            at = start + before - slot.phase
            self._buffer.spill(before, order.held, at, count - before)

    def _blocks(self, nbytes: int) -> memoryview:
        """So many bytes of the buffer, and what is missing to whole blocks."""
        align = self._file.align_bytes
        return self._buffer.view[: -(-nbytes // align) * align]


def _in_place(order: Order) -> bool:
    return order.held.device.type == "cpu" and order.slot.nbytes > SMALL_BYTES


def _alone(order: Order) -> bool:
    """Whether a second thread is not worth its wake-up, or not wanted."""
    return order.now or order.slot.nbytes <= SMALL_BYTES


def _view(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address))


def _settle(landing: Landing, start: int, end: int, tail: bytes, checksum: Checksum) -> None:
    """A run of blocks has landed: move it to its place, and the tail behind the last."""
    if landing.shift:
        start = max(start, landing.phase - landing.head_bytes)  # from the page's first byte on
        ctypes.memmove(landing.place(start), landing.body_address + start, end - start)
    ctypes.memmove(landing.address + landing.tail_start, tail, len(tail))
    known = landing.head_bytes + end - landing.phase + len(tail)
    checksum.advance(known)
