"""Rules for what treats each element, or each row of elements, by itself."""

from collections.abc import Sequence
from math import prod

import msgspec

from poet.calls.operands import Operand, Work, row_major
from poet.calls.pieces.space import Along, Axis, Reach, Side, Space


def flat(operands: Sequence[Operand], shape: tuple[int, ...]) -> list[Operand]:
    """Operands over as few dimensions as they share: neighbours that none of them has a gap in."""
    wide = [operand.expanded(shape) for operand in operands]
    dims = [d for d, extent in enumerate(shape) if extent != 1]
    groups: list[list[int]] = []
    for d in dims:
        joins = groups and all(x.strides[groups[-1][-1]] == x.strides[d] * x.shape[d] for x in wide)
        if joins:
            groups[-1].append(d)
        else:
            groups.append([d])
    groups = groups or [[]]
    return [
        msgspec.structs.replace(
            x,
            shape=tuple(prod(x.shape[d] for d in group) for group in groups),
            strides=tuple(x.strides[group[-1]] if group else 1 for group in groups),
        )
        for x in wide
    ]


def each(work: Work, names: Sequence[str], is_dense: bool = False) -> Space | None:
    """A call that makes each element of its results from those at the same place."""
    out = next(x for x in work.results if x is not None)
    given = {n: x for n in names if isinstance(x := work.arguments.get(n), Operand)}
    made = [x for x in work.results if x is not None]
    if not out.count or any(x.shape != out.shape for x in made):
        return None
    sides = flat([*made, *given.values()], out.shape)
    if is_dense and len(sides[0].shape) > 1:
        return None
    axes = tuple(Axis(extent) for extent in sides[0].shape)
    reads = {name: _follow(x, is_dense) for name, x in zip(given, sides[len(made) :], strict=True)}
    rest = iter(sides)
    writes = tuple(None if x is None else _follow(next(rest), is_dense) for x in work.results)
    return Space(axes, reads, writes)


def _follow(operand: Operand, is_dense: bool) -> Side:
    """Each dimension along the axis of its number, but for elements that are repeated."""
    reach = tuple(None if stride == 0 else Along(d) for d, stride in enumerate(operand.strides))
    one = tuple(
        1 if stride == 0 else extent
        for extent, stride in zip(operand.shape, operand.strides, strict=True)
    )
    return Side(msgspec.structs.replace(operand, shape=one), reach, is_dense)


def reshaped(operand: Operand, shape: tuple[int, ...]) -> Operand | None:
    """A dense operand in another shape."""
    if not operand.is_dense or prod(shape) != operand.count:
        return None
    return msgspec.structs.replace(operand, shape=shape, strides=row_major(shape))


def table(operand: Operand | None, shape: tuple[int, ...], reach: Reach) -> Side | None:
    """A dense operand in a shape whose dimensions follow these axes."""
    made = None if operand is None else reshaped(operand, shape)
    return None if made is None else Side(made, reach)


_LOGARITHMS = ("aten._log_softmax", "aten._log_softmax_backward_data")


def softmax(work: Work) -> Space | None:
    """Softmax and its logarithm, or a gradient of them, along one dimension."""
    given = {n: x for n, x in work.arguments.items() if isinstance(x, Operand)}
    out = work.results[0]
    if out is None or not out.shape or not out.count:
        return None
    dim = work.arguments["dim"] % len(out.shape)
    shape: tuple[int, ...] = (prod(out.shape[:dim]), out.shape[dim])
    reach: Reach = (Along(0), None)
    axes: tuple[Axis, ...] = (Axis(shape[0]),)
    area = prod(out.shape[dim + 1 :])
    if area != 1:
        if work.family not in _LOGARITHMS:
            return None
        shape, reach, axes = (*shape, area), (*reach, Along(1)), (*axes, Axis(area))
    reads = {name: table(x, shape, reach) for name, x in given.items()}
    write = table(out, shape, reach)
    if write is None or any(side is None for side in reads.values()):
        return None
    return Space(
        axes,
        {name: side for name, side in reads.items() if side is not None},
        (write,),
        {"dim": 1},
    )


def total(work: Work) -> Space | None:
    """A sum or mean over some dimensions: blocks of the others."""
    source, out = work.arguments["self"], work.results[0]
    if not isinstance(source, Operand) or out is None or not source.count or not source.shape:
        return None
    rank, dims = len(source.shape), work.arguments.get("dim")
    dims = [dims] if isinstance(dims, int) else dims or list(range(rank))
    over = {d % rank for d in dims}
    kept = [d for d in range(rank) if d not in over and source.shape[d] != 1]
    if not out.is_dense or 0 in (source.strides[d] for d in kept):
        return None
    axes = tuple(Axis(source.shape[d]) for d in kept)
    reach = tuple(Along(kept.index(d)) if d in kept else None for d in range(rank))
    made = reshaped(out, tuple(axis.extent for axis in axes))
    if made is None:
        return None
    write = Side(made, tuple(Along(n) for n in range(len(axes))))
    one = msgspec.structs.replace(  # repeated elements are read once, and counted as often
        source, shape=source.shape
    )
    return Space(axes, {"self": Side(one, reach, is_dense=False)}, (write,))
