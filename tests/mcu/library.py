"""The library of a firmware folder in this process: its C behind ctypes, a card in memory."""

import ctypes
import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poet.firmware.card.image import held_type, read_records
from poet.firmware.card.layout import inputs_of, lasting
from poet.firmware.place.lifetimes import lifetimes
from poet.firmware.write.folder import FLAGS, read_folder
from poet.firmware.write.inference import Output, inference_of

_MOVE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32
)
_SAMPLE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32,
    ctypes.c_void_p, ctypes.c_uint32,
)  # fmt: skip
_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_BESIDE = """
#include "poet.h"
unsigned long size_of_poet(void);
unsigned long size_of_poet(void)
{
    return sizeof(struct poet);
}
"""
_numbers = itertools.count()


class _Io(ctypes.Structure):
    _fields_ = (
        ("user", ctypes.c_void_p), ("read", _MOVE), ("write", _MOVE), ("flush", _CALL),
        ("sample", _SAMPLE), ("clock", ctypes.c_void_p), ("log", ctypes.c_void_p),
        ("watchdog", _CALL),
    )  # fmt: skip


class Library:
    """A network in C, with its folder's card; `card` is what a power cut leaves."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.made, self.plan = read_folder(folder)
        self.graph = self.plan.graph
        self.records = read_records(folder / "card.img", self.graph, self.made.card)
        self.card = bytearray((folder / "card.img").read_bytes())
        (folder / "size.c").write_text(_BESIDE)
        path = folder / f"library-{next(_numbers)}.so"
        files = [str(x) for x in folder.glob("*.c") if x.name not in ("main.c", "board.c")]
        subprocess.run(
            ["cc", *FLAGS.split(), *words, "-fPIC", "-shared", "-o", str(path), *files], check=True
        )
        self.c = ctypes.CDLL(str(path))
        self.c.size_of_poet.restype = ctypes.c_ulong
        self.c.poet_error_text.restype = ctypes.c_char_p
        self.context = ctypes.create_string_buffer(self.c.size_of_poet())
        self.io = _Io(read=_MOVE(self._read), write=_MOVE(self._write), sample=_SAMPLE(self._give))
        self.is_worn_out = False
        self.samples: list[Sequence[np.ndarray[Any, Any]]] = []

    def _read(self, _: Any, offset: int, to: int, count: int) -> int:
        if offset + count > len(self.card):
            return 1
        ctypes.memmove(to, bytes(self.card[offset : offset + count]), count)
        return 0

    def _write(self, _: Any, offset: int, source: int, count: int) -> int:
        if self.is_worn_out or offset + count > len(self.card):
            return 1
        self.card[offset : offset + count] = ctypes.string_at(source, count)
        return 0

    def _give(self, _: Any, step: int, number: int, first: int, to: int, count: int) -> int:
        if step >= len(self.samples):
            return 1
        content = self.samples[step][number].tobytes()
        ctypes.memmove(to, content[first : first + count], count)
        return 0

    # ---- the interface ----

    def init(self) -> int:
        return int(self.c.poet_init(self.context, ctypes.byref(self.io)))

    def load(self) -> int:
        return int(self.c.poet_load(self.context))

    def save(self) -> int:
        return int(self.c.poet_save(self.context))

    def train(self, batch: Sequence[np.ndarray[Any, Any]] | int | None) -> float:
        """A step with this batch, with a sample of the card, or with the next of the callback."""
        loss = ctypes.c_float()
        if batch is None:
            error = self.c.poet_train_next(self.context, ctypes.byref(loss))
        elif isinstance(batch, int):
            error = self.c.poet_train_stored(self.context, batch, ctypes.byref(loss))
        else:
            error = self.c.poet_train_step(self.context, _pointers(batch), ctypes.byref(loss))
        self.check(error)
        return loss.value

    def infer(self, inputs: Sequence[np.ndarray[Any, Any] | None]) -> list[np.ndarray[Any, Any]]:
        made = [np.full(x.answer.shape, 99, x.storage.dtype) for x in self.outputs]
        self.check(self.c.poet_infer(self.context, _pointers(inputs), _pointers(made)))
        return made

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        found = {}
        for n, i in enumerate(lasting(self.graph)):
            tensor = self.graph.tensors[i]
            x = np.empty(tensor.shape or (), held_type(self.graph, i))
            self.check(self.c.poet_get_weights(self.context, n, 0, _at(x), x.nbytes))
            found[tensor.name] = x
        return found

    @property
    def outputs(self) -> tuple[Output, ...]:
        return inference_of(self.plan, lifetimes(self.plan)).outputs

    def batch(self, number: int) -> list[np.ndarray[Any, Any]]:
        """A sample of the card."""
        return [self.records[number][i] for i in inputs_of(self.graph)]

    def check(self, error: int) -> None:
        assert error == 0, self.c.poet_error_text(error).decode()


def _at(x: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def _pointers(arrays: Sequence[np.ndarray[Any, Any] | None]) -> Any:
    kind = ctypes.c_void_p * len(arrays)
    return kind(*(None if x is None else x.ctypes.data for x in arrays))
