"""Rules for products of matrices, norms of rows, tables of rows, attention and losses."""

from math import prod

import msgspec

from poet.calls.loops import MOST_SUM_ROWS, sum_rows
from poet.calls.operands import Operand, Work
from poet.calls.pieces.elements import table
from poet.calls.pieces.space import Along, Axis, Side, Space, room

ROWS, COLUMNS, SUM, BATCH = 0, 1, 2, 3
QUERIES, KEYS = 2, 3
PIXELS = 1
ATTENTION_TILE = 4
"""Queries and keys that firmware's kernel takes at a time."""


def product(work: Work, is_parameter: bool) -> Space | None:
    """Rows by columns, summed over a third axis; a fourth one where there are several products."""
    left = work.arguments["mat1" if work.family == "aten.addmm" else "self"]
    right, out = work.arguments["mat2"], work.results[0]
    if out is None or not out.count or not left.count or not out.is_dense:
        return None
    if any(work.arguments.get(name, 1) != 1 for name in ("alpha", "beta")):
        return None
    batch = (Along(BATCH),) if len(out.shape) == 3 else ()
    granule = sum_rows(4 * right.shape[-1]) if is_parameter and right.is_dense else MOST_SUM_ROWS
    reads = {
        "mat1" if work.family == "aten.addmm" else "self": Side(
            left, (*batch, Along(ROWS), Along(SUM)), is_dense=False
        ),
        "mat2": Side(right, (*batch, Along(SUM), Along(COLUMNS)), is_dense=False),
    }
    if work.family == "aten.addmm":
        bias = work.arguments["self"]
        if bias.shape != out.shape[-1:] or not bias.is_dense:
            return None
        reads["self"] = Side(bias, (Along(COLUMNS),))
    write = Side(out, (*batch, Along(ROWS), Along(COLUMNS)), is_dense=False)
    extents = (*out.shape[-2:], left.shape[-1], *out.shape[:-2])
    axes = tuple(Axis(extent, granule if n == SUM else 1) for n, extent in enumerate(extents))
    return Space(axes, reads, (write,))


def layer_norm(work: Work) -> Space | None:
    """Norms of rows, and their gradients; those of weight and bias are sums over the rows."""
    columns = prod(work.arguments["normalized_shape"])
    image = work.arguments["input"]
    if not columns or not image.count:
        return None
    rows = image.count // columns
    shapes = {
        **dict.fromkeys(("input", "grad_out"), ((rows, columns), (Along(0), None))),
        **dict.fromkeys(("mean", "rstd"), ((rows,), (Along(0),))),
        **dict.fromkeys(("weight", "bias"), ((columns,), (None,))),
    }
    is_forward = work.family == "aten.native_layer_norm"
    results = ("input", "mean", "rstd") if is_forward else ("input", "weight", "bias")
    reads = {
        name: table(x, *shapes[name])
        for name, x in work.arguments.items()
        if isinstance(x, Operand)
    }
    writes = [
        None if x is None else table(x, *shapes[name])
        for name, x in zip(results, work.results, strict=True)
    ]
    if None in reads.values() or any(
        made is None and x is not None for made, x in zip(writes, work.results, strict=True)
    ):
        return None
    return Space(
        (Axis(rows),),
        {name: side for name, side in reads.items() if side is not None},
        tuple(writes),
        {"normalized_shape": [columns]},
    )


def embedding(work: Work, streamed: frozenset[int]) -> Space | None:
    """Rows of a table that indices name: one by one, where the table is in the store."""
    weight, indices, out = work.arguments["weight"], work.arguments["indices"], work.results[0]
    if out is None or not weight.is_dense or not out.is_dense or not out.count:
        return None
    count, columns = indices.count, weight.shape[1]
    made = table(out, (count, columns), (Along(0), Along(1)))
    if made is None:
        return None
    is_named = weight.storage[0] == "tensor" and weight.storage[1] in streamed
    if is_named:
        if count >= weight.shape[0]:
            return None
        side = Side(weight, (Along(0), Along(1)), named_by="indices")
        axes = (Axis(count, is_single=True), Axis(columns))
        whole = Side(indices, (None,) * len(indices.shape), is_dense=False)
        return Space(axes, {"weight": side, "indices": whole}, (made,))
    places = table(indices, (count,), (Along(0),))
    if places is None:
        return None
    reads = {"weight": Side(weight, (None, None)), "indices": places}
    made = table(out, (count, columns), (Along(0), None))
    return None if made is None else Space((Axis(count),), reads, (made,))


def embedding_gradient(work: Work, only_named: bool) -> Space | None:
    """Rows of a table's gradient: those that indices name, or all of them in order."""
    gradient, indices, out = (
        work.arguments["grad_output"],
        work.arguments["indices"],
        work.results[0],
    )
    if out is None or not out.is_dense or not indices.is_dense or not out.count:
        return None
    if work.arguments.get("scale_grad_by_freq"):
        return None
    rows, columns = out.shape
    count = indices.count
    read = table(gradient, (count, columns), (None, Along(1)))
    whole = Side(indices, (None,) * len(indices.shape))
    if read is None:
        return None
    write = Side(out, (Along(0), Along(1)), named_by="indices" if only_named else None)
    axes = (Axis(count, is_single=True) if only_named else Axis(rows), Axis(columns))
    return Space(axes, {"grad_output": read, "indices": whole}, (write,))


def attention(work: Work) -> Space | None:
    """Attention: heads, and blocks of queries, summed over blocks of keys."""
    return _attention(work, ("query", "query"), is_cut=True)


def attention_gradients(work: Work) -> Space | None:
    """Gradients of attention, head by head. Those of queries are sums over keys, those of keys and
    values over queries: wanted by themselves they go in blocks of both."""
    query, *others = work.results
    is_cut = query is None or others == [None, None]
    return _attention(work, ("query", "key", "value"), is_cut)


_OF_KEYS = ("key", "value")


def _attention(work: Work, made: tuple[str, ...], is_cut: bool) -> Space | None:
    query, key = work.arguments["query"], work.arguments["key"]
    if len(query.shape) != 4 or not query.count or not key.count:
        return None
    reads = {
        name: _head(x, name, is_cut) for name, x in work.arguments.items() if isinstance(x, Operand)
    }
    writes = tuple(
        None if x is None else _head(x, name, is_cut)
        for name, x in zip(made, work.results, strict=False)
    )
    if None in reads.values() or any(
        side is None and x is not None for side, x in zip(writes, work.results, strict=False)
    ):
        return None
    axes = [Axis(extent) for extent in query.shape[:2]]
    rooms = {}
    if is_cut:
        axes += [Axis(x.shape[2], ATTENTION_TILE) for x in (query, key)]
        if not work.family.endswith("_backward"):
            reach = (*(Along(d) for d in range(3)), None)
            rooms["state"] = room("float32", (*query.shape[:3], 2), reach)
    sides = {name: side for name, side in reads.items() if side is not None}
    return Space(tuple(axes), sides, writes, rooms=rooms)


def _head(operand: Operand, name: str, is_cut: bool) -> Side | None:
    """An operand of [batch][head][query or key][...], each of which may be one for all."""
    axes: list[int | None] = [0, 1, KEYS if name in _OF_KEYS else QUERIES, None]
    if name == "attn_mask":
        axes[3] = KEYS
    if not is_cut:
        axes[2:] = [None, None]
    if name == "attn_mask":
        axes = axes[4 - len(operand.shape) :]
    elif len(operand.shape) < 3:
        return None
    shape = [
        1 if axis is not None and stride == 0 else extent
        for axis, extent, stride in zip(axes, operand.shape, operand.strides, strict=False)
    ]
    reach = tuple(
        None if axis is None or extent == 1 else Along(axis)
        for axis, extent in zip(axes, shape, strict=False)
    )
    return Side(msgspec.structs.replace(operand, shape=tuple(shape)), reach, is_dense=False)


def loss(work: Work) -> Space | None:
    """The loss of rows of scores, and its gradient."""
    scores, target = work.arguments["self"], work.arguments["target"]
    if len(scores.shape) < 2 or work.arguments.get("weight") is not None or not scores.count:
        return None
    if work.arguments.get("reduction", 1) == 0:
        return None
    rows, classes, *area = scores.shape
    shape = (rows, classes, prod(area))
    by_row = (Along(0), None, Along(PIXELS))
    reads = {
        "self": table(scores, shape, by_row),
        "target": table(target, (rows, prod(area)), (Along(0), Along(PIXELS))),
    }
    if None in reads.values():
        return None
    writes: tuple[Side | None, ...]
    is_sum = work.family.endswith("forward")
    if is_sum:
        writes = tuple(None if x is None else Side(x, ()) for x in work.results)
    else:
        for name in ("grad_output", "total_weight"):
            reads[name] = Side(work.arguments[name], (None,) * len(work.arguments[name].shape))
        made = work.results[0]
        writes = (table(made, shape, by_row) if made is not None else None,)
        if writes[0] is None:
            return None
        reads["self"] = Side(reads["self"].operand, by_row, is_unread=True)  # type: ignore[union-attr]
    axes = (Axis(rows), Axis(prod(area), within=0 if is_sum else None))
    return Space(axes, {name: side for name, side in reads.items() if side is not None}, writes)
