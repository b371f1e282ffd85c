"""Masks: comparisons, choices, and whole numbers, of any layout.

Whole numbers are int64, truths bool. Where types mix, what is of another type than the result is
converted into the result first, which takes no memory beside it.
"""

from collections.abc import Callable
from math import prod

from poet.calls.operands import Operand, row_major
from poet.calls.sizes import ITEM_BYTES
from poet.firmware.write.kernels.site import Site, Table, kept_and_summed, operand, result
from poet.firmware.write.text import c_float, c_int

PLURALS = {"float32": "floats", "int64": "wholes", "bool": "truths"}
_STRUCTS = {"float32": "real", "int64": "whole", "bool": "truth"}
_LARGEST = 2**63 - 1


def plural(site: Site, *dtypes: str) -> str:
    """What the elements are called in the names of kernels, if they are all of one type."""
    if len(set(dtypes)) != 1 or dtypes[0] not in PLURALS:
        raise site.refuse(f"elements of {' and '.join(sorted(set(dtypes)))} are not covered")
    return PLURALS[dtypes[0]]


def whole_text(site: Site, value: float) -> str:
    """A whole number in C."""
    if not float(value).is_integer() or abs(value) > _LARGEST:
        raise site.refuse(f"{value} is no whole number of 64 bits")
    return c_int(int(value))


def number_text(site: Site, value: float, dtype: str) -> str:
    """A number in C, as an element of this type."""
    plural(site, dtype)
    if dtype == "float32":
        return c_float(value)
    return whole_text(site, value) if dtype == "int64" else str(int(bool(value)))


def argument(site: Site, given: Operand | float, out: Operand, dtype: str) -> tuple[str, str]:
    """Address and view of a tensor, or of a number, repeated to the result's shape."""
    if isinstance(given, Operand):
        plural(site, given.dtype, dtype)
        return site.at(given), site.view(given.expanded(out.shape))
    constant = site.literal(_STRUCTS[dtype], number_text(site, given, dtype))
    nowhere = Operand(out.storage, 0, out.shape, (0,) * len(out.shape), dtype)
    return f"{constant}.value", site.view(nowhere)


def call(
    site: Site,
    name: str,
    out: Operand,
    *given: Operand | float,
    more: str = "",
    dtype: str | None = None,
) -> str:
    """A kernel of tensors and numbers, with `more` before the views.

    Numbers are of the type given, or of that of the first tensor.
    """
    dtype = dtype or next(x.dtype for x in given if isinstance(x, Operand))
    parts = [argument(site, x, out, x.dtype if isinstance(x, Operand) else dtype) for x in given]
    addresses = ", ".join([site.at(out), *(address for address, _ in parts)])
    views = ", ".join([site.view(out), *(view for _, view in parts)])
    return f"poet_{name}({addresses}, {more}{views});"


def copied(site: Site, out: Operand, source: Operand) -> str:
    """A copy that turns elements into those of the result's type, repeated to its shape."""
    into, of = plural(site, out.dtype), plural(site, source.dtype)
    if into != of and into == "truths":
        return call(
            site,
            f"compare_{of}",
            out,
            source,
            0.0,
            more="POET_LESS | POET_GREATER | POET_UNORDERED, ",
        )
    if into != of:
        return call(site, f"{into}_of_{of}", out, source)
    if out.is_dense and source.is_dense and out.count == source.count:
        return f"poet_copy_bytes({site.at(out)}, {site.at(source)}, {out.nbytes});"
    return call(site, "copy_view" if into == "floats" else f"copy_{into}", out, source)


def packed(site: Site, name: str, into: Operand | None) -> tuple[list[str], Operand]:
    """An argument as a row-major tensor: a copy in the memory of a result, where it is none.

    Whoever asks writes the result over what he has read of it.
    """
    found = operand(site, name)
    if found.dtype != "float32":
        raise site.refuse(f"its argument {name} is not a float32 tensor")
    if found.is_dense:
        return [], found
    if into is None or not into.is_dense or into.count != found.count:
        raise site.refuse(f"its argument {name} is not row-major")
    made = Operand(into.storage, into.offset, found.shape, row_major(found.shape), found.dtype)
    return [copied(site, made, found)], made


def of_one_type(
    site: Site, out: Operand, *given: Operand | float
) -> tuple[list[str], list[Operand | float]]:
    """The operands as ones of the result's type, and the statement that converts one of them."""
    odd = [x for x in given if isinstance(x, Operand) and x.dtype != out.dtype]
    if len(odd) > 1:
        raise site.refuse("two operands of other types than the result are not covered")
    lines = [copied(site, out, x) for x in odd]
    return lines, [out if any(x is y for y in odd) else x for x in given]


def filled(site: Site, out: Operand, value: float) -> str:
    text = number_text(site, value, out.dtype)
    if out.dtype == "bool":
        return f"poet_fill_bytes({site.at(out)}, {text}, {out.count});"
    if out.dtype == "int64":
        return f"poet_count_up({site.at(out)}, {text}, 0, {out.count});"
    return f"poet_fill({site.at(out)}, {text}, {out.count});"


def add(site: Site, first: Operand | float, second: Operand | float, factor: float) -> list[str]:
    """A sum of whole numbers, or of truths, of which it is that either is true."""
    out = result(site)
    lines, (a, b) = of_one_type(site, out, first, second)
    if out.dtype == "bool":
        return [*lines, call(site, "join_truths", out, a, b, more="POET_OR, ")]
    plural(site, out.dtype, "int64")
    return [*lines, call(site, "add_wholes", out, a, b, more=f"{whole_text(site, factor)}, ")]


def multiply(site: Site, first: Operand | float, second: Operand | float) -> list[str]:
    """A product of whole numbers, or of truths, of which it is that both are true."""
    out = result(site)
    lines, (a, b) = of_one_type(site, out, first, second)
    if out.dtype == "bool":
        return [*lines, call(site, "join_truths", out, a, b, more="POET_AND, ")]
    plural(site, out.dtype, "int64")
    return [*lines, call(site, "multiply_wholes", out, a, b)]


def clamped(site: Site, low: float | None, high: float | None) -> str:
    """Whole numbers within limits."""
    least = "INT64_MIN" if low is None else whole_text(site, low)
    most = "INT64_MAX" if high is None else whole_text(site, high)
    source = operand(site, "self")
    plural(site, source.dtype, "int64")
    return call(site, "clamp_wholes", result(site), source, more=f"{least}, {most}, ")


def _compared(wanted: str) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        first, second = operand(site, "self"), site.arguments["other"]
        kind = plural(site, *(x.dtype for x in (first, second) if isinstance(x, Operand)))
        if kind == "truths" and not isinstance(second, Operand) and second not in (0, 1):
            raise site.refuse(f"a truth beside {second} is not covered")
        return [call(site, f"compare_{kind}", result(site), first, second, more=f"{wanted}, ")]

    return make


def _joined(table: str) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, first, second = result(site), operand(site, "self"), site.arguments["other"]
        tensors = [x for x in (out, first, second) if isinstance(x, Operand)]
        if any(x.dtype != "bool" for x in tensors):
            raise site.refuse("only truths are covered")
        return [call(site, "join_truths", out, first, second, more=f"{table}, ")]

    return make


def _not(site: Site) -> list[str]:
    out, source = result(site), operand(site, "self")
    if source.dtype == "bool":
        return [call(site, "join_truths", out, source, source, more="POET_NOT, ")]
    if site.kind.startswith("aten.bitwise"):
        raise site.refuse("only truths are covered")
    kind = plural(site, source.dtype)
    return [call(site, f"compare_{kind}", out, source, 0.0, more="POET_EQUAL, ")]


def _where(site: Site) -> list[str]:
    first, second = site.arguments["self"], site.arguments["other"]
    return _chosen(site, operand(site, "condition"), first, second)


def _masked_fill(site: Site) -> list[str]:
    return _chosen(site, operand(site, "mask"), site.arguments["value"], operand(site, "self"))


def _chosen(
    site: Site, condition: Operand, first: Operand | float, second: Operand | float
) -> list[str]:
    out = result(site)
    plural(site, condition.dtype, "bool")
    lines, (a, b) = of_one_type(site, out, first, second)
    name = f"choose_{plural(site, out.dtype)}"
    return [*lines, call(site, name, out, condition, a, b, dtype=out.dtype)]


def _to_copy(site: Site) -> list[str]:
    return [copied(site, result(site), operand(site, "self"))]


def _filled_with(value: float) -> Callable[[Site], list[str]]:
    return lambda site: [filled(site, result(site), value)]


def _scalar_tensor(site: Site) -> list[str]:
    return [filled(site, result(site), site.arguments["s"])]


def _arange(site: Site) -> list[str]:
    out = result(site)
    first, step = site.arguments.get("start", 0), site.arguments.get("step", 1)
    plural(site, out.dtype, "int64")
    words = f"{whole_text(site, first)}, {whole_text(site, step)}, {out.count}"
    return [f"poet_count_up({site.at(out)}, {words});"]


def _cumsum(site: Site) -> list[str]:
    out, source = result(site), operand(site, "self")
    plural(site, out.dtype, "int64")
    if not source.shape:
        return [copied(site, out, source)]
    dim = site.arguments["dim"] % len(out.shape)
    sizes = f"{prod(out.shape[:dim])}, {out.shape[dim]}, {prod(out.shape[dim + 1 :])}"
    return [copied(site, out, source), f"poet_sum_along({site.at(out)}, {sizes});"]


def _triangle(is_lower: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, source = result(site), operand(site, "self")
        lines = []
        if not source.is_dense:
            lines, source = [copied(site, out, source)], out
        rows, columns = out.shape[-2:]
        edge = site.arguments.get("diagonal", 0) + int(is_lower)
        sizes = f"{out.count // (rows * columns)}, {rows}, {columns}, {ITEM_BYTES[out.dtype]}"
        operands = f"{site.at(out)}, {site.at(source)}"
        return [*lines, f"poet_triangle({operands}, {sizes}, {c_int(edge)}, {int(is_lower)});"]

    return make


def _found(wanted: int) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        source = operand(site, "self")
        plural(site, source.dtype, "bool")
        outer, inner = kept_and_summed(site, source)
        operands = f"{site.at(result(site))}, {site.at(source)}"
        return [f"poet_find_truths({operands}, {wanted}, {outer}, {inner});"]

    return make


def named_rows(
    site: Site, table: Operand, indices: list[Operand | None], *more: Operand
) -> tuple[str, str]:
    """The rows of a table that indices name: C for the indices, and for the shapes."""
    if not all(x is not None and x.dtype == "int64" for x in indices) or len(indices) > 2:
        raise site.refuse("only one or two whole numbers for the first dimensions are covered")
    if not all(x.is_dense for x in (table, *more)):
        raise site.refuse("its tensors are not row-major")
    given = [x for x in indices if x is not None]
    rank = max(len(x.shape) for x in given)
    shapes = [(1,) * (rank - len(x.shape)) + x.shape for x in given]
    shape = tuple(map(max, zip(*shapes, strict=True)))
    places = Operand(table.storage, 0, shape, (0,) * rank, "int64")
    both: list[Operand | float] = [*given, 0.0] if len(given) == 1 else [*given]
    parts = [argument(site, x, places, "int64") for x in both]
    extents = [*table.shape[: len(given)], 1][:2]
    row = prod(table.shape[len(given) :]) * ITEM_BYTES[table.dtype]
    fields = site.constant("rows", {"a_extent": extents[0], "b_extent": extents[1],
                                    "row_bytes": row})  # fmt: skip
    addresses, views = (", ".join(part[n] for part in parts) for n in (0, 1))
    return addresses, f"{fields}, {views}"


def _index(site: Site) -> list[str]:
    out, source = result(site), operand(site, "self")
    places, shape = named_rows(site, source, site.arguments["indices"], out)
    return [f"poet_pick_rows({site.at(out)}, {site.at(source)}, {places}, {shape});"]


def _index_put(site: Site) -> list[str]:
    out, values = result(site), operand(site, "values")
    plural(site, out.dtype, values.dtype, "float32")
    if not site.arguments.get("accumulate"):
        raise site.refuse("only rows that are added are covered")
    places, shape = named_rows(site, out, site.arguments["indices"], values)
    copy = copied(site, out, operand(site, "self"))
    return [copy, f"poet_add_rows({site.at(out)}, {site.at(values)}, {places}, {shape});"]


KERNELS: Table = {
    "aten.eq": _compared("POET_EQUAL"),
    "aten.ne": _compared("POET_LESS | POET_GREATER | POET_UNORDERED"),
    "aten.lt": _compared("POET_LESS"),
    "aten.le": _compared("POET_LESS | POET_EQUAL"),
    "aten.gt": _compared("POET_GREATER"),
    "aten.ge": _compared("POET_GREATER | POET_EQUAL"),
    "aten.bitwise_and": _joined("POET_AND"),
    "aten.logical_and": _joined("POET_AND"),
    "aten.bitwise_or": _joined("POET_OR"),
    "aten.logical_or": _joined("POET_OR"),
    "aten.bitwise_xor": _joined("POET_XOR"),
    "aten.logical_xor": _joined("POET_XOR"),
    "aten.bitwise_not": _not,
    "aten.logical_not": _not,
    "aten.where": _where,
    "aten.masked_fill": _masked_fill,
    "aten._to_copy": _to_copy,
    "aten.ones": _filled_with(1),
    "aten.ones_like": _filled_with(1),
    "aten.new_ones": _filled_with(1),
    "aten.scalar_tensor": _scalar_tensor,
    "aten.arange": _arange,
    "aten.cumsum": _cumsum,
    "aten.tril": _triangle(True),
    "aten.triu": _triangle(False),
    "aten.any": _found(1),
    "aten.all": _found(0),
    "aten.index": _index,
    "aten.index_put": _index_put,
}
