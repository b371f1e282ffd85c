"""Tensors in a file, one at a time: the safetensors format, streamed.

A file is 8 bytes with the length of the header, a header in JSON (for each name the dtype, shape
and place of a tensor, and `__metadata__`, texts by name), and the tensors' bytes. The library
writes a file from tensors that are all in RAM; here each is asked for when its turn comes, and goes
to and from the disk in chunks, so that a model larger than RAM can be kept and found again.

Every file carries a checksum in its metadata: of all its bytes, the header included, where the
checksum itself counts as zeros. `TornFile` says what is wrong with a file that does not agree.

This module knows nothing of models or trainers, and leaves to its caller where files are and how
they get their names.
"""

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from poet.errors import PoetError

CHUNK_BYTES = 256 * 2**10
_MAX_HEADER_BYTES = 100 * 2**20
_CHECKSUM = "checksum"
_DIGEST_BYTES = 16
_ZEROS = b"0" * (2 * _DIGEST_BYTES)
_CODES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
_CODE_OF = {dtype: code for code, dtype in _CODES.items()}


class TornFile(Exception):
    """What is wrong with a file, in words."""


class Kind(NamedTuple):
    """What a tensor is, without its bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Item(NamedTuple):
    """A tensor to be written: `present` brings it into RAM for as long as it is needed."""

    kind: Kind
    present: Callable[[], AbstractContextManager[torch.Tensor]]


class TensorPlace(NamedTuple):
    """A tensor in a file."""

    kind: Kind
    start: int
    """Its first byte, counted from the start of the file."""


class Content(NamedTuple):
    """What a file's header says."""

    places: dict[str, TensorPlace]
    metadata: dict[str, str]

    @property
    def checksum(self) -> str:
        """The one that the file itself tells."""
        return self.metadata.get(_CHECKSUM, "")


def kind_of(tensor: torch.Tensor) -> Kind:
    return Kind(tensor.dtype, tuple(tensor.shape))


def write_tensors(file: Any, items: Mapping[str, Item], metadata: Mapping[str, str]) -> str:
    """Write all to an empty file, open for bytes without a buffer. Gives the checksum."""
    # Wide elements first: then each tensor starts where its elements may.
    order = sorted(items, key=lambda name: (-items[name].kind.dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {**metadata, _CHECKSUM: _ZEROS.decode()}}
    at = 0
    for name in order:
        kind = items[name].kind
        if kind.dtype not in _CODE_OF:
            raise PoetError(f"{name} is {kind.dtype}, which safetensors files cannot hold")
        header[name] = {
            "dtype": _CODE_OF[kind.dtype],
            "shape": kind.shape,
            "data_offsets": (at, at + kind.nbytes),
        }
        at += kind.nbytes
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    digest = hashlib.blake2b(start, digest_size=_DIGEST_BYTES)
    _write(file, memoryview(start))
    for name in order:
        with items[name].present() as tensor:
            for part in _parts(tensor.detach()):
                ready = part.contiguous().cpu()
                for chunk in _chunks(ready):
                    digest.update(chunk)
                    _write(file, chunk)
    checksum = digest.hexdigest()
    file.seek(0)
    _write(file, memoryview(start.replace(_ZEROS, checksum.encode(), 1)))
    return checksum


def verify(path: Path) -> Content:
    """What is in a file, after a look at all of it: size and checksum must be right."""
    with _opened(path) as file:
        content, start = _header(file)
        told = content.checksum
        blank = start.replace(told.encode(), _ZEROS, 1)
        if len(told) != len(_ZEROS) or blank == start:
            raise TornFile("it has no checksum")
        digest = hashlib.blake2b(blank, digest_size=_DIGEST_BYTES)
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
        if digest.hexdigest() != told:
            raise TornFile(f"its checksum is {digest.hexdigest()} instead of {told}")
        return content


def fill(path: Path, places: Iterable[tuple[TensorPlace, Callable[[], Any]]]) -> None:
    """Read tensors, one after the other, each into the one that its context manager gives."""
    with _opened(path) as file:
        for place, present in places:
            with present() as tensor:
                file.seek(place.start)
                _fill(file, tensor.detach())


def _fill(file: Any, tensor: torch.Tensor) -> None:
    for part in _parts(tensor):
        straight = part.is_contiguous() and part.device.type == "cpu"
        landing = part if straight else torch.empty(part.shape, dtype=part.dtype)
        for chunk in _chunks(landing):
            _read(file, chunk)
        if not straight:
            part.copy_(landing)


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor in pieces whose elements follow one another in the order of their indices.

    Pieces are as large as they come where no copy is needed, and else small.
    """
    if not tensor.numel():
        return
    if tensor.is_contiguous() and tensor.device.type == "cpu":
        yield tensor
        return
    if tensor.ndim == 0:
        yield tensor
        return
    rows = max(1, CHUNK_BYTES // max(1, tensor[0].nbytes))
    if 0 in tensor.stride():  # an expanded tensor: elements in one place are written one by one
        rows = 1
    for at in range(0, len(tensor), rows):
        part = tensor[at : at + rows]
        if len(part) == 1:
            yield from _parts(part[0])
        else:
            yield part


def _chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a contiguous tensor in host memory, not copied, writable; it must stay alive."""
    whole = memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
    for at in range(0, len(whole), CHUNK_BYTES):
        yield whole[at : at + CHUNK_BYTES]


def _read(file: Any, content: memoryview) -> None:
    done = 0
    while done < len(content):
        count = file.readinto(content[done:])
        if not count:
            raise TornFile("it ends too early")
        done += count


def _write(file: Any, content: memoryview) -> None:
    done = 0
    while done < len(content):
        done += file.write(content[done:])


def _opened(path: Path) -> Any:
    try:
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        raise TornFile("it is missing") from None
    except OSError as error:
        raise TornFile(error.strerror or str(error)) from None


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _header(file: Any) -> tuple[Content, bytes]:
    """What the header says, and all bytes before the tensors'."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
        raise TornFile(f"with {size:,} bytes it is shorter than its header")
    text = bytearray(length)
    _read(file, memoryview(text))
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        given = raw.pop("__metadata__", None)
        metadata = msgspec.json.decode(given or b"null", type=dict[str, str] | None) or {}
        entries = {name: msgspec.json.decode(each, type=_Entry) for name, each in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise TornFile("its header cannot be read") from None
    places, end = {}, 0
    for name, entry in sorted(entries.items(), key=lambda pair: pair[1].data_offsets):
        if entry.dtype not in _CODES:
            raise TornFile(f"{name} has the dtype {entry.dtype}, which is not known")
        kind = Kind(_CODES[entry.dtype], entry.shape)
        if entry.data_offsets != (end, end + kind.nbytes) or min(entry.shape, default=0) < 0:
            raise TornFile(f"its header gives {name} a place that cannot be")
        places[name] = TensorPlace(kind, 8 + length + end)
        end += kind.nbytes
    if size != 8 + length + end:
        raise TornFile(f"it has {size:,} bytes instead of {8 + length + end:,}")
    return Content(places, metadata), first + bytes(text)
