"""Streaming: ops that go through a parameter in tiles, so that it never is whole in RAM.

A tile is some rows of a parameter (its first dimension), which lie side by side in the store. Four
kinds of work can go by rows:

- a product or a convolution with the parameter gives some columns or planes of its result a tile;
- where rows are what is summed over, as for the gradient of its input, each tile adds its part;
- the gradient of the parameter and the update that follows it need the tile alone: it is read,
  updated and written back, and of the gradient, too, only a tile exists;
- an embedding reads the rows that its indices name, and an update without state or decay changes no
  others.

A `Loop` says which calls of an op go together through which parameter; what runs one (firmware, the
PyTorch runtime) makes a loop of them. A long sum is made of parts of `sum_rows` rows, whether the
parameter is streamed or not, so that streaming changes no bit where kernels are POET's own.
"""

from math import prod
from typing import Any, Literal

import msgspec

from poet.calls.operands import Operand, Work, works
from poet.calls.references import Reference
from poet.calls.updates import UPDATES, state_of
from poet.errors import PoetError
from poet.values.graph import Graph
from poet.values.operators import is_whole

TILE_BYTES = {"streamed": 16_384, "streamed-small": 2_048}
"""The variants, and how large a tile is at most, if more than a row."""
LEAST_BYTES = 1_024
"""A parameter smaller than this is not worth a loop."""
MOST_SUM_ROWS = 64
LEAST_SUM_ROWS = 4
LoopKind = Literal["columns", "sum", "gradient", "sum and gradient"]
"""What a tile gives: part of the result, a summand of it, its own gradient, or the last two."""


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of an op, by their numbers, that go through a parameter by rows.

    `maker` multiplies with the parameter or makes its gradient; `update` is the call that follows
    on the gradient, and `updated` are what the parameter and the optimizer's `state` become in it.
    """

    parameter: int
    rows: int
    row_bytes: int
    maker: int
    kind: LoopKind
    granule: int = 1
    """A tile has a multiple of so many rows, or all that are left."""
    named_rows: int | None = None
    """How many rows the op's indices name, where no others are touched."""
    update: int | None = None
    gradient: Reference | None = None
    state: tuple[int, ...] = ()
    updated: tuple[int, ...] = ()

    @property
    def streamed(self) -> tuple[int, ...]:
        """The tensors that come from the store by rows."""
        return (self.parameter, *self.state)

    def tile_rows(self, tile_bytes: int) -> int:
        """Rows of a tile of at most so many bytes, if that is more than a granule."""
        if self.named_rows is not None:
            return 1
        fits = max(1, tile_bytes // self.row_bytes)
        even = 4 if fits >= 4 else 1
        step = max(self.granule, even)
        return min(self.rows, max(self.granule, fits - fits % step))

    def tiles(self, tile_bytes: int) -> int:
        """How many transfers each tensor takes, one way."""
        if self.named_rows is not None:
            return self.named_rows
        return -(-self.rows // self.tile_rows(tile_bytes))

    @property
    def moved_rows(self) -> int:
        return self.rows if self.named_rows is None else self.named_rows


def sum_rows(row_bytes: int) -> int:
    """Rows of a parameter whose products are summed before they are added to the others."""
    rows = MOST_SUM_ROWS
    while rows > LEAST_SUM_ROWS and rows * row_bytes > TILE_BYTES["streamed"]:
        rows //= 2
    return rows


def loops(graph: Graph, k: int) -> tuple[Loop, ...]:
    """The loops that op k can be run with: one for each use of a large parameter."""
    return tuple(_found(graph, k))


def _found(graph: Graph, k: int) -> list[Loop]:
    op = graph.ops[k]
    candidates = {i for i in op.inputs if _is_large_parameter(graph, i)}
    if not candidates:
        return []
    if not all(is_whole(call.kind, call.arguments, call.results) for call in op.calls):
        return []
    try:
        calls = works(graph, k)
    except PoetError:
        return []
    found: list[Loop] = []
    done: set[int] = set()
    for at, work in enumerate(calls):
        if work.number in done:
            continue
        loop = _with_update(graph, calls, at) or _reading(graph, work)
        if loop is not None and loop.parameter in candidates:
            found.append(loop)
            done |= {work.number} if loop.update is None else {work.number, loop.update}
    for i in candidates:  # all uses of a parameter, or none
        uses = {work.number for work in calls if any(_is_of(x, i) for x in work.reads)}
        if not uses <= done:
            found = [loop for loop in found if loop.parameter != i]
    return found


def _is_large_parameter(graph: Graph, i: int) -> bool:
    tensor = graph.tensors[i]
    return (
        tensor.role == "parameter"
        and graph.producer[i] is None
        and tensor.dtype == "float32"
        and tensor.strides is None
        and tensor.shape is not None
        and len(tensor.shape) > 1
        and tensor.nbytes == 4 * prod(tensor.shape) >= LEAST_BYTES
    )


def _is_of(operand: Operand, i: int) -> bool:
    return operand.storage == ("tensor", i)


def _parameter(graph: Graph, argument: Any) -> int | None:
    """The tensor whose whole a call's argument is, as it lies in memory, row for row."""
    if isinstance(argument, Operand) and argument.storage[0] == "tensor" and argument.is_dense:
        shape = graph.tensors[argument.storage[1]].shape
        if shape and argument.shape[:1] == shape[:1] and argument.count == prod(shape):
            return argument.storage[1]
    return None


def _loop(graph: Graph, i: int, maker: int, kind: LoopKind, **more: Any) -> Loop | None:
    tensor = graph.tensors[i]
    if not tensor.shape or not tensor.shape[0]:
        return None
    rows = tensor.shape[0]
    return Loop(
        parameter=i, rows=rows, row_bytes=tensor.nbytes // rows, maker=maker, kind=kind, **more
    )


def _reading(graph: Graph, work: Work) -> Loop | None:
    """A call that multiplies with a parameter, or looks rows of it up."""
    family, arguments = work.family, work.arguments
    if family == "aten.convolution" and _is_plain_conv(work):
        i = _parameter(graph, arguments["weight"])
        return None if i is None else _loop(graph, i, work.number, "columns")
    if family == "aten.convolution_backward" and _is_plain_conv(work):
        i = _parameter(graph, arguments["weight"])
        if i is None or work.results[1] is not None or work.results[0] is None:
            return None
        return _loop(graph, i, work.number, "sum", granule=_conv_granule(graph, i, work))
    if family in ("aten.mm", "aten.addmm"):
        return _product(graph, work)
    if family == "aten.embedding":
        i = _parameter(graph, arguments["weight"])
        rows = arguments["indices"]
        if i is None or not isinstance(rows, Operand):
            return None
        if rows.count >= (graph.tensors[i].shape or (0,))[0]:
            return None  # the whole table is no more than that
        return _loop(graph, i, work.number, "columns", named_rows=rows.count)
    return None


def _product(graph: Graph, work: Work) -> Loop | None:
    right = work.arguments["mat2"]
    if not isinstance(right, Operand) or right.storage[0] != "tensor" or len(right.shape) != 2:
        return None
    i = right.storage[1]
    shape = graph.tensors[i].shape
    if right.shape == shape and right.is_dense:
        # Rows of the parameter are what is summed over.
        return _loop(graph, i, work.number, "sum", granule=_granule(graph, i))
    if right.shape[::-1] == shape and right.strides == (1, right.shape[0]):
        return _loop(graph, i, work.number, "columns")
    return None


def _granule(graph: Graph, i: int) -> int:
    """Tiles of a sum over rows begin where a part of the sum does."""
    tensor = graph.tensors[i]
    assert tensor.shape is not None
    return sum_rows(tensor.nbytes // max(1, tensor.shape[0]))


def _conv_granule(graph: Graph, i: int, work: Work) -> int:
    """A convolution with kernels of one tap is a product; others add row after row."""
    shape = graph.tensors[i].shape
    assert shape is not None
    steps = (*work.arguments["stride"], *(1 + pad for pad in work.arguments["padding"]))
    return _granule(graph, i) if {*shape[2:], *steps} == {1} else 1


def _with_update(graph: Graph, calls: list[Work], at: int) -> Loop | None:
    """A call that makes a parameter's gradient, and the update that alone reads it."""
    work, family = calls[at], calls[at].family
    is_conv = family == "aten.convolution_backward"
    number = 1 if is_conv else 0
    if family not in ("aten.convolution_backward", "aten.mm", "aten.embedding_dense_backward"):
        return None
    made = work.results[number]
    if made is None or made.storage[0] != "value":
        return None
    readers = [
        n for n, other in enumerate(calls) if made.storage in {x.storage for x in other.reads}
    ]
    if len(readers) != 1 or calls[readers[0]].kind not in UPDATES:
        return None
    update = calls[readers[0]]
    i, gradient = _parameter(graph, update.arguments["parameter"]), update.arguments["gradient"]
    if i is None or not gradient.is_dense or gradient.shape != graph.tensors[i].shape:
        return None
    if made.count != gradient.count or made.shape[0] != gradient.shape[0]:
        return None  # it is only a piece of what was made, or has other rows
    if any(_is_of(x, i) for other in calls[at + 1 : readers[0]] for x in other.reads):
        return None  # somebody still needs the old values
    kind: LoopKind = "gradient"
    granule = 1
    if is_conv:
        if not _is_plain_conv(work):
            return None
        if work.results[0] is not None:
            if _parameter(graph, work.arguments["weight"]) != i:
                return None
            kind, granule = "sum and gradient", _conv_granule(graph, i, work)
    elif family == "aten.mm" and (len(made.shape) != 2 or not made.is_dense):
        return None
    heirs = [x.storage[1] for x in update.results if x is not None]
    state = tuple(x.storage[1] for x in state_of(update).values())
    named = None
    if family == "aten.embedding_dense_backward":
        if work.arguments.get("scale_grad_by_freq") or not work.arguments["indices"].is_dense:
            return None
        if not state and not update.arguments.get("weight_decay"):
            named = work.arguments["indices"].count
            named = None if named >= gradient.shape[0] else named
    return _loop(
        graph, i, work.number, kind, granule=granule, named_rows=named, update=update.number,
        gradient=made.storage, state=state, updated=tuple(heirs),
    )  # fmt: skip


def _is_plain_conv(work: Work) -> bool:
    return not work.arguments.get("transposed") and work.arguments.get("groups", 1) == 1
