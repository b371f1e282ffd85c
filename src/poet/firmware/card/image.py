"""The image of a card: written new, and read as it is found, whatever a power cut left.

Every byte that is read comes out of a sector whose checksum holds; what a step had begun to change
in its place is taken from the journal.
"""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from poet.errors import PoetError
from poet.firmware.card.commits import (
    Commit,
    Order,
    commit_of,
    read_entry,
)
from poet.firmware.card.layout import CardLayout, lasting
from poet.firmware.card.safetensors import Array, read_safetensors
from poet.firmware.card.sectors import HELD, SECTOR, held, sealed
from poet.values.graph import Graph, printable

Arrays = dict[int, np.ndarray[Any, Any]]
"""Contents of tensors, by their numbers."""
IN_FLASH = "flash.safetensors"
"""Beside a card, what of its network is in flash."""
HELD_TYPES = ("float32", "float64", "int64", "int32", "bool", "uint8")
"""Element types that a card can hold."""


def write_image(
    path: Path,
    graph: Graph,
    card: CardLayout,
    commit: Commit,
    order: Order,
    tensors: Arrays,
    records: list[Arrays],
) -> None:
    """An image with these tensors in their places and these samples; what is not given is zero."""
    with path.open("wb") as file:
        file.truncate(card.image_bytes)
        file.write(commit.packed())
        file.seek(2 * SECTOR)
        file.write(order.packed())

        def put(sector: int, content: bytes, stamp: int) -> None:
            file.seek(sector * SECTOR)
            file.write(sealed(content, sector, stamp))

        shared: dict[int, bytearray] = {}
        for i in lasting(graph):
            if i in card.flash:
                continue
            at, data = card.place(i, commit.side), bytes_of(graph, i, tensors[i])
            if at % HELD == 0 and len(data) > HELD // 2:
                put(at // HELD, data, commit.steps_done if i in card.copies else 0)
            else:
                sector = shared.setdefault(at // HELD, bytearray(HELD))
                sector[at % HELD : at % HELD + len(data)] = data
        changing = range(card.copy_at, card.copy_at + 2 * card.copy_sectors)
        for place, together in shared.items():
            put(place, bytes(together), commit.steps_done if place in changing else 0)
        empty = bytes(card.record_bytes)
        if card.batch_at is not None:
            put(card.batch_at // HELD, empty, 0)
        for n, record in enumerate(records):
            content = bytearray(empty)
            for i, array in record.items():
                data, at = bytes_of(graph, i, array), card.record[i]
                content[at : at + len(data)] = data
            put((card.data_at + n * card.record_bytes) // HELD, bytes(content), 0)


def read_tensors(path: Path, graph: Graph, card: CardLayout) -> Arrays:
    """What lasts: parameters, buffers and optimizer state as they were committed last.

    What is in flash comes from the file of it beside the card.
    """
    image, commit = _image(path, graph, card)
    found = {}
    constant = read_safetensors(path.with_name(IN_FLASH)) if card.flash else {}
    for i in lasting(graph):
        tensor = graph.tensors[i]
        if i in card.flash:
            found[i] = _constant(constant, path.with_name(IN_FLASH), graph, i)
        elif tensor.dtype is not None:
            at = card.place(i, commit.side)
            stamp = commit.steps_done if i in card.copies else 0
            found[i] = _array_at(image, graph, i, at, stamp)
    return found


def _constant(given: dict[str, Array], path: Path, graph: Graph, i: int) -> np.ndarray[Any, Any]:
    tensor = graph.tensors[i]
    array = given.get(tensor.name)
    if array is None or array.shape != tuple(tensor.shape or ()) or array.dtype != tensor.dtype:
        raise PoetError(f"{path} does not have {graph.tensor_text(i)} as it is")
    return array


def _image(path: Path, graph: Graph, card: CardLayout) -> tuple[np.ndarray[Any, Any], Commit]:
    """The bytes of a card of this network, as its layout says, without what is half done."""
    commit = commit_of(path)
    image = np.memmap(path, dtype=np.uint8, mode="r")
    if len(image) < card.image_bytes:
        raise PoetError(f"{path} has {len(image):,} bytes; it should have {card.image_bytes:,}")
    if commit.fingerprint != graph.fingerprint:
        raise PoetError(f"{path} is the card of another network")
    return _undone(image, card, commit), commit


def _undone(image: np.ndarray[Any, Any], card: CardLayout, commit: Commit) -> np.ndarray[Any, Any]:
    """The image with the sectors of its journal back in their places."""
    kept = []
    for number in range(card.journal_entries):
        at = (card.journal_at + 2 * number + 1) * SECTOR
        target = read_entry(bytes(image[at : at + SECTOR]), commit.generation, number)
        if target is None or not card.rows_at <= target < card.rows_at + card.row_sectors:
            break
        kept.append((number, target))
    if not kept:
        return image
    whole = np.array(image)
    for number, target in reversed(kept):
        at = (card.journal_at + 2 * number) * SECTOR
        whole[target * SECTOR : (target + 1) * SECTOR] = image[at : at + SECTOR]
    return whole


def read_records(path: Path, graph: Graph, card: CardLayout) -> list[Arrays]:
    """The samples of a card, each as the inputs of a step."""
    image, _ = _image(path, graph, card)
    return [
        {
            i: _array_at(image, graph, i, card.data_at + n * card.record_bytes + at, 0)
            for i, at in card.record.items()
        }
        for n in range(card.samples)
    ]


def _array_at(
    image: np.ndarray[Any, Any], graph: Graph, i: int, at: int, stamp: int
) -> np.ndarray[Any, Any]:
    tensor, dtype = graph.tensors[i], held_type(graph, i)
    raw = held(image, at, tensor.nbytes, stamp, printable(tensor.name))
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


def bytes_of(graph: Graph, i: int, array: np.ndarray[Any, Any]) -> bytes:
    tensor = graph.tensors[i]
    data = np.ascontiguousarray(array, dtype=held_type(graph, i)).tobytes()
    if len(data) != tensor.nbytes:
        raise PoetError(
            f"{graph.tensor_text(i)} takes {tensor.nbytes:,} bytes; {len(data):,} were given"
        )
    return data
