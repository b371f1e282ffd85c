"""Blocks of norms and pools in PyTorch, where planes go in parts."""

import torch
from torch.nn import functional as F

from poet.calls.pieces.images import pair
from poet.calls.pieces.planes import AREA, PASS, SAMPLES
from poet.runtime.step.block_site import Block, Nest, any_call

# ---- norms: [samples][channels][pixels], and rows of channels ----


def _over(row: torch.Tensor) -> torch.Tensor:
    return row[None, :, None]


def _count(nest: Nest) -> int:
    return nest.space.axes[SAMPLES].extent * nest.space.axes[AREA].extent


def _summed(nest: Nest, at: Block, **parts: torch.Tensor) -> None:
    """Adds to sums over pixels, which are kept in float64."""
    is_first = nest.is_first(at, SAMPLES, AREA)
    for name, part in parts.items():
        total = part.sum((0, 2), dtype=torch.float64)
        nest.sums[name] = total if is_first else nest.sums[name] + total


def statistics(nest: Nest, at: Block) -> None:
    image, here = nest.read("input", at), at[PASS]
    mean, inverse = nest.write(0, at), nest.write(1, at)
    assert mean is not None
    assert inverse is not None
    is_last, count = nest.is_last(at, SAMPLES, AREA), _count(nest)
    if here.start == 0:
        _summed(nest, at, all=image)
        if is_last:
            mean.copy_(nest.sums["all"] / count)
    if here.start + here.size < 2:
        return
    _summed(nest, at, squares=(image - _over(mean)).square_())
    if not is_last:
        return
    squares, momentum = nest.sums["squares"], nest.argument("momentum")
    inverse.copy_((squares / count + nest.argument("eps")).rsqrt())
    for number, name, found in (
        (2, "running_mean", mean),
        (3, "running_var", squares / (count - 1)),
    ):
        new = nest.write(number, at) if number < len(nest.space.writes) else None
        if new is not None:
            new.copy_(momentum * found + (1 - momentum) * nest.read(name, at))


def applied(nest: Nest, at: Block) -> None:
    to, factor = nest.write(0, at), nest.read("save_invstd", at)
    assert to is not None
    if "weight" in nest.space.reads:
        factor = factor * nest.read("weight", at)
    made = (nest.read("input", at) - _over(nest.read("save_mean", at))).mul_(_over(factor))
    if "bias" in nest.space.reads:
        made.add_(_over(nest.read("bias", at)))
    to.copy_(made)


def _inverse(nest: Nest, at: Block) -> torch.Tensor:
    given = nest.read("inverse", at)
    return (given + nest.argument("eps")).rsqrt() if nest.argument("is_fixed") else given


def sums(nest: Nest, at: Block) -> None:
    gradient = nest.read("grad_out", at)
    off = nest.read("input", at) - _over(nest.read("mean", at))
    _summed(nest, at, plain=gradient, products=off.mul_(gradient))
    if nest.is_last(at, SAMPLES, AREA):
        to_weight, to_bias = nest.write(0, at), nest.write(1, at)
        assert to_weight is not None
        assert to_bias is not None
        to_weight.copy_(nest.sums["products"] * _inverse(nest, at))
        to_bias.copy_(nest.sums["plain"])


def gradient(nest: Nest, at: Block) -> None:
    to, inverse, count = nest.write(0, at), _inverse(nest, at), _count(nest)
    assert to is not None
    factor = inverse * nest.read("weight", at) if "weight" in nest.space.reads else inverse
    made = nest.read("grad_out", at)
    if not nest.argument("is_fixed"):
        along = nest.read("to_weight", at) * inverse / count
        off = (nest.read("input", at) - _over(nest.read("mean", at))).mul_(_over(along))
        made = (made - _over(nest.read("to_bias", at) / count)).sub_(off)
    to.copy_(made * _over(factor))


# ---- pools: [planes][rows][columns], with windows counted from a plane's first row ----


class _Pool:
    """The windows of a block: which rows they are, and what of the image they look at."""

    def __init__(self, nest: Nest, at: Block, is_gradient: bool) -> None:
        image = nest.space.writes[0] if is_gradient else nest.space.reads["self"]
        windows = nest.space.reads["grad_output"] if is_gradient else nest.space.writes[0]
        assert image is not None
        assert windows is not None
        self.is_cut = image.reach[1] is not None
        given = nest.work.arguments
        self.size = pair(given["kernel_size"], 0)
        stride = pair(given.get("stride"), 0)
        self.step = stride if stride[0] else self.size
        self.pad, self.dilation = pair(given.get("padding"), 0), pair(given.get("dilation"), 1)
        self.height, self.width = image.operand.shape[1:]
        self.out_width = windows.operand.shape[2]
        here, there = nest.piece(image, at), nest.piece(windows, at)
        self.first, self.rows = here.start[1], here.shape[1]
        self.out_first, self.out_rows = there.start[1], there.shape[1]
        self.top = self.out_first * self.step[0] - self.pad[0]
        """The row of the plane where the first window begins; above 0 is padding."""

    @property
    def reached(self) -> tuple[int, int]:
        """The rows and columns that the windows reach over, padding included."""
        rows, columns = (
            (count - 1) * step + (size - 1) * apart + 1
            for count, step, size, apart in zip(
                (self.out_rows, self.out_width), self.step, self.size, self.dilation, strict=True
            )
        )
        return rows, columns

    def padded(self, image: torch.Tensor, value: float) -> torch.Tensor:
        rows, columns = self.reached
        above = self.first - self.top
        below, right = rows - above - self.rows, columns - self.pad[1] - self.width
        return F.pad(image, (self.pad[1], right, above, below), value=value)[:, None]

    def divisor(self, nest: Nest) -> torch.Tensor:
        given = nest.work.arguments
        if given.get("divisor_override"):
            return torch.tensor(float(given["divisor_override"]))
        counts = []
        for n, (first, count, extent) in enumerate(
            ((self.out_first, self.out_rows, self.height), (0, self.out_width, self.width))
        ):
            begin = torch.arange(first, first + count) * self.step[n] - self.pad[n]
            end = (begin + self.size[n]).clamp(max=extent + self.pad[n])
            if not given.get("count_include_pad", True):
                begin, end = begin.clamp(min=0), end.clamp(max=extent)
            counts.append(end - begin)
        return (counts[0][:, None] * counts[1]).float()


def max_pool(nest: Nest, at: Block) -> None:
    pool = _Pool(nest, at, is_gradient=False)
    if not pool.is_cut:
        return any_call(nest, at)
    out, where = nest.write(0, at), nest.write(1, at)
    assert out is not None
    padded = pool.padded(nest.read("self", at), -torch.inf)
    found, place = torch.ops.aten.max_pool2d_with_indices.default(
        padded, list(pool.size), list(pool.step), [0, 0], list(pool.dilation)
    )
    out.copy_(found[:, 0])
    if where is not None:
        width = padded.shape[-1]
        row = (place[:, 0] // width + pool.top).clamp_(0, pool.height - 1)
        column = (place[:, 0] % width - pool.pad[1]).clamp_(0, pool.width - 1)
        where.copy_(row * pool.width + column)
    return None


def max_pool_backward(nest: Nest, at: Block) -> None:
    pool = _Pool(nest, at, is_gradient=True)
    if not pool.is_cut:
        return any_call(nest, at)
    to = nest.write(0, at)
    assert to is not None
    to.zero_()
    place = nest.read("indices", at).flatten(1) - pool.first * pool.width
    inside = (place >= 0) & (place < pool.rows * pool.width)
    some = torch.where(inside, nest.read("grad_output", at).flatten(1), 0.0)
    to.view(to.shape[0], -1).scatter_add_(1, place.clamp_(0, pool.rows * pool.width - 1), some)
    return None


def average_pool(nest: Nest, at: Block) -> None:
    pool = _Pool(nest, at, is_gradient=False)
    if not pool.is_cut:
        return any_call(nest, at)
    to = nest.write(0, at)
    assert to is not None
    padded = pool.padded(nest.read("self", at), 0.0)
    total = F.avg_pool2d(padded, pool.size, pool.step, divisor_override=1)
    to.copy_(total[:, 0].div_(pool.divisor(nest)))
    return None


def average_pool_backward(nest: Nest, at: Block) -> None:
    pool = _Pool(nest, at, is_gradient=True)
    if not pool.is_cut:
        return any_call(nest, at)
    to = nest.write(0, at)
    assert to is not None
    to.zero_()
    if not pool.out_rows:
        return None
    share = nest.read("grad_output", at) / pool.divisor(nest)
    shape = torch.empty(()).expand(to.shape[0], 1, *pool.reached)
    made = torch.ops.aten.avg_pool2d_backward.default(
        share[:, None], shape, list(pool.size), list(pool.step), [0, 0], False, True, 1
    )[:, 0]
    begin, end = max(pool.top, pool.first), min(pool.top + made.shape[1], pool.first + pool.rows)
    columns = min(pool.width, made.shape[2] - pool.pad[1])
    some = made[:, begin - pool.top : end - pool.top, pool.pad[1] : pool.pad[1] + columns]
    to[:, begin - pool.first : end - pool.first, :columns] = some
    return None
