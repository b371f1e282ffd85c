"""Tensors from and to safetensors files, without torch."""

import json
import struct
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from poet.errors import PoetError
from poet.values.files import write_parts
from poet.values.graph import printable

Array = np.ndarray[Any, Any]
_CODES = {
    "float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "bool": "BOOL",
    "uint8": "U8",
}  # fmt: skip
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def read_safetensors(path: Path) -> dict[str, Array]:
    """The tensors of a file, by name."""
    if path.exists() and not path.is_file():
        raise PoetError(f"{path} cannot be read: it is no ordinary file")
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            size = path.stat().st_size
            header = json.loads(file.read(min(length, size)))
        if not isinstance(header, dict):
            raise ValueError("its header is no table of tensors")
        room, found = max(0, size - 8 - length), {}
        body = np.memmap(path, np.uint8, "r", 8 + length) if room else np.zeros(0, np.uint8)
        for name, about in header.items():
            if name == "__metadata__":
                continue
            if about["dtype"] not in _DTYPES:
                raise ValueError(f"{name} is of {about['dtype']}; known are {', '.join(_DTYPES)}")
            begin, end = about["data_offsets"]
            if not 0 <= begin <= end <= room or min((0, *about["shape"])) < 0:
                raise ValueError(f"{printable(name)} lies outside of the file")
            flat = body[begin:end].view(_DTYPES[about["dtype"]])
            found[name] = flat.reshape(about["shape"])
        return found
    except OSError as error:
        raise PoetError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, ValueError, TypeError, RecursionError, struct.error) as error:
        raise PoetError(f"{path} is no safetensors file that a card can take: {error}") from error


def write_safetensors(tensors: dict[str, Array], path: Path) -> None:
    """A file with these tensors, whole or not at all."""
    header, at = {}, 0
    for name, array in tensors.items():
        end = at + array.nbytes
        header[name] = {
            "dtype": _CODES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [at, end]
        }  # fmt: skip
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    arrays = (np.ascontiguousarray(array).tobytes() for array in tensors.values())
    write_parts(chain([struct.pack("<Q", len(text)), text], arrays), path, force=True)
