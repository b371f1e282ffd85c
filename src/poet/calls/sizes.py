"""Sizes: a call with its references looked up, so that its work can be counted.

A call names tensors of the graph and inner values of its op. `sized_calls` finds the shape and the
element type of each, and how many bytes of memory it covers: elements that repeat (stride 0, as
`expand` makes) lie in memory once, and a view never covers more than the storage it looks into.
What has no shape or an unknown element type is refused, with its name.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

from poet.calls.references import Reference, references, storage_bytes
from poet.errors import PoetError
from poet.values.graph import Graph, printable

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1,
    "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "uint32": 4, "int32": 4, "float32": 4, "complex32": 4,
    "uint64": 8, "int64": 8, "float64": 8, "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes of one element, by PyTorch's name of its type."""


class Array(msgspec.Struct, frozen=True):
    """Something a call reads or writes: its elements, and the bytes of memory they cover."""

    shape: tuple[int, ...]
    elements: int
    item_bytes: int
    nbytes: int
    is_view: bool = False


class Read(msgspec.Struct, frozen=True):
    """An array among the arguments of a call, and the argument's name."""

    name: str
    reference: Reference
    array: Array


class SizedCall(msgspec.Struct, frozen=True):
    """A call of op `op`: what it reads, argument by argument, and what it makes."""

    graph: Graph
    op: int
    kind: str
    family: str
    arguments: dict[str, Any]
    reads: tuple[Read, ...]
    results: tuple[Array | None, ...]

    @property
    def is_view(self) -> bool:
        """Whether it only looks at memory in another way, and so does no work at all."""
        made = [result for result in self.results if result is not None]
        return bool(made) and all(result.is_view for result in made)

    @property
    def where(self) -> str:
        """The call as people should see it in a message."""
        return f"{printable(self.kind)} in {self.graph.op_text(self.op)}"

    def array(self, name: str) -> Array:
        """The array given as argument `name`, which the call must have."""
        for read in self.reads:
            if read.name == name:
                return read.array
        raise PoetError(f"{self.where} has no tensor as its argument {name!r}; it needs one")

    def argument(self, name: str) -> Any:
        """The plain argument `name`, which the call must have."""
        if name not in self.arguments:
            raise PoetError(f"{self.where} has no argument {name!r}; it needs one")
        return self.arguments[name]

    @property
    def result(self) -> Array:
        """The first array it makes, which the call must have."""
        for made in self.results:
            if made is not None:
                return made
        raise PoetError(f"{self.where} makes nothing; its work cannot be counted")

    @property
    def most_read(self) -> int:
        """The elements of its largest argument."""
        return max((read.array.elements for read in self.reads), default=0)


def sized_calls(graph: Graph, k: int) -> Iterator[SizedCall]:
    """The calls of op k, in order, with all their sizes."""
    op = graph.ops[k]
    for call in op.calls:
        yield SizedCall(
            graph=graph,
            op=k,
            kind=call.kind,
            family=call.family,
            arguments=call.arguments,
            reads=tuple(
                Read(name, reference, _array(graph, k, reference))
                for name, reference in references(call)
            ),
            results=tuple(
                None if result is None else _array(graph, k, *result.items())
                for result in call.results
            ),
        )


def _array(graph: Graph, k: int, reference: Reference) -> Array:
    key, target = reference
    op = graph.ops[k]
    described = graph.tensors[target] if key == "tensor" else op.values[target]
    shape, dtype = described.shape, described.dtype
    if shape is None or dtype is None:
        missing = "shape" if shape is None else "dtype"
        raise PoetError(
            f"{graph.tensor_text(target)} has no {missing}, so {graph.op_text(k)} cannot be costed "
            "from its calls; capture the graph again, or give costs="
        )
    if dtype not in ITEM_BYTES:
        raise PoetError(
            f"{graph.op_text(k)} works on elements of type {printable(dtype)[:40]!r}; POET knows "
            f"{', '.join(ITEM_BYTES)}"
        )
    is_view = key == "value" and op.values[target].view_of is not None
    room = storage_bytes(graph, op, reference)
    return _covered(shape, described.strides, ITEM_BYTES[dtype], room, is_view)


@lru_cache(maxsize=1 << 14)
def _covered(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, item: int, room: int, is_view: bool
) -> Array:
    elements = prod(shape)
    distinct = elements
    if strides is not None and elements and 0 in strides:
        distinct = prod(n for n, stride in zip(shape, strides, strict=False) if stride)
    return Array(shape, elements, item, min(distinct * item, room), is_view)
