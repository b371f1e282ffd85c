"""Commits: which of a card's two copies counts, after how many steps; and what is to be done.

Sectors 0 and 1 take turns at the commit, so that one of them is whole whenever power goes. Sector 2
is the example's own: where to stop. Numbers are little-endian, the last four bytes a CRC-32.
"""

import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import msgspec

from poet.errors import PoetError
from poet.firmware.card.sectors import SECTOR

VERSION = 2
_COMMIT = struct.Struct("<8sIIIIIId32s436x")
_ORDER = struct.Struct("<8sII492x")
_ENTRY = struct.Struct("<8sIII488x")
ORDER_SECTOR = 2


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """What lasts: the copy `side`, as it was after `steps_done` steps."""

    generation: int
    steps_done: int
    side: int
    seed: int
    learning_rate: float
    fingerprint: str

    def packed(self) -> bytes:
        body = _COMMIT.pack(
            b"POETCARD", VERSION, self.generation, self.steps_done, self.side, self.seed, 0,
            self.learning_rate, self.fingerprint.encode(),
        )  # fmt: skip
        return body + struct.pack("<I", zlib.crc32(body))


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the card asks of the example: to train until so many steps are done."""

    stop_at: int
    samples: int

    def packed(self) -> bytes:
        body = _ORDER.pack(b"POETTODO", self.stop_at, self.samples)
        return body + struct.pack("<I", zlib.crc32(body))


def read_commit(start: bytes, name: str = "the card") -> Commit:
    """The newest commit in the first sectors of a card, refused if there is none."""
    problems, found = [], []
    for n in (0, 1):
        try:
            found.append(_commit(start[n * SECTOR : (n + 1) * SECTOR], name))
        except PoetError as error:
            problems.append(error)
    if not found:
        raise next((each for each in problems if "not a card" not in str(each)), problems[0])
    newest = found[0]
    if len(found) == 2 and (found[1].generation - newest.generation) % 2**32 < 2**31:
        newest = found[1]
    return newest


def _commit(sector: bytes, name: str) -> Commit:
    if len(sector) < SECTOR or not sector.startswith(b"POETCARD"):
        raise PoetError(f"{name} is not a card of POET")
    if not _is_whole(sector):
        raise PoetError(f"{name} has a damaged header")
    _, version, generation, done, side, seed, _, rate, mark = _COMMIT.unpack(sector[:-4])
    if version != VERSION:
        raise PoetError(f"{name} is of version {version}; this POET reads version {VERSION}")
    return Commit(
        generation=generation, steps_done=done, side=side & 1, seed=seed, learning_rate=rate,
        fingerprint=mark.decode(errors="replace"),
    )  # fmt: skip


def read_order(start: bytes, name: str = "the card") -> Order:
    sector = start[ORDER_SECTOR * SECTOR : (ORDER_SECTOR + 1) * SECTOR]
    if len(sector) < SECTOR or not sector.startswith(b"POETTODO") or not _is_whole(sector):
        raise PoetError(f"{name} does not say what to do; poet emit writes it")
    _, stop_at, samples = _ORDER.unpack(sector[:-4])
    return Order(stop_at=stop_at, samples=samples)


def read_entry(sector: bytes, generation: int, number: int) -> int | None:
    """The sector that an entry of the journal is of, if it is one of this generation."""
    if len(sector) < SECTOR or not sector.startswith(b"POETUNDO") or not _is_whole(sector):
        return None
    _, of, place, target = _ENTRY.unpack(sector[:-4])
    return target if (of, place) == (generation, number) else None


def _is_whole(sector: bytes) -> bool:
    return struct.unpack("<I", sector[-4:]) == (zlib.crc32(sector[:-4]),)


def commit_of(path: Path) -> Commit:
    """The newest commit of the card in a file."""
    return read_commit(_start_of(path), str(path))


def order_of(path: Path) -> Order:
    return read_order(_start_of(path), str(path))


def write_order(file: BinaryIO, order: Order) -> None:
    file.seek(ORDER_SECTOR * SECTOR)
    file.write(order.packed())


def _start_of(path: Path) -> bytes:
    if not path.is_file():
        raise PoetError(f"{path} is missing, or no ordinary file; poet emit writes it")
    try:
        with path.open("rb") as file:
            return file.read((ORDER_SECTOR + 1) * SECTOR)
    except OSError as error:
        raise PoetError(f"cannot read {path}: {error.strerror or error}") from None
