"""Rules for convolutions."""

from math import prod
from typing import NamedTuple

from poet.calls.loops import MOST_SUM_ROWS, sum_rows
from poet.calls.operands import Operand, Work
from poet.calls.pieces.space import Along, Axis, Reach, Side, Space

SAMPLES, OUT_CHANNELS, CHANNELS, ROWS = 0, 1, 2, 3


def pair(value: object, default: int) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if isinstance(value, list | tuple) and value:
        return int(value[0]), int(value[-1])
    return default, default


class _Conv(NamedTuple):
    """The numbers of a convolution that its blocks depend on, down the rows."""

    step: int
    pad: int
    reach: int
    """From the first tap to the last, both included."""
    groups: int
    is_transposed: bool
    is_product: bool
    """Whether it is a product of matrices, which is summed in blocks."""


def _conv(work: Work, weight: Operand) -> _Conv:
    given = work.arguments
    stride, pad = pair(given.get("stride"), 1), pair(given.get("padding"), 0)
    dilation = pair(given.get("dilation"), 1)[0]
    is_product = weight.shape[2:] == (1, 1) and stride == (1, 1) and pad == (0, 0)
    reach = (weight.shape[2] - 1) * dilation + 1
    groups, is_transposed = given.get("groups", 1), bool(given.get("transposed"))
    return _Conv(stride[0], pad[0], reach, groups, is_transposed, is_product)


def _channels(rule: _Conv, image: Operand, out: Operand) -> tuple[Along, Along, Reach, int]:
    """How input planes, output planes and the weight follow the axes of channels; and, of groups,
    how many there are: they go along the axis of output channels, and nothing is summed."""
    if rule.groups == 1:
        outs, planes = Along(OUT_CHANNELS), Along(CHANNELS)
        pair = (planes, outs) if rule.is_transposed else (outs, planes)
        return planes, outs, (*pair, None, None), 0
    apart, many = image.shape[1] // rule.groups, out.shape[1] // rule.groups
    planes, outs = Along(1, apart, 0, apart), Along(1, many, 0, many)
    first = planes if rule.is_transposed else outs
    return planes, outs, (first, None, None, None), rule.groups


def conv(work: Work) -> Space | None:
    """A convolution: samples, output channels and rows, summed over input channels."""
    image, weight, out = work.arguments["input"], work.arguments["weight"], work.results[0]
    if out is None or not _is_plain(image, weight, out):
        return None
    rule = _conv(work, weight)
    planes, outs, over, groups = _channels(rule, image, out)
    granule = MOST_SUM_ROWS if rule.is_product else 1
    channels = Axis(1) if groups else Axis(image.shape[1], granule)
    rows: Along | None = Along(ROWS, rule.step, rule.pad, rule.reach)
    made: Along | None = Along(ROWS)
    if rule.is_transposed:
        rows = made = None
    sides = {
        "input": Side(image, (Along(SAMPLES), planes, rows, None)),
        "weight": Side(weight, over),
    }
    bias = work.arguments.get("bias")
    if bias is not None:
        sides["bias"] = Side(bias, (outs,))
    write = Side(out, (Along(SAMPLES), outs, made, None))
    axes = (Axis(image.shape[0]), Axis(groups or out.shape[1]), channels, Axis(out.shape[2]))
    return Space(axes, sides, (write,))


def scattered(axis: int, step: int, pad: int, reach: int) -> tuple[Along, Along]:
    """How rows of an image, `step` at a time, and the windows that look at them go together: each
    window begins so many rows after the one before it and reaches over `reach` rows."""
    before, beyond = (reach - 1 - pad) // step, (step - 1 + pad) // step
    return Along(axis, step, 0, step), Along(axis, 1, before, before + beyond + 1)


def _is_plain(*operands: Operand) -> bool:
    return all(len(x.shape) == 4 and x.count and x.dtype == "float32" for x in operands)


def conv_gradients(work: Work) -> Space | None:
    """Gradients of a convolution, over blocks of output and input channels.

    That of the image is a sum over output channels, in blocks of its own where it is a product;
    where it is wanted alone it goes by samples, too, and by rows, as many at a time as the
    convolution goes on by. Those of weight and bias are sums over samples and rows.
    """
    gradient, image = work.arguments["grad_output"], work.arguments["input"]
    weight = work.arguments["weight"]
    to_image, to_weight, to_bias = work.results
    if not _is_plain(image, weight, gradient) or (to_image is None and to_weight is None):
        return None
    if any(x is not None and not x.is_dense for x in work.results):
        return None
    if to_bias is not None and to_weight is None:
        return None
    rule = _conv(work, weight)
    planes, outs, over, groups = _channels(rule, image, gradient)
    granule = 1
    if rule.is_product and to_image is not None:
        granule = sum_rows(4 * prod(weight.shape[1:]))
    samples: Along | None = None
    down: Along | None = None  # of the image
    across: Along | None = None  # of its result's gradient
    rows = Axis(1)
    if to_image is None or to_weight is None:
        samples = Along(SAMPLES)
    if rule.is_transposed:
        pass
    elif to_weight is None:
        down, across = scattered(ROWS, rule.step, rule.pad, rule.reach)
        rows = Axis(-(-image.shape[2] // rule.step))
    elif to_image is None:
        down, across = Along(ROWS, rule.step, rule.pad, rule.reach), Along(ROWS)
        part = -(-MOST_SUM_ROWS // gradient.shape[3])
        rows = Axis(gradient.shape[2], part, within=SAMPLES)
    axes = (
        Axis(image.shape[0] if samples else 1),
        Axis(groups) if groups else Axis(gradient.shape[1], granule),
        Axis(1) if groups else Axis(image.shape[1]),
        rows,
    )
    reads = {
        "grad_output": Side(gradient, (samples, outs, across, None)),
        "input": Side(image, (samples, planes, down, None), is_unread=to_weight is None),
        "weight": Side(weight, over, is_unread=to_image is None),
    }
    writes = (
        None if to_image is None else Side(to_image, (samples, planes, down, None)),
        None if to_weight is None else Side(to_weight, over),
        None if to_bias is None else Side(to_bias, (outs,)),
    )
    return Space(axes, reads, writes)
