"""Rules for convolutions, norms of channels and pools."""

from math import prod

import msgspec

from poet.calls.loops import MOST_SUM_ROWS, sum_rows
from poet.calls.operands import Operand, Work
from poet.calls.pieces.elements import table
from poet.calls.pieces.space import Along, Axis, Reach, Side, Space

SAMPLES, OUT_CHANNELS, CHANNELS, ROWS = 0, 1, 2, 3


def _pair(value: object, default: int) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if isinstance(value, list | tuple) and value:
        return int(value[0]), int(value[-1])
    return default, default


def conv(work: Work) -> Space | None:
    """A convolution: samples, output channels and rows, summed over input channels."""
    image, weight, out = work.arguments["input"], work.arguments["weight"], work.results[0]
    if out is None or not _is_plain(work, image, weight, out):
        return None
    groups = work.arguments.get("groups", 1)
    bias = work.arguments.get("bias")
    step, pad, dilation = (
        _pair(work.arguments.get(name), usual)[0]
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    width = (weight.shape[2] - 1) * dilation + 1
    over: Reach
    if groups == 1:
        over = (Along(OUT_CHANNELS), Along(CHANNELS))
        axes = _axes(image.shape[0], out.shape[1], Axis(image.shape[1], _granule(work, weight)))
        planes = Along(CHANNELS)
        made = Along(OUT_CHANNELS)
    else:
        apart, many = image.shape[1] // groups, out.shape[1] // groups
        planes, made = Along(1, apart, 0, apart), Along(1, many, 0, many)
        over = (made, None)
        axes = _axes(image.shape[0], groups, Axis(1))
    rows = Along(ROWS, step, pad, width)
    sides = {
        "input": Side(image, (Along(SAMPLES), planes, rows, None)),
        "weight": Side(weight, (*over, None, None)),
    }
    if bias is not None:
        sides["bias"] = Side(bias, (made,))
    write = Side(out, (Along(SAMPLES), made, Along(ROWS), None))
    return Space((*axes, Axis(out.shape[2])), sides, (write,))


def _axes(samples: int, outs: int, channels: Axis) -> tuple[Axis, ...]:
    return (Axis(samples), Axis(outs), channels)


def _is_plain(work: Work, image: Operand, weight: Operand, out: Operand) -> bool:
    shapes = (image, weight, out)
    return (
        not work.arguments.get("transposed")
        and all(len(x.shape) == 4 and x.is_dense and x.count for x in shapes)
        and all(x.dtype == "float32" for x in shapes)
    )


def _is_product(work: Work, weight: Operand) -> bool:
    """Whether a convolution is a product of matrices, which sums in blocks of its own."""
    stride, pad = _pair(work.arguments.get("stride"), 1), _pair(work.arguments.get("padding"), 0)
    return weight.shape[2:] == (1, 1) and stride == (1, 1) and pad == (0, 0)


def _granule(work: Work, weight: Operand) -> int:
    return MOST_SUM_ROWS if _is_product(work, weight) else 1


def conv_gradients(work: Work) -> Space | None:
    """Gradients of a convolution, over blocks of output and input channels.

    That of the image is a sum over output channels; those of weight and bias are not sums.
    """
    gradient, image = work.arguments["grad_output"], work.arguments["input"]
    weight = work.arguments["weight"]
    to_image, to_weight, to_bias = work.results
    if not _is_plain(work, image, weight, gradient):
        return None
    if any(x is not None and not x.is_dense for x in work.results):
        return None
    groups = work.arguments.get("groups", 1)
    over: Reach
    if groups == 1:
        block = sum_rows(4 * prod(weight.shape[1:])) if _is_product(work, weight) else 1
        outs, planes = Along(OUT_CHANNELS), Along(CHANNELS)
        over = (outs, planes, None, None)
        axes = _axes(1, gradient.shape[1], Axis(image.shape[1]))
        axes = (axes[0], msgspec.structs.replace(axes[1], granule=block), axes[2])
    else:
        apart, many = image.shape[1] // groups, gradient.shape[1] // groups
        planes, outs = Along(1, apart, 0, apart), Along(1, many, 0, many)
        over = (outs, None, None, None)
        axes = _axes(1, groups, Axis(1))
    reads = {
        "grad_output": Side(gradient, (None, outs, None, None)),
        "input": Side(image, (None, planes, None, None), is_unread=to_weight is None),
        "weight": Side(weight, over, is_unread=to_image is None),
    }
    if to_image is None and to_weight is None:
        return None
    if to_bias is not None and groups == 1 and to_weight is None:
        return None
    writes = (
        None if to_image is None else Side(to_image, (None, planes, None, None)),
        None if to_weight is None else Side(to_weight, over),
        None if to_bias is None else Side(to_bias, (outs,)),
    )
    return Space(axes, reads, writes)


def batch_norm(work: Work) -> Space | None:
    """BatchNorm and its gradients, channel by channel."""
    image = work.arguments["input"]
    if len(image.shape) < 2 or not image.count:
        return None
    channels = image.shape[1]
    shape = (image.shape[0], channels, image.count // (image.shape[0] * channels))

    def side(x: Operand | None) -> Side | None:
        if x is None:
            return None
        if not x.count:
            return Side(x, (None,) * len(x.shape), is_unread=True)
        if x.shape == image.shape:
            return table(x, shape, (None, Along(0), None))
        return Side(x, (Along(0),)) if x.shape == (channels,) and x.is_dense else None

    reads = {n: side(x) for n, x in work.arguments.items() if isinstance(x, Operand)}
    writes = tuple(side(x) for x in work.results)
    if None in reads.values() or any(
        made is None and x is not None for made, x in zip(writes, work.results, strict=True)
    ):
        return None
    return Space(
        (Axis(channels),), {n: made for n, made in reads.items() if made is not None}, writes
    )


def pool(work: Work) -> Space | None:
    """Pools and their gradients, plane by plane."""
    given = {n: x for n, x in work.arguments.items() if isinstance(x, Operand)}
    made = [x for x in work.results if x is not None]
    planes = {prod(x.shape[:-2]) for x in (*given.values(), *made)}
    if len(planes) != 1 or not all(planes):
        return None
    (count,) = planes

    def side(x: Operand | None) -> Side | None:
        if x is None:
            return None
        return table(x, (count, *x.shape[-2:]), (Along(0), None, None))

    reads = {n: side(x) for n, x in given.items()}
    writes = tuple(side(x) for x in work.results)
    if None in reads.values() or any(
        made is None and x is not None for made, x in zip(writes, work.results, strict=True)
    ):
        return None
    if "self" in reads and work.family.endswith("_backward"):
        reads["self"] = msgspec.structs.replace(reads["self"], is_unread=True)  # type: ignore[type-var]
    return Space((Axis(count),), {n: x for n, x in reads.items() if x is not None}, writes)
