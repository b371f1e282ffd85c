"""Tiles: the loops in which an op goes through a large parameter that stays in the store.

A `Streamed` stands in the tape where the call stood that multiplies with the parameter or makes its
gradient. For each tile it reads the rows, of the optimizer's state too, does with PyTorch's own
kernels what can be done with them, and writes back what an update has changed. Elementwise updates
and rows of embeddings have the bits they would have anyway; kernels that multiply may sum in
another order when they get fewer rows.

Tiles, and the gradient of one, are in the op's workspace (`poet.calls.workspace`), and so is what
PyTorch's kernels take besides (`poet.calls.torch_tiles`).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from poet.calls.loops import Loop
from poet.calls.operands import Operand, Work, works
from poet.calls.updates import state_of
from poet.tracer.arguments import dtype_named
from poet.tracer.kernels import KERNELS
from poet.values.graph import Graph

if TYPE_CHECKING:
    from poet.runtime.step.machine import Machine

Made = tuple[torch.Tensor | None, ...]


class Streamed:
    """A loop of an op, to be called in the place of its maker.

    It is given the maker's other arguments, and the update's rates as numbers; what it gives are
    the maker's results, with None for a gradient that is used up.
    """

    def __init__(self, graph: Graph, k: int, loop: Loop, tile_rows: int) -> None:
        calls = {work.number: work for work in works(graph, k)}
        self.loop, self.tile_rows = loop, tile_rows
        self.maker = calls[loop.maker]
        self.row_shape = (graph.tensors[loop.parameter].shape or ())[1:]
        self.family = self.maker.family
        self._update = None if loop.update is None else _Update(calls[loop.update])
        self._run = _FAMILIES.get(self.family) or _PRODUCTS[loop.kind]

    def __call__(self, machine: "Machine", given: dict[str, Any], rates: dict[str, float]) -> Made:
        return self._run(self, machine, given, rates)

    @property
    def is_whole(self) -> bool:
        """Whether one tile is all there is: the kernels then do just what they do otherwise."""
        return self.tile_rows == self.loop.rows and self.loop.named_rows is None

    def empty(self, machine: "Machine", number: int) -> torch.Tensor:
        """A result of the maker, to be filled."""
        about = self.maker.results[number]
        assert about is not None
        dtype = dtype_named(about.dtype)
        return torch.empty_strided(about.shape, about.strides, dtype=dtype, device=machine.device)

    def blank(self, machine: "Machine", *row_shape: int) -> torch.Tensor:
        """Room for a tile."""
        shape = (self.tile_rows, *(row_shape or self.row_shape))
        return torch.empty(shape, dtype=torch.float32, device=machine.device)

    def tiles(
        self, machine: "Machine", rows: Iterable[int] | None = None
    ) -> Iterator[tuple[slice, list[torch.Tensor]]]:
        """Tiles of the parameter and of the state: which rows, and their content.

        Only of these `rows`, one by one, where some are named.
        """
        loop = self.loop
        held = [self.blank(machine) for _ in loop.streamed]
        for first in range(0, loop.rows, self.tile_rows) if rows is None else rows:
            count = min(self.tile_rows, loop.rows - first)
            for i, tile in zip(loop.streamed, held, strict=True):
                machine.stream_in(i, tile, first * loop.row_bytes, count * loop.row_bytes)
            yield slice(first, first + count), [tile[:count] for tile in held]

    def update(
        self,
        machine: "Machine",
        rows: slice,
        tiles: list[torch.Tensor],
        gradient: torch.Tensor,
        rates: dict[str, float],
    ) -> None:
        """Update a tile and its state, and write them back."""
        assert self._update is not None
        if gradient.shape != tiles[0].shape:
            gradient = gradient.reshape(tiles[0].shape)
        self._update(tiles, gradient, rates)
        # What they become lies where they lay.
        for i, tile in zip(self.loop.streamed, tiles, strict=True):
            machine.stream_out(i, tile, rows.start * self.loop.row_bytes, tile.nbytes)


class _Update:
    """An update's kernel with the arguments that never change."""

    def __init__(self, work: Work) -> None:
        tensors = [name for name, x in work.arguments.items() if isinstance(x, Operand)]
        self._state = list(state_of(work))
        self._options = {n: x for n, x in work.arguments.items() if n not in tensors}
        self._kernel = KERNELS[work.kind]

    def __call__(
        self, tiles: list[torch.Tensor], gradient: torch.Tensor, rates: dict[str, float]
    ) -> None:
        parameter, *state = tiles
        arguments: dict[str, Any] = {**dict(zip(self._state, state, strict=True)), **rates}
        self._kernel(parameter=parameter, gradient=gradient, **arguments, **self._options)


def _convolution(
    loop: Streamed, machine: "Machine", given: dict[str, Any], rates: dict[str, float]
) -> Made:
    """Some planes of the result from each tile."""
    bias, rest = given["bias"], {n: x for n, x in given.items() if n != "bias"}
    made = None if loop.is_whole else loop.empty(machine, 0)
    for rows, (tile,) in loop.tiles(machine):
        part = torch.ops.aten.convolution.default(
            weight=_as_weight(loop, tile), bias=None if bias is None else bias[rows], **rest
        )
        if made is None:
            return (part,)
        made[:, rows].copy_(part)
        del part
    return (made,)


def _convolution_backward(
    loop: Streamed, machine: "Machine", given: dict[str, Any], rates: dict[str, float]
) -> Made:
    """Each tile's part of the input's gradient, and the tile's own gradient, as wanted."""
    rest = {n: x for n, x in given.items() if n not in ("grad_output", "bias_sizes", "output_mask")}
    wants = [result is not None for result in loop.maker.results]
    made: torch.Tensor | None = None
    bias = loop.empty(machine, 2) if wants[2] else None
    for rows, tiles in loop.tiles(machine):
        part, gradient, of_bias = torch.ops.aten.convolution_backward.default(
            grad_output=given["grad_output"][:, rows],
            weight=_as_weight(loop, tiles[0]),
            bias_sizes=[tiles[0].shape[0]] if wants[2] else None,
            output_mask=wants,
            **rest,
        )
        if bias is not None:
            bias[rows].copy_(of_bias)
        if made is not None:
            made.add_(part)
        elif wants[0]:
            made = _laid_out(loop, machine, part)
        del part, of_bias
        if wants[1]:
            loop.update(machine, rows, tiles, gradient, rates)
        del gradient
    return made, None, bias


def _as_weight(loop: Streamed, tile: torch.Tensor) -> torch.Tensor:
    """A tile as the convolution sees it, which may be with more dimensions than it has."""
    weight: Operand = loop.maker.arguments["weight"]
    return tile.view(-1, *weight.shape[1:])


def _laid_out(loop: Streamed, machine: "Machine", part: torch.Tensor) -> torch.Tensor:
    """The first part of a sum, with its elements where those who read the sum expect them."""
    about = loop.maker.results[0]
    assert about is not None
    return part if part.stride() == about.strides else loop.empty(machine, 0).copy_(part)


def _columns(
    loop: Streamed, machine: "Machine", given: dict[str, Any], rates: dict[str, float]
) -> Made:
    """A product with the transposed parameter: some columns of the result from each tile."""
    made = loop.empty(machine, 0)
    for rows, (tile,) in loop.tiles(machine):
        if "mat1" not in given:
            torch.mm(given["self"], tile.t(), out=made[:, rows])
            continue
        rest = {n: x for n, x in given.items() if n not in ("self", "mat1")}
        added = given["self"]
        if added.shape[-1] == loop.loop.rows:
            added = added[..., rows]
        torch.addmm(added, given["mat1"], tile.t(), out=made[:, rows], **rest)
    return (made,)


def _sum(
    loop: Streamed, machine: "Machine", given: dict[str, Any], rates: dict[str, float]
) -> Made:
    """A product with the parameter, to which each tile adds its part."""
    made = loop.empty(machine, 0)
    left = given.get("mat1", given["self"])
    for rows, (tile,) in loop.tiles(machine):
        if rows.start > 0:
            made.addmm_(left[:, rows], tile, alpha=given.get("alpha", 1))
        elif "mat1" in given:
            rest = {n: x for n, x in given.items() if n not in ("self", "mat1")}
            torch.addmm(given["self"], left[:, rows], tile, out=made, **rest)
        else:
            torch.mm(left[:, rows], tile, out=made)
    return (made,)


def _product_gradient(
    loop: Streamed, machine: "Machine", given: dict[str, Any], rates: dict[str, float]
) -> Made:
    """A product whose rows are the gradient's, and the update of each tile."""
    gradient = loop.blank(machine, given["mat2"].shape[1])
    for rows, tiles in loop.tiles(machine):
        part = gradient[: tiles[0].shape[0]]
        torch.mm(given["self"][rows], given["mat2"], out=part)
        loop.update(machine, rows, tiles, part, rates)
    return (None,)


def _embedding(
    loop: Streamed, machine: "Machine", given: dict[str, Any], rates: dict[str, float]
) -> Made:
    """The rows that indices name, straight to their places; one that is there is not read again."""
    made = loop.empty(machine, 0)
    rows, row_bytes = made.view(-1, *loop.row_shape), loop.loop.row_bytes
    seen: dict[int, int] = {}
    for at, row in enumerate(given["indices"].flatten().tolist()):
        if row in seen:
            rows[at].copy_(rows[seen[row]])
        else:
            machine.stream_in(
                loop.loop.parameter, made, row * row_bytes, row_bytes, at=at * row_bytes
            )
            seen[row] = at
    return (made,)


def _embedding_backward(
    loop: Streamed, machine: "Machine", given: dict[str, Any], rates: dict[str, float]
) -> Made:
    """Gradients of rows, summed in the order of the indices, and the update of each tile."""
    gradients, indices = given["grad_output"], given["indices"]
    named: dict[int, list[tuple[int, ...]]] = {}
    places = product(*map(range, indices.shape))
    for row, place in zip(indices.flatten().tolist(), places, strict=True):
        if row != given["padding_idx"]:
            named.setdefault(row, []).append(place)
    gradient = loop.blank(machine)
    only = None if loop.loop.named_rows is None else sorted(named)
    for rows, tiles in loop.tiles(machine, only):
        part = gradient[: tiles[0].shape[0]].zero_()
        for row in range(rows.start, rows.stop):
            for place in named.get(row, ()):
                part[row - rows.start].add_(gradients[place])
        loop.update(machine, rows, tiles, part, rates)
    return (None,)


_Run = Callable[[Streamed, "Machine", dict[str, Any], dict[str, float]], Made]
_FAMILIES: dict[str, _Run] = {
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
}
_PRODUCTS: dict[str, _Run] = {
    "columns": _columns,
    "sum": _sum,
    "gradient": _product_gradient,
}
