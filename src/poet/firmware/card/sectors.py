"""Sectors: what a card is made of. Each holds 508 bytes, and a checksum of them, of its place, and
of the step that wrote it.

An address counts the bytes that sectors hold. `card.c` does the same in C.
"""

from typing import Any

import numpy as np

from poet.errors import PoetError
from poet.values.device import SECTOR_BYTES

SECTOR = SECTOR_BYTES
HELD = SECTOR - 4
Bytes = np.ndarray[Any, Any]


def sectors_of(nbytes: int) -> int:
    """How many sectors hold so many bytes."""
    return -(-nbytes // HELD)


def sealed(content: bytes, first: int, stamp: int) -> bytes:
    """Whole sectors with this content, from this sector on; the rest of the last one is 0."""
    count = sectors_of(len(content))
    held = np.zeros(count * HELD, np.uint8)
    held[: len(content)] = np.frombuffer(content, np.uint8)
    made = np.empty((count, SECTOR // 4), "<u4")
    made[:, :-1] = held.view("<u4").reshape(count, HELD // 4)
    made[:, -1] = _checks(made[:, :-1], first, stamp)
    return made.tobytes()


def held(image: Bytes, address: int, nbytes: int, stamp: int, what: str) -> bytes:
    """So many bytes from an address on, out of sectors that are whole."""
    first, beyond = address // HELD, sectors_of(address + nbytes)
    raw = np.ascontiguousarray(image[first * SECTOR : beyond * SECTOR])
    if address < 0 or len(raw) < (beyond - first) * SECTOR:
        raise PoetError(f"the card ends before {what}")
    words = raw.view("<u4").reshape(-1, SECTOR // 4)
    wrong = np.flatnonzero(_checks(words[:, :-1], first, stamp) != words[:, -1])
    if len(wrong):
        raise PoetError(
            f"the card is damaged: sector {first + int(wrong[0]):,}, which holds {what}, is not "
            "what was written there"
        )
    start = address - first * HELD
    return words[:, :-1].tobytes()[start : start + nbytes]


def _checks(words: Bytes, first: int, stamp: int) -> Bytes:
    with np.errstate(over="ignore"):
        place = np.arange(first, first + len(words)).astype("<u4") + np.uint32(1)
        stamped = np.array([stamp], "<u4") + np.uint32(1)
        sums = place * np.uint32(0x9E3779B1) ^ stamped * np.uint32(0x85EBCA6B)
        for column in range(words.shape[1]):
            sums = sums ^ words[:, column]
            sums = sums << np.uint32(13) | sums >> np.uint32(19)
            sums = sums * np.uint32(5) + np.uint32(0xE6546B64)
    return sums
