"""What a new card holds: weights from a file or a seed, and samples from a file or a seed."""

from math import prod, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from poet.errors import PoetError
from poet.firmware.card.image import Arrays, held_type
from poet.firmware.card.layout import inputs_of
from poet.firmware.card.safetensors import Array, read_safetensors
from poet.values.graph import Graph
from poet.values.schedule import PERSISTENT


def first_values(graph: Graph, seed: int, known: dict[str, Array] | None = None) -> Arrays:
    """Parameters, buffers and optimizer state as a new network has them.

    `known` are those of the network itself, by name. Without, weights are uniform within 1 / sqrt
    (inputs of a unit), as PyTorch's layers begin; norms begin with weight 1 and bias 0, their
    statistics with mean 0 and variance 1. What other buffers hold cannot be guessed.
    """
    known = known or {}
    chance = np.random.default_rng(seed)
    made: Arrays = {}
    for i in graph.given:
        tensor = graph.tensors[i]
        if tensor.role not in PERSISTENT:
            continue
        shape, dtype, name = tensor.shape or (), held_type(graph, i), tensor.name
        if name in known and tensor.role != "optimizer_state":
            made[i] = _as_type(known[name], dtype, name)
        elif tensor.role == "optimizer_state":
            made[i] = np.full(shape, -0.0, dtype)  # -0.0 + g is g, bit for bit
        elif tensor.role == "buffer" or dtype != "float32":
            if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
                raise PoetError(
                    f"what the buffer {name} holds is not known: give weights= with a file that "
                    "has it"
                )
            made[i] = np.full(shape, 1 if name.endswith("running_var") else 0, dtype)
        elif len(shape) > 1:
            bound = 1 / sqrt(max(1, prod(shape[1:])))
            made[i] = chance.uniform(-bound, bound, shape).astype(dtype)
        else:
            made[i] = np.full(shape, 1.0 if name.endswith("weight") else 0.0, dtype)
    return made


def weights_from(
    graph: Graph, path: Path, seed: int, known: dict[str, Array] | None = None
) -> Arrays:
    """A safetensors file's parameters and buffers; optimizer state begins anew.

    Buffers that are constants of the network are often not in such a file: those are `known`.
    """
    given = read_safetensors(path)
    made = first_values(graph, seed, {**(known or {}), **given})
    for i in made:
        tensor = graph.tensors[i]
        if tensor.name not in given and (
            tensor.role == "optimizer_state"
            or (tensor.role == "buffer" and tensor.name in (known or {}))
        ):
            continue
        if tensor.name not in given:
            raise PoetError(f"{path} has no {tensor.name}, which the network needs")
        if given[tensor.name].shape != tuple(tensor.shape or ()):
            raise PoetError(
                f"{tensor.name} is {list(given[tensor.name].shape)} in {path}; the network's is "
                f"{list(tensor.shape or ())}"
            )
        made[i] = _as_type(given[tensor.name], held_type(graph, i), tensor.name)
    return made


def random_samples(graph: Graph, count: int, seed: int) -> list[Arrays]:
    """Batches of noise with labels that exist, for a network that is to show that it trains."""
    chance = np.random.default_rng([seed, 1])
    labels = _labels(graph)
    made: list[Arrays] = []
    for _ in range(count):
        record: Arrays = {}
        for i in inputs_of(graph):
            tensor = graph.tensors[i]
            shape, dtype = tensor.shape or (), held_type(graph, i)
            if np.issubdtype(np.dtype(dtype), np.floating):
                record[i] = chance.standard_normal(shape).astype(dtype)
            else:
                most = max(1, labels[i].choices) if i in labels else 2
                record[i] = chance.integers(0, most, shape).astype(dtype)
        made.append(record)
    return made


class _Labels(NamedTuple):
    """What a tensor of indices may hold: one of so many rows or classes, or what is ignored."""

    choices: int
    ignored: int | None


def _labels(graph: Graph) -> dict[int, _Labels]:
    found: dict[int, _Labels] = {}
    for k, op in enumerate(graph.ops):
        for call in op.calls:
            for target, source, dim in (("target", "self", 1), ("indices", "weight", 0)):
                index, table = call.arguments.get(target), call.arguments.get(source)
                if isinstance(index, dict) and isinstance(table, dict) and "tensor" in index:
                    ((key, n),) = table.items()
                    shape = (graph.tensors if key == "tensor" else graph.ops[k].values)[n].shape
                    if shape is not None and len(shape) > dim:
                        ignored = call.arguments.get("ignore_index")
                        new, i = _Labels(shape[dim], ignored), index["tensor"]
                        found[i] = min(found.get(i, new), new, key=lambda each: each.choices)
    return found


def samples_from(graph: Graph, path: Path) -> list[Arrays]:
    """A safetensors file with one tensor for each input, stacked along a first dimension."""
    given = read_safetensors(path)
    wanted = inputs_of(graph)
    names = {i: graph.tensors[i].name for i in wanted}
    missing = [name for name in names.values() if name not in given]
    if missing:
        raise PoetError(f"{path} has no {missing[0]!r}; the inputs are {', '.join(names.values())}")
    counts = {given[name].shape[0] if given[name].shape else 0 for name in names.values()}
    if len(counts) != 1 or counts == {0}:
        found = " and ".join(map(str, sorted(counts)))
        raise PoetError(f"{path} has {found} samples; it must have as many of each input, not 0")
    labels = _labels(graph)
    for i, name in names.items():
        if given[name].shape[1:] != tuple(graph.tensors[i].shape or ()):
            raise PoetError(
                f"{name} is {list(given[name].shape)} in {path}; it must be samples of "
                f"{list(graph.tensors[i].shape or ())}"
            )
        given[name] = _as_type(given[name], held_type(graph, i), name)
        _check_labels(given[name], labels.get(i), f"{name} of {path}")
    (count,) = counts
    return [{i: given[name][n] for i, name in names.items()} for n in range(count)]


def _as_type(given: Array, dtype: str, name: str) -> Array:
    """The same numbers as another type, where it can hold them: a label is no fraction."""
    if not np.can_cast(given.dtype, dtype, "same_kind"):
        raise PoetError(f"{name} is of {given.dtype} in the file; the network takes {dtype}")
    made = given.astype(dtype)
    if not np.issubdtype(made.dtype, np.floating) and not np.array_equal(made, given):
        raise PoetError(f"{name} has numbers that {dtype}, which the network takes, cannot hold")
    return made


def _check_labels(given: Array, labels: _Labels | None, name: str) -> None:
    """Refuse a label that the network does not know: in C it would lie outside of a tensor."""
    if labels is None or not np.issubdtype(given.dtype, np.integer):
        return
    for found in given[(given < 0) | (given >= labels.choices)].tolist():
        if found != labels.ignored:
            raise PoetError(f"{name} has a {found}; the network knows 0 to {labels.choices - 1}")
