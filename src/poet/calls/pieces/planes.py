"""Rules for norms of channels and for pools.

Both go plane by plane, as they are. A plane that is too large goes in parts: of a norm these are
calls of their own, for its statistics, or sums of gradients, must be complete before they are used.
"""

from math import prod
from typing import Any

import msgspec

from poet.calls.operands import Operand, Work
from poet.calls.pieces.elements import table
from poet.calls.pieces.images import pair, scattered
from poet.calls.pieces.space import Along, Axis, Side, Space, room

CHANNELS, PASS, SAMPLES, AREA = 0, 1, 2, 3
PLANES, ROWS = 0, 1

STATISTICS, APPLIED = "poet.norm_statistics", "poet.norm_apply"
SUMS, GRADIENT = "poet.norm_sums", "poet.norm_gradient"


def batch_norm(work: Work) -> Space | None:
    """BatchNorm and its gradients, channel by channel; with fixed statistics any pixels of them."""
    image = work.arguments["input"]
    if len(image.shape) < 2 or not image.count:
        return None
    if _is_fixed(work) and not work.family.endswith("_backward"):
        return norm_part(work)
    shape = _planes(image)

    def side(x: Operand | None) -> Side | None:
        if x is None:
            return None
        if not x.count:
            return Side(x, (None,) * len(x.shape), is_unread=True)
        if x.shape == image.shape:
            return table(x, shape, (None, Along(CHANNELS), None))
        return Side(x, (Along(CHANNELS),)) if x.shape == (shape[1],) and x.is_dense else None

    return _space((Axis(shape[1]),), work, side)


def _is_fixed(work: Work) -> bool:
    return work.family.endswith("no_training") or not work.arguments.get("training", True)


def _planes(image: Operand) -> tuple[int, int, int]:
    batch, channels = image.shape[:2]
    return batch, channels, image.count // (batch * channels)


def _space(axes: tuple[Axis, ...], work: Work, side: Any) -> Space | None:
    """The space whose sides are these, if every operand has one."""
    reads = {n: side(x) for n, x in work.arguments.items() if isinstance(x, Operand)}
    writes = tuple(side(x) for x in work.results)
    if None in reads.values() or any(
        made is None and x is not None for made, x in zip(writes, work.results, strict=True)
    ):
        return None
    return Space(axes, reads, writes)


def norm_in_parts(work: Work) -> list[Work]:
    """A norm as what takes its statistics and what is made with them."""
    out, *made = work.results
    if out is None or len(made) < 2 or made[0] is None or made[1] is None:
        return [work]
    given = work.arguments
    if _is_fixed(work):
        return [work]
    known = ("input", "running_mean", "running_var", "momentum", "eps")
    first = {n: given[n] for n in known if n in given}
    second: dict[str, Any] = {"save_mean": made[0], "save_invstd": made[1]}
    second |= {n: given[n] for n in ("input", "weight", "bias", "eps") if n in given}
    return [
        Work(work.number, STATISTICS, STATISTICS, first, tuple(made)),
        Work(work.number, APPLIED, APPLIED, second, (out,)),
    ]


def norm_gradient_in_parts(work: Work) -> list[Work]:
    """Gradients of a norm: the sums, which are those of weight and bias, and what follows."""
    image, weight, bias = work.results
    if image is None or weight is None or bias is None:
        return [work]
    given, is_fixed = work.arguments, not work.arguments.get("train", True)
    names = ("running_mean", "running_var") if is_fixed else ("save_mean", "save_invstd")
    if any(given.get(n) is None for n in names):
        return [work]
    first = {n: given[n] for n in ("grad_out", "input", "eps")}
    first |= {"mean": given[names[0]], "inverse": given[names[1]], "is_fixed": is_fixed}
    second = {**first, "weight": given.get("weight"), "to_weight": weight, "to_bias": bias}
    return [
        Work(work.number, SUMS, SUMS, first, (weight, bias)),
        Work(work.number, GRADIENT, GRADIENT, second, (image,)),
    ]


def norm_part(work: Work) -> Space | None:
    """A part of a norm, over some pixels of some channels.

    Sums go sample by sample, each in order; statistics twice, once for the mean and once for what
    the variance is made of. What they have come to is two sums a channel.
    """
    image = work.arguments["input"]
    shape = _planes(image)
    batch, channels, area = shape
    is_sum = work.family in (STATISTICS, SUMS)

    def side(x: Operand | None) -> Side | None:
        if x is None:
            return None
        if not x.count:
            return Side(x, (None,) * len(x.shape), is_unread=True)
        if x.shape == image.shape:
            return table(x, shape, (Along(SAMPLES), Along(CHANNELS), Along(AREA)))
        return Side(x, (Along(CHANNELS),)) if x.shape == (channels,) and x.is_dense else None

    axes = (
        Axis(channels),
        Axis(2 if work.family == STATISTICS else 1),
        Axis(batch, within=PASS if is_sum else None),
        Axis(area, within=SAMPLES if is_sum else None),
    )
    space = _space(axes, work, side)
    if space is None or not is_sum:
        return space
    kept = room("float32", (channels, 4), (Along(CHANNELS), None))
    return msgspec.structs.replace(space, rooms={"sums": kept})


def pool(work: Work) -> Space | None:
    """Pools and their gradients: planes, and rows of windows that have fixed sizes."""
    given = {n: x for n, x in work.arguments.items() if isinstance(x, Operand)}
    made = [x for x in work.results if x is not None]
    planes = {prod(x.shape[:-2]) for x in (*given.values(), *made)}
    if len(planes) != 1 or not all(planes):
        return None
    (count,) = planes
    is_gradient = work.family.endswith("_backward")
    image = made[0] if is_gradient else given["self"]
    rows, of_image, of_windows = _windows(work, image, is_gradient)

    def side(x: Operand | None) -> Side | None:
        if x is None:
            return None
        follows = of_image if x.shape[-2:] == image.shape[-2:] else of_windows
        return table(x, (count, *x.shape[-2:]), (Along(PLANES), follows, None))

    space = _space((Axis(count), Axis(rows)), work, side)
    if space is not None and is_gradient and "self" in space.reads:
        space.reads["self"] = msgspec.structs.replace(space.reads["self"], is_unread=True)
    return space


def _windows(
    work: Work, image: Operand, is_gradient: bool
) -> tuple[int, Along | None, Along | None]:
    """How rows of an image and of windows go together, if planes can be cut: along windows, or for
    gradients along as many rows of the image as windows are apart."""
    other: Operand | None = work.arguments["grad_output"] if is_gradient else work.results[0]
    assert other is not None
    if "adaptive" in work.family or other.shape[-2:] == image.shape[-2:]:
        return 1, None, None
    given = work.arguments
    size, pad = pair(given["kernel_size"], 0)[0], pair(given.get("padding"), 0)[0]
    step = pair(given.get("stride"), 0)[0] or size
    reach = (size - 1) * pair(given.get("dilation"), 1)[0] + 1
    if not is_gradient:
        return other.shape[-2], Along(ROWS, step, pad, reach), Along(ROWS)
    return -(-image.shape[-2] // step), *scattered(ROWS, step, pad, reach)
