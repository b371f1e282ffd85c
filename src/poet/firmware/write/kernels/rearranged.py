"""What puts elements in other places, repeats them or pads them: copies by views."""

from itertools import product

import msgspec

from poet.calls.operands import Operand, row_major
from poet.calls.pieces.elements import flat
from poet.firmware.write.kernels.masks import copied, filled
from poet.firmware.write.kernels.site import MOST_DIMS, Site, Table, operand, result

_MOST_COPIES = 256


def _split(whole: Operand, dim: int, *sizes: int) -> Operand:
    """A dimension as several, the last the fastest."""
    inner = row_major(sizes)
    shape = (*whole.shape[:dim], *sizes, *whole.shape[dim + 1 :])
    steps = (step * whole.strides[dim] for step in inner)
    strides = (*whole.strides[:dim], *steps, *whole.strides[dim + 1 :])
    return msgspec.structs.replace(whole, shape=shape, strides=strides)


def _ordered(whole: Operand, *dims: int) -> Operand:
    shape, strides = (tuple(x[d] for d in dims) for x in (whole.shape, whole.strides))
    return msgspec.structs.replace(whole, shape=shape, strides=strides)


def _copy(site: Site, out: Operand, source: Operand) -> list[str]:
    """A copy over as few dimensions as both share; if those are too many for a view, one for each
    place along the shortest."""
    into, of = flat([out, source], out.shape)
    if len(into.shape) <= MOST_DIMS:
        return [copied(site, into, of)]
    dim = min(range(len(into.shape)), key=into.shape.__getitem__)
    if into.shape[dim] > _MOST_COPIES:
        raise site.refuse(f"{into.shape[dim]} copies are too many")
    places = range(into.shape[dim])
    return [x for n in places for x in _copy(site, _part(into, dim, n, 1), _part(of, dim, n, 1))]


def _repeat(site: Site) -> list[str]:
    """Each dimension of the result as two: how often, and what is repeated."""
    out, source = result(site), operand(site, "self")
    missing = (1,) * (len(out.shape) - len(source.shape))
    shape, strides = missing + source.shape, (0,) * len(missing) + source.strides
    for dim, size in enumerate(shape):
        out = _split(out, 2 * dim, out.shape[2 * dim] // max(1, size), size)
    shape = tuple(extent for size in shape for extent in (1, size))
    strides = tuple(step for stride in strides for step in (0, stride))
    source = msgspec.structs.replace(source, shape=shape, strides=strides)
    return _copy(site, out, source.expanded(out.shape))


def _rolled(site: Site) -> list[str]:
    """Pieces that change places: two in each direction that is rolled."""
    out, source = result(site), operand(site, "self")
    shifts, dims = (_listed(site.arguments.get(name)) for name in ("shifts", "dims"))
    if not dims:
        if not out.is_dense or not source.is_dense:
            raise site.refuse("what is rolled as a whole must be row-major")
        out, source = (
            msgspec.structs.replace(x, shape=(x.count,), strides=(1,)) for x in (out, source)
        )
        dims = [0]
    pieces = []
    for shift, dim in zip(shifts, dims, strict=True):
        extent = out.shape[dim]
        by = shift % max(1, extent)
        pieces.append([(dim % len(out.shape), by, 0, extent - by),
                       (dim % len(out.shape), 0, extent - by, by)])  # fmt: skip
    lines = []
    for chosen in product(*pieces):
        into, of = out, source
        for dim, to, start, size in chosen:
            into, of = _part(into, dim, to, size), _part(of, dim, start, size)
        if into.count:
            lines += _copy(site, into, of)
    return lines


def _part(whole: Operand, dim: int, first: int, size: int) -> Operand:
    shape = (*whole.shape[:dim], size, *whole.shape[dim + 1 :])
    offset = whole.offset + first * whole.strides[dim]
    return msgspec.structs.replace(whole, offset=offset, shape=shape)


def _listed(found: int | list[int] | None) -> list[int]:
    return [found] if isinstance(found, int) else list(found or [])


def _flipped(site: Site) -> list[str]:
    """A copy of each place along the first of the dimensions, the others after it."""
    out, source = result(site), operand(site, "self")
    pairs = [(out, source)]
    for dim in (d % len(out.shape) for d in site.arguments["dims"]):
        extent = out.shape[dim]
        pairs = [
            (_part(into, dim, n, 1), _part(of, dim, extent - 1 - n, 1))
            for into, of in pairs
            for n in range(extent)
        ]
    if len(pairs) > _MOST_COPIES:
        raise site.refuse(f"{len(pairs)} copies for what is flipped are too many")
    return [line for into, of in pairs for line in _copy(site, into, of)]


def _shuffled(site: Site) -> list[str]:
    out, source, groups = result(site), operand(site, "self"), site.arguments["groups"]
    channels = out.shape[1] // groups
    rest = range(3, len(out.shape) + 1)
    turned = _ordered(_split(source, 1, groups, channels), 0, 2, 1, *rest)
    return _copy(site, _split(out, 1, channels, groups), turned)


def _pixels(large: Operand, small: Operand, factor: int) -> tuple[Operand, Operand]:
    """An image and one with as many more channels as it has fewer pixels, element by element."""
    rank = len(large.shape)
    before = range(rank - 2)
    wide = _split(large, rank - 2, small.shape[-2], factor)
    wide = _split(wide, rank, small.shape[-1], factor)
    deep = _split(_split(small, rank - 3, large.shape[-3], factor**2), rank - 2, factor, factor)
    deep = _ordered(deep, *before, rank, rank - 2, rank + 1, rank - 1)
    return wide, deep


def _pixel_shuffle(site: Site) -> list[str]:
    out, source = result(site), operand(site, "self")
    wide, deep = _pixels(out, source, site.arguments["upscale_factor"])
    return _copy(site, wide, deep)


def _pixel_unshuffle(site: Site) -> list[str]:
    out, source = result(site), operand(site, "self")
    wide, deep = _pixels(source, out, site.arguments["downscale_factor"])
    return _copy(site, deep, wide)


def _pad(site: Site) -> list[str]:
    """What is inside, between what is added; what is taken away is passed over."""
    out, source, pads = result(site), operand(site, "self"), site.arguments["pad"]
    into, of = out, source
    for n, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        dim = len(out.shape) - 1 - n
        size = source.shape[dim] - max(0, -before) - max(0, -after)
        into = _part(into, dim, max(0, before), size)
        of = _part(of, dim, max(0, -before), size)
    fill = [] if max((0, *pads)) == 0 else [filled(site, out, site.arguments.get("value", 0))]
    return [*fill, copied(site, into, of)]


KERNELS: Table = {
    "aten.constant_pad_nd": _pad,
    "aten.repeat": _repeat,
    "aten.roll": _rolled,
    "aten.flip": _flipped,
    "aten.channel_shuffle": _shuffled,
    "aten.pixel_shuffle": _pixel_shuffle,
    "aten.pixel_unshuffle": _pixel_unshuffle,
}
