"""A checksum cheap enough to run beside the training it protects.

The bytes are read as 64-bit words, laid out in rows of 513, and added up by column; a CRC-32 of the
column sums, piece after piece, and of the few bytes left over is the checksum. Adding is some seven
times as fast as a CRC over all bytes, which would be slower than the disk.

What goes wrong on disks is found: a change within 4 KiB, such as a flipped bit or a block that is
stale or zero, touches each column of a piece at most once and so always changes its sums. Since 513
is not the 512 words of a block, a block at a wrong place falls into other columns. What remains is
the chance that two CRC-32 agree, one in four billion.

The pieces are small for a reason: torch would divide larger sums among threads, and those are busy.
"""

import ctypes
import zlib

import torch

_COLUMNS = 513
_PIECE_ROWS = 63  # 32,319 words; torch divides sums of 32,768 and more among threads
_WORD_BYTES = 8


def checksum(data: torch.Tensor) -> int:
    """Of a vector of bytes in host memory that starts at a word."""
    count = data.numel() // _WORD_BYTES
    if count < _COLUMNS:  # a block, of a page that moves in parts: nothing to add up
        return zlib.crc32(_content(data))
    words = data[: count * _WORD_BYTES].view(torch.int64)
    sums = torch.empty(_COLUMNS, dtype=torch.int64)
    at, crc = 0, 0
    while rows := min((count - at) // _COLUMNS, _PIECE_ROWS):
        end = at + rows * _COLUMNS
        torch.sum(words[at:end].view(rows, _COLUMNS), 0, out=sums)
        crc = zlib.crc32(_content(sums), crc)
        at = end
    return zlib.crc32(_content(data[at * _WORD_BYTES :]), crc)


def _content(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
