"""Tensors from and to safetensors files, without torch."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from poet.errors import PoetError

Array = np.ndarray[Any, Any]
_CODES = {
    "float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "bool": "BOOL",
    "uint8": "U8",
}  # fmt: skip
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def read_safetensors(path: Path) -> dict[str, Array]:
    """The tensors of a file, by name."""
    try:
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        body, found = raw[8 + length :], {}
        for name, about in header.items():
            if name == "__metadata__":
                continue
            if about["dtype"] not in _DTYPES:
                raise ValueError(f"{name} is of {about['dtype']}; known are {', '.join(_DTYPES)}")
            begin, end = about["data_offsets"]
            flat = np.frombuffer(body[begin:end], dtype=_DTYPES[about["dtype"]])
            found[name] = flat.reshape(about["shape"])
        return found
    except OSError as error:
        raise PoetError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, ValueError, TypeError, struct.error) as error:
        raise PoetError(f"{path} is no safetensors file that a card can take: {error}") from error


def write_safetensors(tensors: dict[str, Array], path: Path) -> None:
    """A file with these tensors."""
    header, at = {}, 0
    for name, array in tensors.items():
        end = at + array.nbytes
        header[name] = {
            "dtype": _CODES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [at, end]
        }  # fmt: skip
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
