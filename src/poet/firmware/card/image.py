"""The card: one image with parameters, optimizer state, data and room for pages.

    sector 0     header: magic, version, steps to do and done, samples, seed, learning rate, the
                 network's fingerprint, checksum
    then         one slot for each parameter, buffer and piece of optimizer state
    then         one slot for each tensor that the plan pages out
    then         the samples, one record after the other: the inputs of a step

Slots and records begin at sectors. Numbers are little-endian.
"""

import struct
import zlib
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from poet.calls.updates import SCALARS, UPDATES
from poet.errors import PoetError
from poet.values.graph import Graph, printable
from poet.values.plan import Plan
from poet.values.schedule import PERSISTENT, PageIn, PageOut

Arrays = dict[int, np.ndarray[Any, Any]]
"""Contents of tensors, by their numbers."""
HELD_TYPES = ("float32", "float64", "int64", "int32", "bool", "uint8")
"""Element types that a card can hold."""
SECTOR = 512
MAGIC, VERSION = b"POETCARD", 1
_HEADER = struct.Struct("<8sIIIIIId32s436x")
_MOST_BYTES = 2**32 - SECTOR


class CardLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything lies on the card, in bytes. Tensors are named by number, inputs too."""

    slots: dict[int, int]
    record: dict[int, int]
    record_bytes: int
    data_at: int
    samples: int

    @property
    def image_bytes(self) -> int:
        return self.data_at + self.samples * self.record_bytes


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first sector of a card."""

    steps_to_do: int
    steps_done: int
    samples: int
    data_at: int
    seed: int
    learning_rate: float
    fingerprint: str

    def packed(self) -> bytes:
        body = _HEADER.pack(
            MAGIC, VERSION, self.steps_to_do, self.steps_done, self.samples, self.data_at,
            self.seed, self.learning_rate, self.fingerprint.encode(),
        )  # fmt: skip
        return body + struct.pack("<I", zlib.crc32(body))


def scalars(graph: Graph) -> dict[str, int]:
    """The tensors of the learning rate and of the step count, by the updates' names for them."""
    found: dict[str, int] = {}
    for op in graph.ops:
        for call in op.calls:
            if call.kind not in UPDATES:
                continue
            for name in SCALARS:
                argument = call.arguments.get(name)
                if not isinstance(argument, dict):
                    continue
                if found.setdefault(name, argument["tensor"]) != argument["tensor"]:
                    raise PoetError(f"C is written for one learning rate; {graph.name} has several")
    return found


def inputs_of(graph: Graph) -> tuple[int, ...]:
    """The tensors of a batch, in the order of a record."""
    special = set(scalars(graph).values())
    return tuple(i for i in graph.given if graph.tensors[i].role == "input" and i not in special)


def read_header(image: bytes, name: str = "the card") -> Header:
    """The header of an image, refused if it is not one."""
    body, checksum = image[: _HEADER.size], image[_HEADER.size : SECTOR]
    if len(image) < SECTOR or not body.startswith(MAGIC):
        raise PoetError(f"{name} is not a card of POET")
    if struct.unpack("<I", checksum) != (zlib.crc32(body),):
        raise PoetError(f"{name} has a damaged header")
    _, version, todo, done, samples, data_at, seed, rate, mark = _HEADER.unpack(body)
    if version != VERSION:
        raise PoetError(f"{name} is of version {version}; this POET reads version {VERSION}")
    return Header(
        steps_to_do=todo, steps_done=done, samples=samples, data_at=data_at, seed=seed,
        learning_rate=rate, fingerprint=mark.decode(errors="replace"),
    )  # fmt: skip


def header_of(path: Path) -> Header:
    """The header of the card in a file."""
    if not path.is_file():
        raise PoetError(f"{path} is missing, or no ordinary file; poet emit writes it")
    try:
        with path.open("rb") as file:
            return read_header(file.read(SECTOR), str(path))
    except OSError as error:
        raise PoetError(f"cannot read {path}: {error.strerror or error}") from None


def card_layout(plan: Plan, samples: int) -> CardLayout:
    """Slots for what lasts and for what is paged, and records with the inputs of a step."""
    graph, at = plan.graph, SECTOR
    slots: dict[int, int] = {}
    paged = {s.tensor for s in plan.schedule if isinstance(s, PageIn | PageOut)}
    for run in plan.streamed_runs:
        costs = plan.costs.ops[run.op][run.variant]
        paged |= {stream.tensor for stream in (*costs.reads, *costs.writes)}
    # Inputs that are not in RAM when a step begins are read from its record.
    paged -= {i for i in inputs_of(graph) if plan.budget.start[i] == "store"}
    lasting = [i for i in graph.given if graph.tensors[i].role in PERSISTENT]
    _check_names(graph, lasting)
    for i in (*lasting, *sorted(paged - set(lasting))):
        if graph.slot[i] in slots:
            slots[i] = slots[graph.slot[i]]
            continue
        slots[i] = at
        at += _sectors(graph.tensors[i].nbytes)
    for old, new in graph.heir.items():
        if old in slots:
            slots.setdefault(new, slots[old])
    offsets, length = {}, 0
    for i in inputs_of(graph):
        offsets[i] = length
        length += -(-graph.tensors[i].nbytes // 8) * 8
    made = CardLayout(
        slots=slots, record=offsets, record_bytes=_sectors(length), data_at=at, samples=samples
    )
    if made.image_bytes > _MOST_BYTES:
        raise PoetError(f"the card would take {made.image_bytes:,} bytes; it may have 4 GiB")
    return made


def _check_names(graph: Graph, lasting: list[int]) -> None:
    """Weights come from files by name, and go back by name."""
    names = Counter(graph.tensors[i].name for i in (*lasting, *inputs_of(graph)))
    for name, count in names.items():
        if count > 1:
            raise PoetError(
                f"{count} tensors on the card are called {printable(name)!r}; they need names of "
                "their own"
            )


def write_image(
    path: Path,
    graph: Graph,
    card: CardLayout,
    header: Header,
    tensors: Arrays,
    records: list[Arrays],
) -> None:
    """An image with these tensors in their slots and these samples; what is not given is zero."""
    with path.open("wb") as file:
        file.truncate(card.image_bytes)
        file.write(header.packed())
        for i, array in tensors.items():
            file.seek(card.slots[i])
            file.write(_bytes_of(graph, i, array))
        for n, record in enumerate(records):
            for i, array in record.items():
                file.seek(card.data_at + n * card.record_bytes + card.record[i])
                file.write(_bytes_of(graph, i, array))


def read_tensors(path: Path, graph: Graph, card: CardLayout) -> Arrays:
    """What lasts: parameters, buffers and optimizer state as they are on the card."""
    image = _image(path, graph, card)
    found = {}
    for i in graph.given:
        tensor = graph.tensors[i]
        if tensor.role in PERSISTENT and tensor.dtype is not None:
            if i not in card.slots:
                raise PoetError(f"{path} has no slot for {graph.tensor_text(i)}")
            found[i] = _array_at(image, graph, i, card.slots[i])
    return found


def _image(path: Path, graph: Graph, card: CardLayout) -> np.ndarray[Any, Any]:
    """The bytes of a card of this network, as its layout says."""
    header = header_of(path)
    image = np.memmap(path, dtype=np.uint8, mode="r")
    if len(image) < card.image_bytes:
        raise PoetError(f"{path} has {len(image):,} bytes; it should have {card.image_bytes:,}")
    if header.fingerprint != graph.fingerprint:
        raise PoetError(f"{path} is the card of another network")
    return image


def read_records(path: Path, graph: Graph, card: CardLayout) -> list[Arrays]:
    """The samples of a card, each as the inputs of a step."""
    image = _image(path, graph, card)
    return [
        {
            i: _array_at(image, graph, i, card.data_at + n * card.record_bytes + at)
            for i, at in card.record.items()
        }
        for n in range(card.samples)
    ]


def _array_at(image: np.ndarray[Any, Any], graph: Graph, i: int, at: int) -> np.ndarray[Any, Any]:
    tensor, dtype = graph.tensors[i], held_type(graph, i)
    raw, count = bytes(image[at : at + tensor.nbytes]), prod(tensor.shape or ())
    if at < 0 or len(raw) != count * np.dtype(dtype).itemsize:
        raise PoetError(
            f"{graph.tensor_text(i)} has {count:,} elements of {dtype}; at byte {at:,} the card "
            f"has {len(raw):,} bytes for it"
        )
    return np.frombuffer(raw, dtype=dtype).reshape(tensor.shape or ())


def held_type(graph: Graph, i: int) -> str:
    """The element type of a tensor on a card, refused if no card can hold it as the graph says."""
    tensor = graph.tensors[i]
    if tensor.dtype not in HELD_TYPES:
        text = printable(str(tensor.dtype))[:40]
        raise PoetError(f"{graph.tensor_text(i)} is of {text}, which no card holds yet")
    nbytes = prod(tensor.shape or ()) * np.dtype(tensor.dtype).itemsize
    if nbytes != tensor.nbytes:
        raise PoetError(
            f"{graph.tensor_text(i)} of {tensor.nbytes:,} bytes cannot be on a card: "
            f"{tensor.dtype} {list(tensor.shape or ())} takes {nbytes:,}"
        )
    return tensor.dtype


def _bytes_of(graph: Graph, i: int, array: np.ndarray[Any, Any]) -> bytes:
    tensor = graph.tensors[i]
    data = np.ascontiguousarray(array, dtype=held_type(graph, i)).tobytes()
    if len(data) != tensor.nbytes:
        raise PoetError(
            f"{graph.tensor_text(i)} takes {tensor.nbytes:,} bytes; {len(data):,} were given"
        )
    return data


def _sectors(nbytes: int) -> int:
    return -(-nbytes // SECTOR) * SECTOR
