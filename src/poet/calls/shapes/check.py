"""The rules by kind of call, and the check that asks them."""

from poet.calls.operands import Operand, Work
from poet.calls.references import storage_bytes
from poet.calls.shapes import elements, images, rows
from poet.calls.shapes.given import Given, Made, Rule
from poet.calls.sizes import ITEM_BYTES
from poet.errors import PoetError
from poet.values.graph import Graph, printable
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

RULES: dict[str, Rule] = {
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
        ("aten.neg", "aten.pow.Tensor_Scalar", "aten.clamp", "aten.clone", "aten._to_copy",
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
    "aten.embedding": rows.embedding,
    "aten.embedding_dense_backward": rows.embedding_gradient,
    "aten._scaled_dot_product_flash_attention_for_cpu": rows.attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": rows.attention_gradient,
    "poet.dropout_mask": elements.sized,
    "poet.sgd": rows.update("momentum_buffer"),
    "poet.adam": rows.update("exp_avg", "exp_avg_sq"),
    "poet.adamw": rows.update("exp_avg", "exp_avg_sq"),
}  # fmt: skip


def check_calls(graph: Graph, k: int) -> None:
    """Refuse an op with a call that POET cannot answer for, whether or not it does work."""
    for call in graph.ops[k].calls:
        try:
            check_whole(call.kind, call.arguments, call.results)
        except ValueError as error:
            where = f"{printable(call.kind)} of {graph.op_text(k)}"
            raise PoetError(f"{where} cannot be done: {error}") from None


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
