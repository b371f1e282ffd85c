"""FLOPs of one call: a table from kind to formula.

A multiplication with its addition is 2 FLOPs, as the literature counts and as
`torch.utils.flop_counter` does, with which matrix products, convolutions and attention agree to the
last digit; as there, adding a bias is not counted, nor is work saved that a causal mask or padding
would allow to skip. One difference is wanted: for the weight gradient of a convolution in groups
PyTorch's counter takes every input channel with every output channel, `groups` times what is done.

All else is counted per element (`per_element`). A kind that no table knows is estimated as one FLOP
per element of its results; `is_known` tells which those are. Element types make no difference here:
a device gives one rate.
"""

from collections.abc import Callable
from math import ceil, log2, prod
from typing import Any

from poet.calls.references import is_given
from poet.calls.sizes import Array, SizedCall
from poet.calls.updates import CLEAR, GATHER
from poet.costs.per_element import PER_READ_ELEMENT, PER_RESULT_ELEMENT
from poet.errors import PoetError
from poet.values.torch_optimizers import NAMES

Formula = Callable[[SizedCall], int]


def call_flops(call: SizedCall) -> int:
    """The FLOPs of a call; of an unknown kind, one per element of its results."""
    if call.is_view:
        return 0
    formula = FORMULAS.get(call.family)
    if formula is not None:
        try:
            flops = formula(call)
            if flops < 0:
                raise ValueError(f"{flops} FLOPs")
            return flops
        except (IndexError, TypeError, ValueError) as error:
            shapes = ", ".join(f"{read.name} {list(read.array.shape)}" for read in call.reads)
            raise PoetError(
                f"{call.where} does not fit its kind: {error}; it is given {shapes[:200]}"
            ) from error
    if (per_result := PER_RESULT_ELEMENT.get(call.family)) is not None:
        return per_result * call.result.elements if per_result else 0
    if (per_read := PER_READ_ELEMENT.get(call.family)) is not None:
        return per_read * call.most_read
    return sum(result.elements for result in call.results if result is not None)


def is_known(family: str) -> bool:
    """Whether calls of this kind are counted; of all others the work is an estimate."""
    return family in FORMULAS or family in PER_RESULT_ELEMENT or family in PER_READ_ELEMENT


# Matrix products: every element of the result is a sum of products over a row.


def _product(argument: str) -> Formula:
    def formula(call: SizedCall) -> int:
        return 2 * call.result.elements * call.array(argument).shape[-1]

    return formula


def _grouped_product(call: SizedCall) -> int:
    """Rows in groups, each with a matrix of its own; or columns, where the matrices come first."""
    left, right = call.array("self"), call.array("mat2")
    if len(left.shape) > len(right.shape):
        return 2 * call.result.elements * left.shape[-1]
    return 2 * left.elements * right.shape[-1]


def _linear_backward(call: SizedCall) -> int:
    mask = call.argument("output_mask")
    rows = prod(call.array("self").shape[:-1])
    return 2 * rows * call.array("weight").elements * (bool(mask[0]) + bool(mask[1]))


def _rnn_layer(passes: int, input_weight: str, hidden_weight: str) -> Formula:
    """Each step of the sequence goes through both matrices; twice more on the way back."""

    def formula(call: SizedCall) -> int:
        steps = prod(call.array("input").shape[:-1])
        weights = call.array(input_weight).elements + call.array(hidden_weight).elements
        return passes * 2 * steps * weights

    return formula


# Convolutions: at every point where the filter is put, all its elements are used once; a transposed
# one puts it at the points of its input. Each of the two gradients takes as much again.


def _convolution(call: SizedCall) -> int:
    transposed = is_given(call.arguments.get("transposed"))
    return _filter_products(call, call.array("input") if transposed else call.result)


def _transposed_convolution(call: SizedCall) -> int:
    return _filter_products(call, call.array("input"))


def _convolution_backward(call: SizedCall) -> int:
    mask = call.argument("output_mask")
    points = call.array("input" if call.argument("transposed") else "grad_output")
    return _filter_products(call, points) * (bool(mask[0]) + bool(mask[1]))


def _filter_products(call: SizedCall, points: Array) -> int:
    weight = call.array("weight")
    spatial = len(weight.shape) - 2
    if spatial < 1 or len(points.shape) not in (spatial + 1, spatial + 2):
        raise ValueError(f"points {list(points.shape)} with weights {list(weight.shape)}")
    batch = points.shape[0] if len(points.shape) == spatial + 2 else 1
    return 2 * batch * prod(points.shape[-spatial:]) * weight.elements


# Attention: scores and their product with the values; on the way back the scores once more, and two
# products for each of the two.


def _attention(call: SizedCall) -> int:
    pairs, depth, value_depth = _attention_sizes(call)
    return 2 * pairs * (depth + value_depth)


def _attention_backward(call: SizedCall) -> int:
    pairs, depth, value_depth = _attention_sizes(call)
    return 2 * pairs * (3 * depth + 2 * value_depth)


def _attention_sizes(call: SizedCall) -> tuple[int, int, int]:
    query, key, value = (call.array(name).shape for name in ("query", "key", "value"))
    return prod(query[:-1]) * key[-2], query[-1], value[-1]


# Windows, sorting, losses and scattered sums.


def _pool(axes: int, result: bool) -> Formula:
    """One comparison or addition for each element of the window."""

    def formula(call: SizedCall) -> int:
        points = call.result if result else call.array("grad_output")
        return points.elements * _window(call.argument("kernel_size"), axes)

    return formula


def _window(kernel_size: Any, axes: int) -> int:
    extents = kernel_size if isinstance(kernel_size, list | tuple) else [kernel_size]
    return int(prod(extents) if len(extents) == axes else extents[0] ** axes)


def _sort(call: SizedCall) -> int:
    array = call.array("self")
    dim = call.arguments.get("dim", -1)
    row: int = array.shape[dim] if array.shape else 1
    return array.elements * max(1, ceil(log2(max(1, row))))


def _power(call: SizedCall) -> int:
    """A square is one multiplication, a root 4; any other power an exponential and a logarithm."""
    exponent = call.arguments.get("exponent")
    weights = {2: 1, 3: 2, 4: 2, 0.5: 4, -1: 4, -2: 5, -0.5: 8, 1: 0, 0: 0}
    number = exponent if isinstance(exponent, int | float) else None
    return call.result.elements * (17 if number is None else weights.get(number, 17))


def _per_element_of(argument: str, flops: int, when: str | None = None) -> Formula:
    def formula(call: SizedCall) -> int:
        if when is not None and not is_given(call.arguments.get(when)):
            return 0
        return flops * call.array(argument).elements

    return formula


def _dropout_mask(call: SizedCall) -> int:
    """A random number and a division."""
    return 12 * call.result.elements


_MOVES = tuple(
    f"poet.{name}"
    for name in (
        *("required", "decided", "solved"),  # checks
        *("places", "selected", "selected_backward"),
        *("packed", "packed_backward", "padded", "padded_backward"),
    )
)
"""Operators of POET's own that compute nothing, and move what they are given."""


# Updates, per element of the parameter.


def _sgd(call: SizedCall) -> int:
    has = {name: is_given(argument) for name, argument in call.arguments.items()}
    flops = 2 + 2 * has.get("weight_decay", False)
    if has.get("momentum"):
        flops += 2 + has.get("dampening", False) + 2 * has.get("nesterov", False)
    return flops * call.array("parameter").elements


def _adam(decay: int) -> Formula:
    """Averages 3 + 4, root 4, its correction 4, epsilon 1, quotient 4, step 2; weight decay."""

    def formula(call: SizedCall) -> int:
        has_decay = is_given(call.arguments.get("weight_decay"))
        return (22 + decay * has_decay) * call.array("parameter").elements

    return formula


CONVOLUTIONS = "convolution _convolution convolution_overrideable conv1d conv2d conv3d"
TRANSPOSED = "conv_transpose1d conv_transpose2d conv_transpose3d"
ATTENTIONS = """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable
"""

FORMULAS: dict[str, Formula] = {
    "aten.mm": _product("self"),
    "aten.bmm": _product("self"),
    "aten.mv": _product("self"),
    "aten.dot": _product("self"),
    "aten.matmul": _product("self"),
    "aten.linear": _product("input"),
    "aten.addmm": _product("mat1"),
    "aten._addmm_activation": _product("mat1"),
    "aten.addmv": _product("mat"),
    "aten.baddbmm": _product("batch1"),
    "aten._grouped_mm": _grouped_product,
    "aten.linear_backward": _linear_backward,
    "aten.mkldnn_rnn_layer": _rnn_layer(1, "weight0", "weight1"),
    "aten.mkldnn_rnn_layer_backward": _rnn_layer(2, "weight1", "weight2"),
    **{f"aten.{name}": _convolution for name in CONVOLUTIONS.split()},
    **{f"aten.{name}": _transposed_convolution for name in TRANSPOSED.split()},
    "aten.convolution_backward": _convolution_backward,
    **{f"aten.{name}": _attention for name in ATTENTIONS.split()},
    "aten.scaled_dot_product_attention": _attention,
    **{f"aten.{name}_backward": _attention_backward for name in ATTENTIONS.split()},
    "aten.max_pool2d_with_indices": _pool(2, result=True),
    "aten.max_pool3d_with_indices": _pool(3, result=True),
    "aten.max_pool2d": _pool(2, result=True),
    "aten.avg_pool2d": _pool(2, result=True),
    "aten.avg_pool3d": _pool(3, result=True),
    "aten.avg_pool2d_backward": _pool(2, result=False),
    "aten.avg_pool3d_backward": _pool(3, result=False),
    "aten.sort": _sort,
    "aten.argsort": _sort,
    "aten.topk": _sort,
    "aten.pow": _power,
    "aten.float_power": _power,
    "aten.nll_loss_forward": _per_element_of("target", 2),
    "aten.nll_loss_backward": _per_element_of("target", 2),
    "aten.nll_loss2d_forward": _per_element_of("target", 2),
    "aten.nll_loss2d_backward": _per_element_of("target", 2),
    "aten.scatter_add": _per_element_of("src", 1),
    "aten.scatter_reduce": _per_element_of("src", 1),
    "aten.index_add": _per_element_of("source", 1),
    "aten.index_put": _per_element_of("values", 1, when="accumulate"),
    "aten._unsafe_index_put": _per_element_of("values", 1, when="accumulate"),
    "poet.dropout_mask": _dropout_mask,
    "poet.tangent": lambda call: 0,  # the caller brings it
    **dict.fromkeys(_MOVES, lambda call: 0),
    "poet.sgd": _sgd,
    "poet.adam": _adam(2),
    "poet.adamw": _adam(1),
    **dict.fromkeys(NAMES, _adam(2)),  # the others of torch.optim do about as much
    GATHER: _per_element_of("gradient", 1),
    CLEAR: lambda call: 0,
}
