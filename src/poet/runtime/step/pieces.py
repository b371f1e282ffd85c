"""Pieces: an op's calls in PyTorch, block by block, with tiles to and from the store.

A `Pieces` stands in the tape where a call stood whose operands are not all in RAM. It goes through
the loops of its parts (`poet.calls.pieces`), reads the tiles that a block needs, calls PyTorch's
own kernels on them, and writes what was made. Kernels that sum may do so in another order when they
get fewer elements; those that treat each element, or row, by itself give the bits they always give.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from poet.calls.operands import Operand, Work
from poet.calls.pieces.nest import blocks_of, largest
from poet.calls.pieces.products import SUM
from poet.calls.pieces.space import Piece, Side, Stretch, in_memory, packed_strides, piece
from poet.calls.pieces.ways import Part, Way
from poet.calls.references import Reference
from poet.calls.updates import UPDATES
from poet.tracer.arguments import decode, dtype_named, target_of
from poet.tracer.kernels import KERNELS
from poet.values.graph import Graph

if TYPE_CHECKING:
    from poet.runtime.step.machine import Machine

Rates = dict[int, dict[str, float]]
"""Learning rate and step count of the updates, by the number of their calls."""
Block = dict[int, Stretch]
Made = tuple[torch.Tensor | None, ...]


class Pieces:
    """The parts of one call of an op, to be called in its place.

    It is given the tensors and inner values of the op that are whole in RAM, by number, and the
    updates' rates; what it gives are the call's results, with None for those that are in the store
    or used up.
    """

    def __init__(self, graph: Graph, k: int, number: int, way: Way) -> None:
        self.graph, self.op = graph, graph.ops[k]
        self.parts = [part for part in way.parts if part.work.number == number]
        self.call = self.op.calls[number]
        self.way = way
        self._away = {("tensor", i) for i, _ in way.moved} | way.cut
        self._seats = {pair.output: pair.input for pair in self.op.in_place}
        written = {i for i, is_written in way.moved if is_written}
        # What becomes something of the next step lies where that lay, which may still be read.
        self._new = [i for i in self.op.outputs if i in written and graph.slot[i] == i]
        self._first = {
            one.side.operand.storage[1]: n
            for n, part in reversed(list(enumerate(self.parts)))
            for one in part.held.values()
            if one.is_written and one.side.operand.storage[0] == "tensor"
        }

    @property
    def name(self) -> str:
        """What tells ways to run one call apart."""
        return " ".join(f"{i}{'w' if is_written else 'r'}" for i, is_written in self.way.moved) + (
            f" {[part.nest for part in self.parts]}"
        )

    @property
    def needs(self) -> list[Reference]:
        """What must be whole in RAM."""
        made = {part.work.results[n].storage for part in self.parts  # type: ignore[union-attr]
                for n, x in enumerate(part.work.results) if x is not None}  # fmt: skip
        found: dict[Reference, None] = {}
        for part in self.parts:
            for operand in part.work.reads:
                if operand.storage not in self._away | made:
                    found[operand.storage] = None
            for result in part.work.results:
                if result is not None and result.storage[0] == "tensor":
                    seat = self._seats.get(result.storage[1])
                    if seat is not None and ("tensor", seat) not in self._away:
                        found["tensor", seat] = None
        return list(found)

    @property
    def updates(self) -> Iterator[int]:
        """The calls of updates that are done here."""
        for part in self.parts:
            yield from (follower.work.number for follower in part.followers)
            if part.work.kind in UPDATES:
                yield part.work.number

    def __call__(
        self,
        machine: "Machine",
        tensors: dict[int, torch.Tensor],
        values: dict[int, torch.Tensor],
        rates: Rates,
    ) -> Made:
        known: dict[Reference, torch.Tensor] = {("tensor", i): x for i, x in tensors.items()}
        known |= {("value", n): x for n, x in values.items()}
        made: list[torch.Tensor | None] = []
        for result in self.call.results:
            if result is None:
                made.append(None)
                continue
            ((kind, n),) = result.items()
            if (kind, n) in self._away:
                made.append(None)
                continue
            if kind == "tensor" and n in self._seats:
                known[kind, n] = known["tensor", self._seats[n]]
            else:
                about = self.graph.tensors[n] if kind == "tensor" else self.op.values[n]
                assert about.shape is not None
                empty = torch.empty(about.shape, device="meta").stride()
                known[kind, n] = torch.empty_strided(
                    about.shape, about.strides or empty, dtype=dtype_named(about.dtype),
                    device=machine.device,
                )  # fmt: skip
            made.append(known[kind, n])
        for number, part in enumerate(self.parts):
            for i, first in self._first.items():
                if first == number and i in self._new:
                    machine.stream_begin(i)
            _Nest(self, part, machine, known, rates).run()
        return tuple(made)


class _Nest:
    """One part while it runs."""

    def __init__(
        self,
        owner: Pieces,
        part: Part,
        machine: "Machine",
        known: dict[Reference, torch.Tensor],
        rates: Rates,
    ) -> None:
        assert part.space is not None
        assert part.nest is not None
        self.owner, self.part, self.machine, self.known = owner, part, machine, known
        self.space, self.nest, self.order, self.rates = (
            part.space,
            part.nest,
            part.nest.order,
            rates,
        )
        self.work: Work = part.work
        self.tiles = {
            key: torch.empty(
                _count(one.side, part), dtype=dtype_named(one.side.operand.dtype),
                device=machine.device,
            )
            for key, one in part.held.items()
            if one.has_tile
        }  # fmt: skip
        self.sums: dict[str, torch.Tensor] = {}

    def run(self) -> None:
        self.level(-1, {a: Stretch(0, axis.extent) for a, axis in enumerate(self.space.axes)})

    def level(self, n: int, at: Block) -> None:
        keys = [key for key in self.part.held if self.level_of(key) == n]
        for key in keys:
            self.bring(key, at)
        if n + 1 == len(self.order):
            (_BLOCKS.get(self.work.family) or _any)(self, at)
        else:
            axis = self.order[n + 1]
            for block in blocks_of(self.space.axes[axis], self.nest.sizes[axis]):
                self.level(n + 1, {**at, axis: block})
        for key in keys:
            self.take(key, at)

    def level_of(self, key: str) -> int:
        axes = self.part.held[key].side.axes
        return max((self.order.index(a) for a in axes if a in self.order), default=-1)

    # ---- pieces ----

    def piece(self, side: Side, at: Block) -> Piece:
        return piece(side, tuple(at[a] for a in range(len(self.space.axes))))

    def key_of(self, key: str, side: Side) -> str | None:
        """The tile that a side's pieces lie in, if they lie in one."""
        if key in self.tiles:
            return key
        for name, one in self.part.held.items():
            over = None if one.over is None else self.space.writes[one.over]
            same = one.side.operand.storage == side.operand.storage
            if name in self.tiles and (same or over is side):
                return name
        return None

    def read(self, name: str, at: Block) -> torch.Tensor:
        return self.at(name, self.space.reads[name], at)

    def write(self, number: int, at: Block) -> torch.Tensor | None:
        side = self.space.writes[number]
        return None if side is None else self.at(str(number), side, at)

    def at(self, key: str, side: Side, at: Block) -> torch.Tensor:
        """A piece as a tensor: of a tile, or of what is in RAM."""
        found = self.piece(side, at)
        shape = found.shape if side.named_by is None else (1, *found.shape[1:])
        tile = self.key_of(key, side)
        if tile is not None:
            return self.tiles[tile].as_strided(shape, packed_strides(side.operand, shape))
        if key in self.part.held or (side.is_unread and side.operand.storage not in self.known):
            blank = torch.empty((), dtype=dtype_named(side.operand.dtype))
            return blank.expand(shape)  # of which only the shape matters
        return self.in_ram(side.operand, found.start, shape)

    def in_ram(
        self, operand: Operand, start: tuple[int, ...], shape: tuple[int, ...]
    ) -> torch.Tensor:
        whole = self.known[operand.storage]
        offset = sum(a * b for a, b in zip(start, operand.strides, strict=True))
        return whole.as_strided(
            shape, operand.strides, whole.storage_offset() + operand.offset + offset
        )

    # ---- transfers ----

    def bring(self, key: str, at: Block) -> None:
        one = self.part.held[key]
        if "." in key:
            return
        if one.is_direct:
            made = self.write(0, at)
            assert made is not None
            row = torch.empty(made.numel(), dtype=made.dtype)
            self.stream(one.side, at, row, out=False)
            made.copy_(row.view(made.shape))
        elif one.has_tile and one.is_read:
            self.stream(one.side, at, self.tiles[key], out=False)
        elif one.has_tile and not one.is_result:
            found = self.piece(one.side, at)
            whole = self.in_ram(one.side.operand, found.start, found.shape)
            self.at(key, one.side, at).copy_(whole)

    def take(self, key: str, at: Block) -> None:
        one = self.part.held[key]
        if "." in key or not one.has_tile or self.is_skipped(at):
            return
        is_used = False
        for n, follower in enumerate(self.part.followers):
            if key == str(follower.result):
                self.update(n, at)
                is_used = True
        if one.is_written and not self.is_updated(one.side):
            over = None if one.over is None else self.space.writes[one.over]
            self.stream(over or one.side, at, self.tiles[key], out=True)
        elif one.is_result and not (one.is_read or one.is_written or is_used):
            found = self.piece(one.side, at)
            whole = self.in_ram(one.side.operand, found.start, found.shape)
            whole.copy_(self.at(key, one.side, at))

    def is_updated(self, side: Side) -> bool:
        return any(
            side.operand.storage == each.operand.storage
            for follower in self.part.followers
            for each in follower.sides.values()
        )

    def is_skipped(self, at: Block) -> bool:
        """Whether the row of a table that is named here was done before, or is not wanted."""
        made = self.space.writes[0]
        if made is None or made.named_by is None:
            return False
        indices = self.read("indices", at).flatten()
        place = at[0].start
        row = int(indices[place])
        ignored = int(self.work.arguments.get("padding_idx", -1))
        return row == ignored or row in indices[:place].tolist()

    def update(self, n: int, at: Block) -> None:
        follower = self.part.followers[n]
        made = self.space.writes[follower.result]
        assert made is not None
        state = {}
        for name, side in follower.sides.items():
            key = f"{n}.{name}"
            if key in self.tiles:
                self.stream(side, at, self.tiles[key], out=False)
            state[name] = self.at(key, side, at)
        gradient = self.at(str(follower.result), made, at)
        _updated(follower.work, {**state, "gradient": gradient}, self.rates)
        for name, side in follower.sides.items():
            tile = self.key_of(f"{n}.{name}", side)
            assert tile is not None
            self.stream(side, at, self.tiles[tile], out=True, to=follower.becomes[name])

    def stream(
        self, side: Side, at: Block, tile: torch.Tensor, out: bool, to: int | None = None
    ) -> None:
        if side.is_unread:
            return
        found, operand = self.piece(side, at), side.operand
        start, shape = found.start, found.shape
        if side.named_by is not None:
            indices = self.read(side.named_by, at).flatten()
            along = side.reach[0]
            assert along is not None
            start = (int(indices[at[along.axis].start]), *start[1:])
            shape = (1, *shape[1:])
        tensor = operand.storage[1] if to is None else to
        move = self.machine.stream_out if out else self.machine.stream_in
        for begin, count, place in in_memory(operand, start, shape):
            move(tensor, tile, begin, count, place)

    # ---- calls ----

    def argument(self, name: str) -> Any:
        if name in self.space.arguments:
            return self.space.arguments[name]
        return decode(self.work.arguments[name], _no_reference)

    def is_first(self, at: Block, *sums: int) -> bool:
        return all(at[a].start == 0 for a in sums if a in self.order)

    def is_last(self, at: Block, axis: int) -> bool:
        return at[axis].start + at[axis].size >= self.space.axes[axis].extent


def _no_reference(tag: str, n: int) -> Any:
    raise AssertionError("a tensor that is no piece")


def _count(side: Side, part: Part) -> int:
    assert part.space is not None
    assert part.nest is not None
    count = 1
    for extent in largest(side, part.space.axes, part.nest.sizes):
        count *= extent
    return count


def _updated(work: Work, state: dict[str, torch.Tensor], rates: Rates) -> None:
    options = {name: x for name, x in work.arguments.items() if not isinstance(x, Operand)}
    KERNELS[work.kind](**state, **{**options, **rates[work.number]})


def _any(nest: _Nest, at: Block) -> None:
    """The operator itself, on pieces."""
    work = nest.work
    given = {name: nest.read(name, at) for name in nest.space.reads}
    given |= {name: nest.argument(name) for name in work.arguments if name not in given}
    made: Any = target_of(work.kind)(**given)
    results = made if isinstance(made, tuple | list) else (made,)
    for number, result in enumerate(results):
        to = nest.write(number, at) if number < len(nest.space.writes) else None
        if to is not None:
            same = result.dim() == to.dim()
            to.copy_(result.expand(to.shape) if same else result.reshape(to.shape))


def _fill(nest: _Nest, at: Block) -> None:
    to = nest.write(0, at)
    assert to is not None
    to.fill_(nest.work.arguments.get("fill_value", 0))


def _copy(nest: _Nest, at: Block) -> None:
    to = nest.write(0, at)
    assert to is not None
    to.copy_(nest.read("self", at))


def _update(nest: _Nest, at: Block) -> None:
    _updated(nest.work, {name: nest.read(name, at) for name in nest.space.reads}, nest.rates)


def _product(nest: _Nest, at: Block) -> None:
    has_bias = nest.work.family == "aten.addmm"
    left, right = nest.read("mat1" if has_bias else "self", at), nest.read("mat2", at)
    to = nest.write(0, at)
    assert to is not None
    if not nest.is_first(at, SUM):
        (to.baddbmm_ if to.dim() == 3 else to.addmm_)(left, right)
    elif has_bias:
        torch.addmm(nest.read("self", at), left, right, out=to)
    else:
        torch.matmul(left, right, out=to)


def _convolution(nest: _Nest, at: Block) -> None:
    image, weight, to = nest.read("input", at), nest.read("weight", at), nest.write(0, at)
    assert to is not None
    padding = list(nest.argument("padding"))
    if not nest.argument("transposed"):
        image = _padded(image, nest, at, weight.shape[2], to.shape[2])
        padding[0] = 0
    is_first = nest.is_first(at, 2)
    bias = nest.read("bias", at) if "bias" in nest.space.reads and is_first else None
    part = torch.ops.aten.convolution.default(
        image, weight, bias, nest.argument("stride"), padding, nest.argument("dilation"),
        nest.argument("transposed"), nest.argument("output_padding"), _groups(nest, at),
    )  # fmt: skip
    part = part[:, :, : to.shape[2]]
    if is_first:
        to.copy_(part)
    else:
        to.add_(part)


def _padded(image: torch.Tensor, nest: _Nest, at: Block, taps: int, rows: int) -> torch.Tensor:
    """Some rows of an image, with as many empty ones around them as so many rows are made of."""
    above = nest.piece(nest.space.reads["input"], at).outside[2]
    needed = (rows - 1) * nest.argument("stride")[0] + (taps - 1) * nest.argument("dilation")[0] + 1
    below = max(0, needed - above - image.shape[2])
    return F.pad(image, (0, 0, above, below)) if above or below else image


def _groups(nest: _Nest, at: Block) -> int:
    groups = int(nest.argument("groups"))
    return groups if groups == 1 else at[1].size


def _convolution_backward(nest: _Nest, at: Block) -> None:
    wants = [side is not None for side in nest.space.writes]
    to_image, to_weight, to_bias = (nest.write(n, at) for n in range(3))
    gradient, is_first = nest.read("grad_output", at), nest.is_first(at, 2)
    wants[2] = wants[2] and is_first
    image: Any
    weight: Any
    bias: Any
    if len(nest.space.axes) > 3:
        assert to_image is not None
        image, weight, bias = _image_gradient(nest, at, gradient, to_image.shape[2]), None, None
    else:
        image, weight, bias = torch.ops.aten.convolution_backward.default(
            gradient, nest.read("input", at), nest.read("weight", at),
            [gradient.shape[1]] if wants[2] else None, nest.argument("stride"),
            nest.argument("padding"), nest.argument("dilation"), nest.argument("transposed"),
            nest.argument("output_padding"), _groups(nest, at), wants,
        )  # fmt: skip
    if to_image is not None:
        if nest.argument("groups") > 1 or nest.is_first(at, 1):
            to_image.copy_(image)
        else:
            to_image.add_(image)
    if to_weight is not None:
        to_weight.copy_(weight)
    if to_bias is not None and is_first:
        to_bias.copy_(bias)


def _image_gradient(nest: _Nest, at: Block, gradient: torch.Tensor, rows: int) -> torch.Tensor:
    """The gradient of some rows of an image that a convolution took one by one."""
    weight, dilation = nest.read("weight", at), nest.argument("dilation")
    reach = (weight.shape[2] - 1) * dilation[0]
    above = nest.piece(nest.space.reads["grad_output"], at).outside[2]
    below = rows + reach - above - gradient.shape[2]
    padded = F.pad(gradient, (0, 0, above, max(0, below)))
    stride, across = nest.argument("stride"), nest.argument("padding")[-1]
    made = F.conv_transpose2d(
        padded, weight, None, stride, (reach, across), 0, _groups(nest, at), dilation
    )
    width = nest.space.writes[0].operand.shape[3]  # type: ignore[union-attr]
    return F.pad(made, (0, width - made.shape[3])) if made.shape[3] < width else made


def _layer_norm_backward(nest: _Nest, at: Block) -> None:
    given = {name: nest.read(name, at) for name in nest.space.reads}
    given |= {name: nest.argument(name) for name in nest.work.arguments if name not in given}
    given["mean"], given["rstd"] = given["mean"].unsqueeze(1), given["rstd"].unsqueeze(1)
    made = torch.ops.aten.native_layer_norm_backward.default(**given)
    for number, result in enumerate(made):
        to = nest.write(number, at)
        if to is None:
            continue
        if number == 0 or nest.is_first(at, 0):
            to.copy_(result)
        else:
            to.add_(result)


def _loss(nest: _Nest, at: Block) -> None:
    """A sum over rows, divided when it is complete."""
    scores, target = nest.read("self", at), nest.read("target", at)
    total, _ = torch.ops.aten.nll_loss2d_forward.default(
        scores.unsqueeze(-1), target.unsqueeze(-1), None, 2, nest.argument("ignore_index")
    )
    count = (target != nest.argument("ignore_index")).sum()
    if nest.is_first(at, 0):
        nest.sums = {"total": total, "count": count}
    else:
        nest.sums = {"total": nest.sums["total"] + total, "count": nest.sums["count"] + count}
    if nest.is_last(at, 0):
        loss, counted = nest.write(0, at), nest.write(1, at)
        is_mean = nest.argument("reduction") == 1
        if loss is not None:
            loss.copy_(nest.sums["total"] / nest.sums["count"] if is_mean else nest.sums["total"])
        if counted is not None:
            counted.copy_(nest.sums["count"])


def _loss_backward(nest: _Nest, at: Block) -> None:
    to, target = nest.write(0, at), nest.read("target", at)
    assert to is not None
    made = torch.ops.aten.nll_loss2d_backward.default(
        nest.read("grad_output", at), nest.read("self", at).unsqueeze(-1), target.unsqueeze(-1),
        None, nest.argument("reduction"), nest.argument("ignore_index"),
        nest.read("total_weight", at),
    )  # fmt: skip
    to.copy_(made.squeeze(-1))


def _embedding(nest: _Nest, at: Block) -> None:
    if "weight" in nest.part.held:
        return  # it was read to where it belongs
    to = nest.write(0, at)
    assert to is not None
    torch.index_select(nest.read("weight", at), 0, nest.read("indices", at), out=to)


def _embedding_backward(nest: _Nest, at: Block) -> None:
    side, to = nest.space.writes[0], nest.write(0, at)
    assert side is not None
    assert to is not None
    if nest.is_skipped(at):
        return
    gradients, indices = nest.read("grad_output", at), nest.read("indices", at).flatten().tolist()
    ignored = nest.argument("padding_idx")
    rows = range(at[0].start, at[0].start + at[0].size)
    if side.named_by is not None:
        rows = range(indices[at[0].start], indices[at[0].start] + 1)
    to.zero_()
    for place, row in enumerate(indices):
        if row in rows and row != ignored:
            to[row - rows.start].add_(gradients[place])


_BLOCKS: dict[str, Callable[[_Nest, Block], None]] = {
    **dict.fromkeys(("aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.full"), _fill),
    **dict.fromkeys(UPDATES, _update),
    **dict.fromkeys(("aten.mm", "aten.addmm", "aten.bmm"), _product),
    **dict.fromkeys(("aten.nll_loss_forward", "aten.nll_loss2d_forward"), _loss),
    **dict.fromkeys(("aten.nll_loss_backward", "aten.nll_loss2d_backward"), _loss_backward),
    "aten.clone": _copy,
    "aten.convolution": _convolution,
    "aten.convolution_backward": _convolution_backward,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_backward,
}
