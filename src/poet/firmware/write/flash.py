"""Flash: what of a network is constant data of its image (`flash.c`).

`frozen` is what no step changes: the firmware reads it there, and it is not on the card. `all` is
the rest as well, as it begins: then a device makes its own card. What begins with one word
everywhere (optimizer state, the weights of norms) takes no room. `flash.safetensors` has the same
numbers for programs that are not C.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from poet.errors import Infeasible
from poet.firmware.boards import Board
from poet.firmware.card.image import IN_FLASH, Arrays, bytes_of, held_type
from poet.firmware.card.layout import CardLayout, InFlash, check_room, lasting
from poet.firmware.card.safetensors import read_safetensors, write_safetensors
from poet.values.graph import Graph

_ALIGNMENT = 8
_IN_A_LINE = 8


class First(NamedTuple):
    """What a weight begins with: bytes of flash from a place on, or a word everywhere."""

    at: int | None = None
    word: int | None = None


class Flash(NamedTuple):
    """The constant data, what each weight begins with as far as it is known, and all of it as
    arrays."""

    content: bytes
    firsts: dict[int, First]
    tensors: Arrays


def flash_of(graph: Graph, card: CardLayout, in_flash: InFlash, tensors: Arrays) -> Flash:
    """Of these first values, what is to lie in flash."""
    content, firsts, kept = bytearray(), dict[int, First](), Arrays()
    for i, at in card.flash.items():
        content += bytes(at - len(content)) + bytes_of(graph, i, tensors[i])
        firsts[i], kept[i] = First(at=at), tensors[i]
    for i in lasting(graph):
        if i in card.flash:
            continue
        if graph.tensors[i].role == "optimizer_state":
            shape = graph.tensors[i].shape or ()
            word = _word(bytes_of(graph, i, np.full(shape, -0.0, held_type(graph, i))))
            if word is not None:
                firsts[i] = First(word=word)
                continue
        if in_flash != "all":
            continue
        data, kept[i] = bytes_of(graph, i, tensors[i]), tensors[i]
        word = _word(data)
        if word is None:
            content += bytes(-len(content) % _ALIGNMENT)
            firsts[i] = First(at=len(content))
            content += data
        else:
            firsts[i] = First(word=word)
    check_room(len(content))
    return Flash(bytes(content), firsts, kept)


def check_flash(flash: Flash, board: Board | None) -> None:
    """Refuse what cannot be in a board's flash, whatever the code takes."""
    if board is not None and len(flash.content) > board.flash_bytes:
        raise Infeasible(
            f"the constant weights take {len(flash.content):,} bytes of flash, and the code comes "
            f"on top; {board.name} has {board.flash_bytes:,}. Without flash= they are on the card",
            proven=True,
        )


def flash_c(flash: Flash) -> str:
    """The constant data as C. Words are little-endian, as all numbers of a card."""
    content = flash.content + bytes(-len(flash.content) % 4)
    words = [f"0x{word:08x}u" for word in np.frombuffer(content, "<u4").tolist()] or ["0"]
    lines = [", ".join(words[n : n + _IN_A_LINE]) for n in range(0, len(words), _IN_A_LINE)]
    return "\n".join(
        [
            f"/* What of the network is constant data: {len(flash.content)} bytes. */",
            '#include "step.h"',
            "",
            "__attribute__((aligned(8))) const uint32_t poet_flash_words[] = {",
            *(f"    {line}," for line in lines),
            "};",
            "",
        ]
    )


def write_tensors(flash: Flash, graph: Graph, folder: Path) -> None:
    if flash.tensors:
        named = {graph.tensors[i].name: array for i, array in flash.tensors.items()}
        write_safetensors(named, folder / IN_FLASH)


def tensors_in(folder: Path, graph: Graph, in_flash: InFlash) -> Arrays:
    """The first values that a folder has in flash, by its own word."""
    if in_flash == "none" or not (folder / IN_FLASH).is_file():
        return {}
    given = read_safetensors(folder / IN_FLASH)
    return {i: given[n] for i in lasting(graph) if (n := graph.tensors[i].name) in given}


def _word(data: bytes) -> int | None:
    """The word of which these bytes are made, if it is one alone."""
    if not data or len(data) % 4:
        return 0 if data and not any(data) else None
    words = np.frombuffer(data, "<u4")
    return int(words[0]) if (words == words[0]).all() else None
