"""A piece of host memory that pages are copied to and from, aligned to blocks.

It is mapped, not allocated: aligned, exactly as large as asked, and given back to the system at
once when it is let go.
"""

import ctypes
import mmap

import torch

from poet.runtime.checksum import bytes_of


class HostMemory:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, max(nbytes, 1))
        self.view = memoryview(self._map)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()

    def fill(self, at: int, storage: torch.UntypedStorage, start: int, count: int) -> None:
        """Copy `count` bytes, from `start` on, of a storage to this memory's place `at`."""
        if storage.device.type == "cpu":
            ctypes.memmove(self.address + at, storage.data_ptr() + start, count)
        else:
            self.bytes[at : at + count].copy_(bytes_of(storage)[start : start + count])

    def spill(self, at: int, storage: torch.UntypedStorage, start: int, count: int) -> None:
        """Copy `count` bytes from this memory's place `at` to a storage, from `start` on."""
        if storage.device.type == "cpu":
            ctypes.memmove(storage.data_ptr() + start, self.address + at, count)
        else:
            bytes_of(storage)[start : start + count].copy_(self.bytes[at : at + count])
