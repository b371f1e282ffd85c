"""The rules by kind of call: the space that it goes over, or calls that together do the same."""

from collections.abc import Callable

import msgspec

from poet.calls.operands import Operand, Work, position
from poet.calls.pieces import elements, images, planes, products
from poet.calls.pieces.space import Space
from poet.calls.updates import NUMBERS, UPDATES

_ARITHMETIC = ("aten.add", "aten.sub", "aten.mul", "aten.div", "aten.clone")
_ALONE = (
    "aten.relu", "aten.hardtanh", "aten.tanh", "aten.sigmoid", "aten.gelu", "aten.silu",
    "aten.threshold_backward", "aten.hardtanh_backward", "aten.tanh_backward",
    "aten.sigmoid_backward", "aten.gelu_backward", "aten.silu_backward", "aten.pow", "aten.neg",
    "aten.clamp", "aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.full",
    "poet.dropout_mask",
)  # fmt: skip
_RULES: dict[str, Callable[[Work], Space | None]] = {
    "aten.sum": elements.total,
    "aten.mean": elements.total,
    "aten._softmax": elements.softmax,
    "aten._safe_softmax": elements.softmax,
    "aten._log_softmax": elements.softmax,
    "aten._softmax_backward_data": elements.softmax,
    "aten._log_softmax_backward_data": elements.softmax,
    "aten.native_layer_norm": products.layer_norm,
    "aten.native_layer_norm_backward": products.layer_norm,
    "aten._scaled_dot_product_flash_attention_for_cpu": products.attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": products.attention_gradients,
    "aten.nll_loss_forward": products.loss,
    "aten.nll_loss2d_forward": products.loss,
    "aten.nll_loss_backward": products.loss,
    "aten.nll_loss2d_backward": products.loss,
    "aten.convolution": images.conv,
    "aten.convolution_backward": images.conv_gradients,
    "aten._native_batch_norm_legit_functional": planes.batch_norm,
    "aten._native_batch_norm_legit": planes.batch_norm,
    "aten._native_batch_norm_legit_no_training": planes.batch_norm,
    "aten.native_batch_norm_backward": planes.batch_norm,
    **dict.fromkeys(
        (planes.STATISTICS, planes.APPLIED, planes.SUMS, planes.GRADIENT), planes.norm_part
    ),
    "aten.max_pool2d_with_indices": planes.pool,
    "aten.max_pool2d_with_indices_backward": planes.pool,
    "aten.avg_pool2d": planes.pool,
    "aten.avg_pool2d_backward": planes.pool,
    "aten._adaptive_avg_pool2d": planes.pool,
    "aten._adaptive_avg_pool2d_backward": planes.pool,
}


def space_of(
    work: Work, streamed: frozenset[int], is_parameter: Callable[[Operand], bool], only_named: bool
) -> Space | None:
    """The space of a call whose tensors of these numbers are in the store; None: it has none.

    `only_named` says that of a table's gradient only the rows that indices name are wanted.
    """
    family = work.family
    tensors = [n for n, x in work.arguments.items() if isinstance(x, Operand)]
    if any(isinstance(x, list) and any(isinstance(y, Operand) for y in x)
           for x in work.arguments.values()):  # fmt: skip
        return None
    if all(x is None or not x.count for x in work.results):
        return None
    if family in ("aten.mm", "aten.addmm", "aten.bmm"):
        return products.product(work, is_parameter(work.arguments["mat2"]))
    if family == "aten.embedding":
        return products.embedding(work, streamed)
    if family == "aten.embedding_dense_backward":
        return products.embedding_gradient(work, only_named)
    if work.kind in UPDATES:
        return elements.each(work, [n for n in tensors if n not in NUMBERS], is_dense=True)
    if family in _ARITHMETIC:
        same = {x.dtype for x in work.reads} | {x.dtype for x in work.results if x is not None}
        return elements.each(work, tensors) if same == {"float32"} else None
    if family in _ALONE:
        return elements.each(work, tensors, is_dense=True)
    rule = _RULES.get(family)
    return None if rule is None else rule(work)


def simpler(work: Work) -> list[Work]:
    """Calls that together do what one does, each with a space of its own."""
    out = work.results[0]
    if work.family == "aten.convolution_backward":
        image, weight, bias = work.results
        if image is None or weight is None:
            return [work]
        return [
            msgspec.structs.replace(work, results=(image, None, None)),
            msgspec.structs.replace(work, results=(None, weight, bias)),
        ]
    if work.family.startswith("aten._native_batch_norm_legit"):
        return planes.norm_in_parts(work)
    if work.family == "aten.native_batch_norm_backward":
        return planes.norm_gradient_in_parts(work)
    if work.family == "aten._scaled_dot_product_flash_attention_for_cpu_backward":
        query, *others = work.results
        if query is None or others == [None, None]:
            return [work]
        return [
            msgspec.structs.replace(work, results=(query, None, None)),
            msgspec.structs.replace(work, results=(None, *others)),
        ]
    if out is None or out.dtype != "float32":
        return [work]
    if work.family == "aten.cat":
        return _joined(work, out)
    if work.family in ("aten.select_backward", "aten.slice_backward", "aten.constant_pad_nd"):
        inside = _inside(work, out)
        source = work.arguments["self" if work.family == "aten.constant_pad_nd" else "grad_output"]
        if inside is None or work.arguments.get("value"):
            return [work]
        return [
            Work(work.number, "aten.zeros.default", "aten.zeros", {}, (out,)),
            _copy(work, inside, source),
        ]
    return [work]


def _copy(work: Work, to: Operand, source: Operand) -> Work:
    return Work(work.number, "aten.clone.default", "aten.clone", {"self": source}, (to,))


def _joined(work: Work, out: Operand) -> list[Work]:
    dim, at, made = work.arguments.get("dim", 0) % len(out.shape), 0, []
    for part in work.arguments["tensors"]:
        if part.shape == (0,):
            continue  # nothing, which joins tensors of any rank
        place = msgspec.structs.replace(
            out, offset=out.offset + at * out.strides[dim], shape=part.shape
        )
        made.append(_copy(work, place, part))
        at += part.shape[dim]
    return made or [work]


def _inside(work: Work, out: Operand) -> Operand | None:
    """The part of a result that is not zero."""
    given = work.arguments
    if work.family == "aten.select_backward":
        dim = given["dim"] % len(out.shape)
        at = position(given["index"], out.shape[dim]) * out.strides[dim]
        return out.piece(at, out.shape[:dim] + out.shape[dim + 1 :], dim)
    if work.family == "aten.slice_backward":
        dim, step = given["dim"] % len(out.shape), given.get("step", 1)
        source = given["grad_output"]
        strides = tuple(s * step if d == dim else s for d, s in enumerate(out.strides))
        at = position(given["start"], out.shape[dim]) * out.strides[dim]
        return Operand(out.storage, out.offset + at, source.shape, strides, out.dtype)
    pads = list(given["pad"])
    if any(pad < 0 for pad in pads):
        return None
    offset, rank = 0, len(out.shape)
    for n in range(len(pads) // 2):
        offset += pads[2 * n] * out.strides[rank - 1 - n]
    return msgspec.structs.replace(out, offset=out.offset + offset, shape=given["self"].shape)
