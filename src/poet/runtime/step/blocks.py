"""What a block of a call is in PyTorch: the operator on pieces, or what adds to a sum."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from poet.calls.operands import Operand, Work
from poet.calls.pieces.products import SUM
from poet.calls.pieces.space import Piece, Side, Space, Stretch
from poet.calls.pieces.ways import Part
from poet.calls.updates import UPDATES
from poet.tracer.arguments import target_of
from poet.tracer.kernels import KERNELS

Rates = dict[int, dict[str, float]]
"""Learning rate and step count of the updates, by the number of their calls."""
Block = dict[int, Stretch]


class Nest(Protocol):
    """The loops around a block, and the pieces that are there."""

    work: Work
    part: Part
    space: Space
    rates: Rates
    sums: dict[str, torch.Tensor]
    """What a sum has come to, until it is complete."""

    def piece(self, side: Side, at: Block) -> Piece: ...
    def read(self, name: str, at: Block) -> torch.Tensor: ...
    def write(self, number: int, at: Block) -> torch.Tensor | None: ...
    def argument(self, name: str) -> Any: ...
    def is_first(self, at: Block, *sums: int) -> bool: ...
    def is_last(self, at: Block, axis: int) -> bool: ...
    def is_skipped(self, at: Block) -> bool: ...


def updated(work: Work, state: dict[str, torch.Tensor], rates: Rates) -> None:
    options = {name: x for name, x in work.arguments.items() if not isinstance(x, Operand)}
    KERNELS[work.kind](**state, **{**options, **rates[work.number]})


def any_call(nest: Nest, at: Block) -> None:
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


def _fill(nest: Nest, at: Block) -> None:
    to = nest.write(0, at)
    assert to is not None
    to.fill_(nest.work.arguments.get("fill_value", 0))


def _copy(nest: Nest, at: Block) -> None:
    to = nest.write(0, at)
    assert to is not None
    to.copy_(nest.read("self", at))


def _update(nest: Nest, at: Block) -> None:
    updated(nest.work, {name: nest.read(name, at) for name in nest.space.reads}, nest.rates)


def _product(nest: Nest, at: Block) -> None:
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


def _convolution(nest: Nest, at: Block) -> None:
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


def _padded(image: torch.Tensor, nest: Nest, at: Block, taps: int, rows: int) -> torch.Tensor:
    """Some rows of an image, with as many empty ones around them as so many rows are made of."""
    above = nest.piece(nest.space.reads["input"], at).outside[2]
    needed = (rows - 1) * nest.argument("stride")[0] + (taps - 1) * nest.argument("dilation")[0] + 1
    below = max(0, needed - above - image.shape[2])
    return F.pad(image, (0, 0, above, below)) if above or below else image


def _groups(nest: Nest, at: Block) -> int:
    groups = int(nest.argument("groups"))
    return groups if groups == 1 else at[1].size


def _convolution_backward(nest: Nest, at: Block) -> None:
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


def _image_gradient(nest: Nest, at: Block, gradient: torch.Tensor, rows: int) -> torch.Tensor:
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


def _layer_norm_backward(nest: Nest, at: Block) -> None:
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


def _loss(nest: Nest, at: Block) -> None:
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


def _loss_backward(nest: Nest, at: Block) -> None:
    to, target = nest.write(0, at), nest.read("target", at)
    assert to is not None
    made = torch.ops.aten.nll_loss2d_backward.default(
        nest.read("grad_output", at), nest.read("self", at).unsqueeze(-1), target.unsqueeze(-1),
        None, nest.argument("reduction"), nest.argument("ignore_index"),
        nest.read("total_weight", at),
    )  # fmt: skip
    to.copy_(made.squeeze(-1))


def _embedding(nest: Nest, at: Block) -> None:
    if "weight" in nest.part.held:
        return  # it was read to where it belongs
    to = nest.write(0, at)
    assert to is not None
    torch.index_select(nest.read("weight", at), 0, nest.read("indices", at), out=to)


def _embedding_backward(nest: Nest, at: Block) -> None:
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


BLOCKS: dict[str, Callable[[Nest, Block], None]] = {
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
