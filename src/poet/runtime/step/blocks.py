"""What a block of a call is in PyTorch: the operator on pieces, or what adds to a sum."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from poet.calls.operands import Operand, Work
from poet.calls.pieces import planes
from poet.calls.pieces.images import CHANNELS, OUT_CHANNELS, ROWS, SAMPLES
from poet.calls.pieces.products import KEYS, PIXELS, QUERIES, SUM
from poet.calls.updates import UPDATES
from poet.runtime.step import plane_blocks
from poet.runtime.step.block_site import Block, Nest, Rates, any_call, put
from poet.tracer.kernels import KERNELS


def updated(work: Work, state: dict[str, torch.Tensor], rates: Rates) -> None:
    options = {name: x for name, x in work.arguments.items() if not isinstance(x, Operand)}
    KERNELS[work.kind](**state, **{**options, **rates[work.number]})


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
    is_first = nest.is_first(at, CHANNELS)
    bias = nest.read("bias", at) if "bias" in nest.space.reads and is_first else None
    part = torch.ops.aten.convolution.default(
        image, weight, bias, nest.argument("stride"), padding, nest.argument("dilation"),
        nest.argument("transposed"), nest.argument("output_padding"), _groups(nest, at),
    )  # fmt: skip
    put(to, part[:, :, : to.shape[2]], not is_first)


def _padded(image: torch.Tensor, nest: Nest, at: Block, taps: int, rows: int) -> torch.Tensor:
    """Some rows of an image, with as many empty ones around them as so many rows are made of."""
    above = nest.piece(nest.space.reads["input"], at).outside[2]
    needed = (rows - 1) * nest.argument("stride")[0] + (taps - 1) * nest.argument("dilation")[0] + 1
    below = max(0, needed - above - image.shape[2])
    return F.pad(image, (0, 0, above, below))[:, :, :needed] if above or below else image


def _groups(nest: Nest, at: Block) -> int:
    groups = int(nest.argument("groups"))
    return groups if groups == 1 else at[OUT_CHANNELS].size


def _convolution_backward(nest: Nest, at: Block) -> None:
    to_image, to_weight, to_bias = (nest.write(n, at) for n in range(3))
    gradient = nest.read("grad_output", at)
    if to_weight is None and nest.space.reads["input"].reach[2] is not None:
        assert to_image is not None
        made = [_image_gradient(nest, at, gradient, to_image.shape[2])]
    else:
        wants = [to_image is not None, to_weight is not None, False]
        made = _gradients(nest, at, gradient, wants)
    is_sum = nest.argument("groups") == 1 and not nest.is_first(at, OUT_CHANNELS)
    is_more = not nest.is_first(at, SAMPLES, ROWS)
    if to_image is not None:
        put(to_image, made[0], is_sum)
    if to_weight is not None:
        put(to_weight, made[1], is_more)
    if to_bias is not None and nest.is_first(at, CHANNELS):
        put(to_bias, gradient.sum((0, 2, 3)), is_more)


def _gradients(
    nest: Nest, at: Block, gradient: torch.Tensor, wants: list[bool]
) -> list[torch.Tensor]:
    """Those of image and weight, of some rows of the result or of all."""
    image, weight = nest.read("input", at), nest.read("weight", at)
    padding = list(nest.argument("padding"))
    if nest.space.reads["input"].reach[2] is not None:
        image, padding[0] = _padded(image, nest, at, weight.shape[2], gradient.shape[2]), 0
    made: list[torch.Tensor] = torch.ops.aten.convolution_backward.default(
        gradient, image, weight, None, nest.argument("stride"), padding,
        nest.argument("dilation"), nest.argument("transposed"), nest.argument("output_padding"),
        _groups(nest, at), wants,
    )  # fmt: skip
    return made


def _image_gradient(nest: Nest, at: Block, gradient: torch.Tensor, rows: int) -> torch.Tensor:
    """The gradient of some rows of an image: what the windows that look at them spread."""
    weight, stride, pad = nest.read("weight", at), nest.argument("stride"), nest.argument("padding")
    width = nest.space.reads["input"].operand.shape[3]
    if not gradient.shape[2]:
        return weight.new_zeros(()).expand(1, 1, rows, width)
    made = F.conv_transpose2d(
        gradient, weight, None, stride, 0, 0, _groups(nest, at), nest.argument("dilation")
    )
    top = nest.piece(nest.space.reads["grad_output"], at).start[2] * stride[0] - pad[0]
    above = top - nest.piece(nest.space.reads["input"], at).start[2]
    below, right = rows - above - made.shape[2], width + pad[-1] - made.shape[3]
    return F.pad(made, (-pad[-1], right, above, below))


def _layer_norm_backward(nest: Nest, at: Block) -> None:
    given = {name: nest.read(name, at) for name in nest.space.reads}
    given |= {name: nest.argument(name) for name in nest.work.arguments if name not in given}
    given["mean"], given["rstd"] = given["mean"].unsqueeze(1), given["rstd"].unsqueeze(1)
    made = torch.ops.aten.native_layer_norm_backward.default(**given)
    for number, result in enumerate(made):
        to = nest.write(number, at)
        if to is None:
            continue
        put(to, result, number > 0 and not nest.is_first(at, 0))


def _loss(nest: Nest, at: Block) -> None:
    """A sum over rows, divided when it is complete."""
    scores, target = nest.read("self", at), nest.read("target", at)
    total, _ = torch.ops.aten.nll_loss2d_forward.default(
        scores.unsqueeze(-1), target.unsqueeze(-1), None, 2, nest.argument("ignore_index")
    )
    count = (target != nest.argument("ignore_index")).sum()
    if nest.is_first(at, 0, PIXELS):
        nest.sums = {"total": total, "count": count}
    else:
        nest.sums = {"total": nest.sums["total"] + total, "count": nest.sums["count"] + count}
    if nest.is_last(at, 0, PIXELS):
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


def _attention(nest: Nest, at: Block) -> None:
    """Weights beside the largest score so far, summed over blocks of keys."""
    is_whole = QUERIES not in nest.part.nest.order or not nest.argument("is_causal")  # type: ignore[union-attr]
    if KEYS not in nest.part.nest.order and is_whole:  # type: ignore[union-attr]
        return any_call(nest, at)
    out, sums, value = nest.write(0, at), nest.write(1, at), nest.read("value", at)
    assert out is not None
    scores = _scores(nest, at)
    most = scores.amax(-1, keepdim=True)
    if nest.is_first(at, KEYS):
        out.zero_()
        factor = total = torch.zeros_like(most)
    else:
        before = nest.sums["most"]
        most = torch.maximum(most, before)
        factor, total = (before - _finite(most)).exp_(), nest.sums["total"]
    weights = scores.sub_(_finite(most)).exp_()
    total = total * factor + weights.sum(-1, keepdim=True)
    out.mul_(factor).add_(weights @ value)
    nest.sums = {"most": most, "total": total}
    if nest.is_last(at, KEYS):
        divisor = torch.where(total == 0, 1.0, total)
        out.div_(divisor)
        if sums is not None:
            sums.copy_((_finite(most) + divisor.log()).squeeze(-1))
    return None


def _finite(most: torch.Tensor) -> torch.Tensor:
    """While all is masked, 0 stands for the largest score."""
    return torch.where(most == -torch.inf, 0.0, most)


def _scores(nest: Nest, at: Block) -> torch.Tensor:
    query, key = nest.read("query", at), nest.read("key", at)
    scale = nest.argument("scale") if "scale" in nest.work.arguments else None
    scores = query @ key.transpose(-1, -2)
    scores.mul_(query.shape[-1] ** -0.5 if scale is None else scale)
    if "attn_mask" in nest.space.reads:
        scores.add_(nest.read("attn_mask", at))
    if nest.work.arguments.get("is_causal"):
        after = torch.arange(at[KEYS].start, at[KEYS].start + at[KEYS].size)
        until = torch.arange(at[QUERIES].start, at[QUERIES].start + at[QUERIES].size)
        scores.masked_fill_(after > until[:, None], -torch.inf)
    return scores


def _attention_backward(nest: Nest, at: Block) -> None:
    if len(nest.space.axes) == 2:
        return any_call(nest, at)  # head by head
    gradient, sums = nest.read("grad_out", at), nest.read("logsumexp", at).unsqueeze(-1)
    weights = _scores(nest, at).sub_(sums).exp_()
    to_query, to_key, to_value = (nest.write(n, at) for n in range(3))
    if to_value is not None:
        put(to_value, weights.transpose(-1, -2) @ gradient, not nest.is_first(at, QUERIES))
    along = (nest.read("out", at) * gradient).sum(-1, keepdim=True)
    slopes = gradient @ nest.read("value", at).transpose(-1, -2)
    slopes.sub_(along).mul_(weights)
    scale = nest.argument("scale") if "scale" in nest.work.arguments else None
    slopes.mul_(gradient.shape[-1] ** -0.5 if scale is None else scale)
    if to_query is not None:
        put(to_query, slopes @ nest.read("key", at), not nest.is_first(at, KEYS))
    if to_key is not None:
        made = slopes.transpose(-1, -2) @ nest.read("query", at)
        put(to_key, made, not nest.is_first(at, QUERIES))
    return None


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
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    planes.STATISTICS: plane_blocks.statistics,
    planes.APPLIED: plane_blocks.applied,
    planes.SUMS: plane_blocks.sums,
    planes.GRADIENT: plane_blocks.gradient,
    "aten.max_pool2d_with_indices": plane_blocks.max_pool,
    "aten.max_pool2d_with_indices_backward": plane_blocks.max_pool_backward,
    "aten.avg_pool2d": plane_blocks.average_pool,
    "aten.avg_pool2d_backward": plane_blocks.average_pool_backward,
}
