"""A checksum of a storage, cheap enough to run beside the training it protects.

The bytes are read as 64-bit words, laid out in rows of 513, and added up by column; a CRC-32 of the
column sums, piece after piece, and of the few bytes left over is the checksum. Adding is some seven
times as fast as a CRC over all bytes, which would be slower than the disk.

What goes wrong on disks is found: a change within 4 KiB, such as a flipped bit or a block that is
stale or zero, touches each column at most once and so always changes the sums. Since 513 is not the
512 words of a block, a block at a wrong place falls into other columns. What remains is the chance
that two CRC-32 agree, one in four billion.

The pieces are small for a reason: torch would divide larger sums among threads, and those are busy.
"""

import ctypes
import zlib

import torch

_COLUMNS = 513
_ROW_BYTES = 8 * _COLUMNS
_PIECE_ROWS = 63  # 32,319 words; torch divides sums of 32,768 and more among threads
_PIECE_BYTES = _PIECE_ROWS * _ROW_BYTES


class Checksum:
    """The checksum of a storage's first bytes, taken as they become known."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._nbytes = storage.nbytes()
        self._bytes = bytes_of(storage)
        self._sums = torch.empty(_COLUMNS, dtype=torch.int64, device=storage.device)
        self._at = 0
        self._crc = 0

    def advance(self, known_bytes: int) -> None:
        """The storage's first `known_bytes` bytes are final."""
        while known_bytes - self._at >= _PIECE_BYTES:
            self._add(_PIECE_ROWS)

    def value(self) -> int:
        """The checksum, now that all bytes are final. Lets go of the storage."""
        self.advance(self._nbytes)
        rows = (self._nbytes - self._at) // _ROW_BYTES
        if rows:
            self._add(rows)
        rest = self._bytes[self._at :]
        self._bytes = rest[:0].clone()
        self._crc = _crc(rest, self._crc)
        return self._crc

    def _add(self, rows: int) -> None:
        end = self._at + rows * _ROW_BYTES
        table = self._bytes[self._at : end].view(torch.int64).view(rows, _COLUMNS)
        torch.sum(table, 0, out=self._sums)
        self._crc = _crc(self._sums, self._crc)
        self._at = end


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as a vector of bytes, not a copy."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _crc(tensor: torch.Tensor, crc: int) -> int:
    host = tensor.cpu()
    return zlib.crc32(ctypes.string_at(host.data_ptr(), host.nbytes), crc)
