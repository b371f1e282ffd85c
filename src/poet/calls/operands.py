"""Operands: where in memory each argument and result of a call lies.

A graph says of a view only which storage it looks into, its shape and its strides. Here the calls
that make views are followed, so that each operand is a storage, an offset into it, a shape and
strides; what is left are calls that do work. Of a view, `Operand.storage` is what
`references.storage` gives for it.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import msgspec

from poet.calls.references import Reference
from poet.calls.sizes import ITEM_BYTES
from poet.errors import PoetError
from poet.values.graph import Call, Graph, Op, Value


class Operand(msgspec.Struct, frozen=True):
    """Elements of a storage; offset and strides in elements."""

    storage: Reference
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * ITEM_BYTES[self.dtype]

    @property
    def is_dense(self) -> bool:
        """Whether the elements, if there are any, lie side by side in row-major order."""
        if 0 in self.shape:
            return True
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    @property
    def is_whole(self) -> bool:
        """Whether the elements fill their memory without gaps, in whatever order."""
        pairs = sorted((t, s) for s, t in zip(self.shape, self.strides, strict=True) if s != 1)
        expected = 1
        for stride, extent in pairs:
            if stride != expected:
                return False
            expected *= extent
        return True

    def piece(self, offset: int, shape: tuple[int, ...], without: int) -> "Operand":
        """Elements further on, with one dimension less."""
        strides = self.strides[:without] + self.strides[without + 1 :]
        return Operand(self.storage, self.offset + offset, shape, strides, self.dtype)

    def expanded(self, shape: tuple[int, ...]) -> "Operand":
        """The same elements, repeated to a larger shape."""
        missing = len(shape) - len(self.shape)
        old = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        strides = tuple(
            0 if was == 1 and now != 1 else stride
            for was, now, stride in zip(old, shape, strides, strict=True)
        )
        return msgspec.structs.replace(self, shape=shape, strides=strides)


class Work(msgspec.Struct, frozen=True):
    """A call that does work, its arguments and results looked up."""

    number: int
    """Its place among the op's calls."""
    kind: str
    family: str
    arguments: dict[str, Any]
    """Operands where the call names tensors or values, also inside lists; plain JSON elsewhere."""
    results: tuple[Operand | None, ...]

    @property
    def reads(self) -> Iterator[Operand]:
        for argument in self.arguments.values():
            for item in argument if isinstance(argument, list) else [argument]:
                if isinstance(item, Operand):
                    yield item


def works(graph: Graph, k: int) -> list[Work]:
    """The calls of op k that do work."""
    op = graph.ops[k]
    if not op.calls:
        raise PoetError(f"{graph.op_text(k)} has no calls: the graph does not say what it computes")
    made: dict[Reference, Operand] = {}
    found = []
    for at, call in enumerate(op.calls):
        arguments = {name: _looked_up(graph, op, made, x) for name, x in call.arguments.items()}
        results: list[Operand | None] = []
        for number, result in enumerate(call.results):
            if result is None:
                results.append(None)
                continue
            (reference,) = result.items()
            if reference[0] == "value" and op.values[reference[1]].view_of is not None:
                view = _view(graph, k, call, arguments, op.values[reference[1]], number)
                made[reference] = view
                results.append(None)
            else:
                made[reference] = _whole(graph, op, reference)
                results.append(made[reference])
        if any(result is not None for result in results):
            found.append(Work(at, call.kind, call.family, arguments, tuple(results)))
    return found


def _looked_up(graph: Graph, op: Op, made: dict[Reference, Operand], argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return [_looked_up(graph, op, made, item) for item in argument]
    if isinstance(argument, dict):
        ((key, target),) = argument.items()
        if key in ("tensor", "value"):
            reference = (key, target)
            return made.get(reference) or _whole(graph, op, reference)
        if key == "float":
            return float(target)
    return argument


def _whole(graph: Graph, op: Op, reference: Reference) -> Operand:
    key, n = reference
    thing = graph.tensors[n] if key == "tensor" else op.values[n]
    if thing.shape is None or thing.dtype is None:
        raise PoetError(f"{graph.tensor_text(n)} has no shape or no element type")
    strides = thing.strides if thing.strides is not None else row_major(thing.shape)
    return Operand(reference, 0, tuple(thing.shape), tuple(strides), thing.dtype)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _view(
    graph: Graph, k: int, call: Call, arguments: dict[str, Any], value: Value, number: int
) -> Operand:
    """The operand a view stands for: the offset is ours to find, shape and strides are given."""
    source = arguments.get("self")
    family = call.family
    if not isinstance(source, Operand) or family not in _OFFSETS:
        raise PoetError(
            f"{call.kind} in {graph.op_text(k)} makes a view that POET cannot follow yet"
        )
    strides = tuple(value.strides) if value.strides is not None else row_major(tuple(value.shape))
    if value.strides is None and family in _STRIDED:
        strides = _own_strides(source, family, arguments, tuple(value.shape))
    offset = source.offset + _OFFSETS[family](source, arguments, number)
    return Operand(source.storage, offset, tuple(value.shape), strides, value.dtype)


def _own_strides(
    source: Operand, family: str, arguments: dict[str, Any], shape: tuple[int, ...]
) -> tuple[int, ...]:
    if family == "aten.expand":
        return source.expanded(shape).strides
    dim = arguments.get("dim", 0) % len(source.shape)
    if family in ("aten.select", "aten.unbind"):
        return source.strides[:dim] + source.strides[dim + 1 :]
    step = arguments.get("step", 1) if family == "aten.slice" else 1
    strides = list(source.strides)
    strides[dim] *= step
    return tuple(strides)


def _nothing(source: Operand, arguments: dict[str, Any], number: int) -> int:
    return 0


def _slice(source: Operand, arguments: dict[str, Any], number: int) -> int:
    dim: int = arguments.get("dim", 0) % len(source.shape)
    return position(arguments.get("start") or 0, source.shape[dim]) * source.strides[dim]


def _select(source: Operand, arguments: dict[str, Any], number: int) -> int:
    dim: int = arguments["dim"] % len(source.shape)
    return position(arguments["index"], source.shape[dim]) * source.strides[dim]


def _split(source: Operand, arguments: dict[str, Any], number: int) -> int:
    dim: int = arguments.get("dim", 0) % len(source.shape)
    sizes = arguments.get("split_size", arguments.get("split_sizes"))
    before: int = sum(sizes[:number]) if isinstance(sizes, list) else number * int(sizes or 0)
    return before * source.strides[dim]


def _unbound(source: Operand, arguments: dict[str, Any], number: int) -> int:
    dim: int = arguments.get("dim", 0) % len(source.shape)
    return number * source.strides[dim]


def position(at: int, extent: int) -> int:
    """Where an index points, which may count from the end; at most just past it."""
    return min(at if at >= 0 else at + extent, extent)


_OFFSETS = {
    "aten.view": _nothing,
    "aten._unsafe_view": _nothing,
    "aten.reshape": _nothing,
    "aten.flatten": _nothing,
    "aten.t": _nothing,
    "aten.transpose": _nothing,
    "aten.permute": _nothing,
    "aten.expand": _nothing,
    "aten.squeeze": _nothing,
    "aten.unsqueeze": _nothing,
    "aten.alias": _nothing,
    "aten.detach": _nothing,
    "aten.slice": _slice,
    "aten.select": _select,
    "aten.split": _split,
    "aten.split_with_sizes": _split,
    "aten.unsafe_split": _split,
    "aten.unsafe_split_with_sizes": _split,
    "aten.unbind": _unbound,
}
"""Calls that make views, and how many elements further each view begins."""
_STRIDED = (
    "aten.slice", "aten.split", "aten.unsafe_split", "aten.select", "aten.unbind", "aten.expand",
)  # fmt: skip
"""Those whose strides follow from their source's, where the graph does not give them."""
