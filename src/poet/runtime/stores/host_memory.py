"""A piece of host memory that pages are copied to and from.

It is mapped, not allocated: aligned for direct I/O, exactly as large as asked, and given back to
the system at once when it is let go. It consists of huge pages as far as the system has them: a
disk reads and writes contiguous memory up to twice as fast as scattered memory. Forked processes do
not get it, since a fork in the middle of direct I/O may otherwise lose bytes.
"""

import ctypes
import mmap
from functools import cached_property

import torch

_HUGE_BYTES = 2 * 2**20
# From this size on, memory comes fresh from the system each time (glibc's largest threshold).
_FRESH_BYTES = 32 * 2**20
_LIBC = ctypes.CDLL(None, use_errno=True)


class HostMemory:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        whole = mmap.mmap(-1, nbytes + _HUGE_BYTES, flags=flags)
        whole.madvise(mmap.MADV_DONTFORK)
        # Not by torch: the collector may empty a store while a model is being traced.
        first = ctypes.addressof(ctypes.c_char.from_buffer(whole))
        before = -first % _HUGE_BYTES
        self.view = memoryview(whole)[before : before + nbytes]
        self.address = first + before
        _prefer_huge_pages(self.address, nbytes)

    @cached_property
    def bytes(self) -> torch.Tensor:
        """The same memory for torch, to copy to and from a GPU."""
        return torch.frombuffer(self.view, dtype=torch.uint8)

    def fill(self, at: int, storage: torch.UntypedStorage, start: int, count: int) -> None:
        """Copy `count` bytes, from `start` on, of a storage to this memory's place `at`."""
        if storage.device.type == "cpu":
            ctypes.memmove(self.address + at, storage.data_ptr() + start, count)
        else:
            self.bytes[at : at + count].copy_(_bytes_of(storage)[start : start + count])

    def spill(self, at: int, storage: torch.UntypedStorage, start: int, count: int) -> None:
        """Copy `count` bytes from this memory's place `at` to a storage, from `start` on."""
        if storage.device.type == "cpu":
            ctypes.memmove(storage.data_ptr() + start, self.address + at, count)
        else:
            _bytes_of(storage)[start : start + count].copy_(self.bytes[at : at + count])


def expect_all(storage: torch.UntypedStorage) -> None:
    """All of a storage is about to be filled, so it may as well be given huge pages.

    Memory that is fresh from the system costs more to touch in small pages than to read from disk.
    Only what lies wholly within the storage is named, so that it takes no byte more.
    """
    if storage.device.type == "cpu" and storage.nbytes() >= _FRESH_BYTES:
        _prefer_huge_pages(storage.data_ptr(), storage.nbytes())


def _prefer_huge_pages(address: int, nbytes: int) -> None:
    start = -(-address // _HUGE_BYTES) * _HUGE_BYTES
    count = (address + nbytes) // _HUGE_BYTES * _HUGE_BYTES - start
    if count > 0:  # a hint: where the system has no huge pages nothing is lost
        _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(count), mmap.MADV_HUGEPAGE)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as a vector of bytes, not a copy."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
