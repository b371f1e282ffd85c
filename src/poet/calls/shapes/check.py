"""The rules by kind of call, and the check that asks them."""

from collections.abc import Iterator

from poet.calls.operands import Operand, Work
from poet.calls.references import storage_bytes
from poet.calls.shapes import elements, images, rows
from poet.calls.shapes.given import Given, Made, Rule
from poet.calls.sizes import ITEM_BYTES
from poet.errors import PoetError
from poet.values.graph import Graph, Op, printable
from poet.values.operators import check_whole

MOST_BYTES = 2**31 - 1
"""Of one operand, repeated elements counted: C counts them in 32 bits."""

_COMPARISONS = dict.fromkeys(
    (f"aten.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    elements.each("self", "other", dtype="bool"),
)
_TRUTHS = dict.fromkeys(
    (f"aten.{how}_{name}" for how in ("bitwise", "logical") for name in ("and", "or", "xor")),
    elements.each("self", "other", dtype="bool"),
)
_ARITHMETIC = dict.fromkeys(
    (f"aten.{name}" for name in ("add", "sub", "rsub", "mul", "div")),
    elements.each("self", "other"),
)

_FUNCTIONS = (
    "abs", "sgn", "sign", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "threshold", "leaky_relu", "elu", "celu", "softplus", "mish", "hardswish",
    "hardsigmoid", "hardshrink", "softshrink",
)  # fmt: skip
_SLOPES = ("leaky_relu", "softplus", "mish", "hardswish", "hardsigmoid", "softshrink")
_LOSSES = (
    "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss",
)  # fmt: skip
_RESIZES = (
    "upsample_nearest1d", "upsample_nearest2d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "upsample_linear1d", "upsample_bilinear2d",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys((f"aten.{n}" for n in _FUNCTIONS), elements.like("self")),
    **dict.fromkeys(
        (f"aten.{n}_backward" for n in _SLOPES), elements.like("self", "float32", "grad_output")
    ),
    "aten.hardshrink_backward": elements.like("self", "float32", "grad_out"),
    "aten.elu_backward": elements.like("self_or_result", "float32", "grad_output"),
    "aten.log_sigmoid_forward": lambda given: [Made(given["self"].shape)] * 2,
    "aten.log_sigmoid_backward": elements.like("self", "float32", "grad_output"),
    "aten._prelu_kernel": elements.each("self", "weight", dtype="float32"),
    "aten._prelu_kernel_backward": elements.prelu_gradient,
    "aten.maximum": elements.each("self", "other"),
    "aten.minimum": elements.each("self", "other"),
    "aten.xlogy.Tensor": elements.each("self", "other"),
    "aten.glu": elements.halved,
    "aten.glu_backward": elements.halved_gradient,
    **dict.fromkeys((f"aten.{n}" for n in _LOSSES), elements.loss),
    **dict.fromkeys((f"aten.{n}_backward" for n in _LOSSES), elements.loss_gradient),
    "aten.binary_cross_entropy_with_logits": elements.loss,
    **_COMPARISONS,
    **_TRUTHS,
    **_ARITHMETIC,
    **dict.fromkeys(("aten.bitwise_not", "aten.logical_not"), elements.like("self", "bool")),
    **dict.fromkeys(
        (f"aten.{n}" for n in ("relu", "hardtanh", "tanh", "sigmoid", "gelu", "silu")),
        elements.like("self"),
    ),
    **dict.fromkeys(
        (f"aten.{n}_backward" for n in ("threshold", "hardtanh", "gelu", "silu")),
        elements.like("self", "float32", "grad_output"),
    ),
    **dict.fromkeys(
        (f"aten.{n}_backward" for n in ("tanh", "sigmoid")),
        elements.like("output", "float32", "grad_output"),
    ),
    **dict.fromkeys(
        ("aten.neg", "aten.pow.Tensor_Scalar", "aten.clamp", "aten.clamp_min",
         "aten.clamp_max", "aten.clone", "aten._to_copy",
         "aten.cumsum", "aten.full_like", "aten.zeros_like", "aten.ones_like"),
        elements.like("self", None),
    ),
    **dict.fromkeys(
        ("aten.full", "aten.zeros", "aten.ones", "aten.new_full", "aten.new_zeros",
         "aten.new_ones"),
        elements.sized,
    ),
    "aten.scalar_tensor": lambda given: [Made((), None)],
    "aten.arange": elements.arange,
    "aten.where": elements.each("condition", "self", "other"),
    "aten.masked_fill": elements.each("self", "mask"),
    "aten.tril": elements.triangle,
    "aten.triu": elements.triangle,
    "aten.any": elements.truths,
    "aten.all": elements.truths,
    "aten.sum": elements.reduction,
    "aten.mean": elements.reduction,
    "aten.constant_pad_nd": elements.pad,
    "aten.repeat": elements.repeat,
    "aten.roll": elements.turned,
    "aten.flip": elements.turned,
    "aten.scatter.src": elements.scatter,
    "aten.scatter_add": elements.scatter,
    **dict.fromkeys(
        ("aten.amax", "aten.amin", "aten.norm.ScalarOpt_dim", "aten.linalg_vector_norm"),
        elements.reduction,
    ),
    "aten.max.dim": elements.extremes,
    "aten.min.dim": elements.extremes,
    "aten.argmax": elements.places_of_extremes,
    "aten.argmin": elements.places_of_extremes,
    "aten.empty_like": elements.like("self", None),
    "aten.fill.Scalar": elements.like("self", None),
    "aten.index": elements.index,
    "aten.index_put": elements.index_put,
    "aten.cat": elements.cat,
    "aten.stack": elements.stack,
    "aten.gather": elements.gather,
    "aten.select_backward": elements.select_gradient,
    "aten.slice_backward": elements.slice_gradient,
    "aten.mm": rows.product("self", "mat2"),
    "aten.bmm": rows.product("self", "mat2"),
    "aten.addmm": rows.product("mat1", "mat2"),
    "aten.convolution": images.conv,
    "aten.convolution_backward": images.conv_gradients,
    "aten.max_pool2d_with_indices": images.max_pool,
    "aten.max_pool2d_with_indices_backward": images.pool_gradient,
    "aten.avg_pool2d": images.pool,
    "aten.avg_pool2d_backward": images.pool_gradient,
    "aten._adaptive_avg_pool2d": images.adaptive,
    "aten._adaptive_avg_pool2d_backward": images.adaptive_gradient,
    "aten._native_batch_norm_legit": images.batch_norm,
    "aten._native_batch_norm_legit_functional": images.batch_norm,
    "aten._native_batch_norm_legit_no_training": images.batch_norm,
    "aten.native_batch_norm_backward": images.batch_norm_gradient,
    "aten.native_group_norm": images.group_norm,
    "aten.native_group_norm_backward": images.group_norm_gradient,
    "aten.adaptive_max_pool2d": images.adaptive_max,
    "aten.adaptive_max_pool2d_backward": images.adaptive_max_gradient,
    **dict.fromkeys((f"aten.{n}" for n in _RESIZES), images.resized),
    **dict.fromkeys((f"aten.{n}_backward" for n in _RESIZES), images.resized_gradient),
    "aten.channel_shuffle": images.channel_shuffle,
    "aten.pixel_shuffle": images.pixel_shuffle,
    "aten.pixel_unshuffle": images.pixel_unshuffle,
    "aten.native_layer_norm": rows.layer_norm,
    "aten.native_layer_norm_backward": rows.layer_norm_gradient,
    "aten._softmax": rows.softmax,
    "aten._safe_softmax": rows.softmax,
    "aten._log_softmax": rows.softmax,
    "aten._softmax_backward_data": rows.softmax_gradient,
    "aten._log_softmax_backward_data": rows.softmax_gradient,
    "aten.nll_loss_forward": rows.loss,
    "aten.nll_loss2d_forward": rows.loss,
    "aten.nll_loss_backward": rows.loss_gradient,
    "aten.nll_loss2d_backward": rows.loss_gradient,
    "aten.multi_margin_loss": rows.margins,
    "aten.multi_margin_loss_backward": rows.margins_gradient,
    "aten.mkldnn_rnn_layer": rows.lstm,
    "aten.mkldnn_rnn_layer_backward": rows.lstm_gradient,
    "aten.embedding": rows.embedding,
    "aten.embedding_dense_backward": rows.embedding_gradient,
    "aten._scaled_dot_product_flash_attention_for_cpu": rows.attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": rows.attention_gradient,
    "poet.dropout_mask": elements.sized,
    "poet.required": lambda given: [Made((1,), "bool")],
    "poet.sgd": rows.update("momentum_buffer"),
    "poet.adam": rows.update("exp_avg", "exp_avg_sq"),
    "poet.adamw": rows.update("exp_avg", "exp_avg_sq"),
}  # fmt: skip


def check_calls(graph: Graph, k: int) -> None:
    """Refuse an op with a call that POET cannot answer for, whether or not it does work."""
    for kind, why in unknown_calls(graph.ops[k]):
        raise PoetError(f"{kind} of {graph.op_text(k)} cannot be done: {why}")


def unknown_calls(op: Op) -> Iterator[tuple[str, str]]:
    """The kinds of calls that POET cannot answer for, and why not."""
    for call in op.calls:
        try:
            check_whole(call.kind, call.arguments, call.results)
        except ValueError as error:
            yield printable(call.kind), str(error)


def check_work(graph: Graph, k: int, work: Work) -> None:
    """Refuse a call of op k that cannot be done in the memory that the graph says."""
    try:
        for operand in (*work.reads, *(x for x in work.results if x is not None)):
            _check_inside(operand, storage_bytes(graph, graph.ops[k], operand.storage))
        for result in work.results:
            if result is not None and not result.is_whole:
                raise ValueError(f"its result of {list(result.shape)} has gaps")
        _check_results(work)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise PoetError(
            f"{printable(work.kind)} of {graph.op_text(k)} does not fit its tensors: {error}"
        ) from error


def has_rule(kind: str) -> bool:
    return _rule(kind) is not None


def _rule(kind: str) -> Rule | None:
    return RULES.get(kind) or RULES.get(".".join(kind.split(".", 2)[:2]))


def _check_inside(operand: Operand, nbytes: int) -> None:
    if operand.dtype not in ITEM_BYTES:
        raise ValueError(f"elements of {printable(operand.dtype)[:40]} are not known")
    if len(operand.strides) != len(operand.shape) or min((0, *operand.strides)) < 0:
        raise ValueError(f"strides {list(operand.strides)} of shape {list(operand.shape)}")
    item = ITEM_BYTES[operand.dtype]
    steps = zip(operand.shape, operand.strides, strict=True)
    reach = operand.offset + sum((extent - 1) * stride for extent, stride in steps) + 1
    if operand.count and (operand.offset < 0 or reach * item > nbytes):
        raise ValueError(
            f"elements of {list(operand.shape)} reach to byte {reach * item:,} of {nbytes:,}"
        )
    if operand.nbytes > MOST_BYTES:
        raise ValueError(f"an operand of {operand.nbytes:,} bytes is beyond 32 bits")


def _check_results(work: Work) -> None:
    rule = _rule(work.kind)
    if rule is None:
        raise ValueError("there is no rule for its shapes")
    expected = list(rule(Given(work)))
    for result, made in zip(work.results, expected, strict=True):
        if result is None:
            continue
        if made is None:
            raise ValueError("it gives a result that was not asked for")
        if result.shape != made.shape:
            raise ValueError(f"a result is {list(result.shape)}; it would be {list(made.shape)}")
        if made.dtype is not None and result.dtype != made.dtype:
            raise ValueError(f"a result is of {result.dtype}; it would be of {made.dtype}")
