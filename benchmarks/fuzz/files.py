"""Files: how each format is taken apart, mutated, and put together again with its hashes right.

A mutant whose checksum is wrong is refused at the door; with it repaired, it reaches the depths.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from benchmarks.fuzz.mutations import (
    NUMBERS,
    OTHERS,
    STRINGS,
    encoded,
    mutated_bytes,
    mutated_tree,
)
from poet.values.graph import Graph

BY_BYTES = 0.12
"""The share of mutants that are damaged byte by byte."""
Mutator = Callable[[bytes, Random], bytes]
_ZEROS = "0" * 32


def mutated_json(data: bytes, chance: Random) -> bytes:
    """Any JSON file; of a graph the ops more often than the rest."""
    if chance.random() < BY_BYTES:
        return mutated_bytes(data, chance)
    tree = msgspec.json.decode(data)
    graph = tree["graph"] if isinstance(tree.get("graph"), dict) else tree
    if {"ops", "tensors"} <= graph.keys() and chance.random() < 0.7:
        mutated_tree(graph[chance.choice(("ops", "ops", "tensors"))], chance)
        return encoded(tree)
    return encoded(mutated_tree(tree, chance))


def mutated_plan(data: bytes, chance: Random) -> bytes:
    """A plan, whose costs say which graph they are for."""
    if chance.random() < BY_BYTES:
        return mutated_bytes(data, chance)
    tree = msgspec.json.decode(data)
    part = chance.choice((tree, tree["graph"], tree["schedule"], tree["costs"], tree["budget"]))
    mutated_tree(part, chance)
    costs, graph = tree.get("costs"), tree.get("graph")
    if isinstance(costs, dict):
        costs["graph"] = fingerprint(graph) or costs.get("graph")
    return encoded(tree)


def fingerprint(graph: Any) -> str | None:
    """Of a graph as a file has it, if it is one."""
    try:
        return msgspec.json.decode(encoded(graph), type=Graph).fingerprint
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None


def mutated_toml(data: bytes, chance: Random) -> bytes:
    """Lines exchanged, repeated, left out; values of other kinds."""
    if chance.random() < BY_BYTES:
        return mutated_bytes(data, chance)
    lines = data.decode().splitlines()
    for _ in range(chance.choice((1, 2, 3))):
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        name, equals, _ = lines[at].partition("=")
        change = chance.randrange(5)
        if equals and change < 3:
            lines[at] = f"{name}= {_toml_value(chance)}"
        elif change == 3:
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines.insert(at, lines[other])
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml_value(chance: Random) -> str:
    text = json.dumps(chance.choice((*NUMBERS, *STRINGS, *OTHERS)))
    words = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf", "null": "''", "{}": "{a = 1}"}
    return words.get(text, text)


def mutated_tensors(data: bytes, chance: Random) -> bytes:
    """A safetensors file: its header, what is told in there, or the tensors' bytes."""
    length = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + length], data[8 + length :]
    way = chance.random()
    if way < BY_BYTES:
        return mutated_bytes(data, chance)
    tree = msgspec.json.decode(header)
    about = tree.get("__metadata__", {})
    if way < 0.4:
        body = mutated_bytes(body, chance)
    elif way < 0.7 and "checkpoint" in about:
        told = mutated_tree(msgspec.json.decode(about["checkpoint"]), chance)
        about["checkpoint"] = encoded(told).decode("utf-8", "replace")
    else:
        tree = mutated_tree(tree, chance)
    return with_checksum(tree, body)


def with_checksum(tree: Any, body: bytes) -> bytes:
    """A file of this header and these bytes, with the checksum that the header is to tell."""
    told: Any = tree.get("__metadata__") if isinstance(tree, dict) else None
    has_checksum = isinstance(told, dict) and isinstance(told.get("checksum"), str)
    if has_checksum:
        told["checksum"] = _ZEROS
    text = encoded(tree)
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    if has_checksum:
        checksum = hashlib.blake2b(start + body, digest_size=16).hexdigest()
        start = start.replace(_ZEROS.encode(), checksum.encode(), 1)
    return start + body


def mutated_card(data: bytes, chance: Random) -> bytes:
    """A card's image; the header's checksum is right more often than not."""
    found = bytearray(data)
    if chance.random() < 0.7:
        at = chance.choice((8, 12, 16, 20, 24, 28, 32, 40, chance.randrange(72)))
        value = chance.choice((0, 1, 2**31, 2**32 - 1, chance.randrange(2**32)))
        struct.pack_into("<I", found, at, value)
        found[508:512] = struct.pack("<I", zlib.crc32(found[:508]))
        if chance.random() < 0.3:
            return bytes(found[: chance.randrange(len(found))])
        return bytes(found)
    return mutated_bytes(data, chance)
