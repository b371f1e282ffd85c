"""A call in its place, and what most entries of the table ask of it."""

from collections.abc import Callable
from typing import Any, Protocol

from poet.calls.loops import MOST_SUM_ROWS
from poet.calls.operands import Operand

Fields = dict[str, int | float]


class Site(Protocol):
    """A call in its place: operands by name, as C expressions, and constants for shapes."""

    kind: str
    family: str
    arguments: dict[str, Any]
    results: tuple[Operand | None, ...]
    op_number: int

    def refuse(self, why: str) -> Exception: ...
    def at(self, operand: Operand | None, further: int = 0) -> str:
        """The address, some elements further, as a C expression; `NULL` for None."""
        ...

    def constant(self, struct: str, fields: Fields) -> str:
        """The address of a constant struct with these fields."""
        ...

    def literal(self, struct: str, text: str) -> str:
        """The address of a constant struct with these initializers, as C."""
        ...

    def view(self, operand: Operand) -> str:
        """The address of a constant view of the operand."""
        ...

    def scalar(self, operand: Operand) -> str:
        """The one element of an operand as a C expression."""
        ...

    def is_parameter(self, operand: Operand) -> bool: ...
    def with_arguments(self, arguments: dict[str, Any]) -> "Site":
        """The same call with other arguments."""
        ...


def operand(site: Site, name: str) -> Operand:
    found = site.arguments.get(name)
    if not isinstance(found, Operand):
        raise site.refuse(f"its argument {name} is not a tensor")
    return found


def dense(site: Site, name: str, dtype: str = "float32") -> Operand:
    found = operand(site, name)
    if not found.is_dense or found.dtype != dtype:
        raise site.refuse(f"its argument {name} is not a row-major {dtype} tensor")
    return found


def maybe(site: Site, name: str) -> Operand | None:
    return None if site.arguments.get(name) is None else dense(site, name)


def result(site: Site, n: int = 0) -> Operand:
    found = site.results[n]
    if found is None:
        raise site.refuse("its result is not used")
    return found


def dense_result(site: Site) -> Operand:
    out = result(site)
    if not out.is_dense:
        raise site.refuse("its result is not row-major")
    return out


def dense_results(site: Site) -> tuple[Operand | None, ...]:
    if any(x is not None and not x.is_dense for x in site.results):
        raise site.refuse("its results are not row-major")
    return site.results


def addresses(site: Site, *operands: Operand | None) -> str:
    """The addresses of operands, as a kernel takes them."""
    return ", ".join(map(site.at, operands))


def pair(site: Site, name: str, default: Any = None) -> tuple[int, int]:
    found = site.arguments.get(name)
    found = default if found is None or found == [] else found
    if isinstance(found, int):
        return found, found
    return (found[0], found[-1])


MOST_DIMS = 4
"""Dimensions of a view in C."""


def view_text(site: Site, operand: Operand) -> str:
    """The initializer of a view that keeps every dimension, the last one last."""
    missing = MOST_DIMS - len(operand.shape)
    if missing < 0:
        raise site.refuse(f"it has {len(operand.shape)} dimensions that cannot be merged")
    sizes, strides = (1,) * missing + operand.shape, (0,) * missing + operand.strides
    return "".join(["{{", ", ".join(map(str, sizes)), "}, {", ", ".join(map(str, strides)), "}}"])


def rows_of(site: Site, operand: Operand, dim: int) -> tuple[int, int]:
    """How many rows along the last dimension, which `dim` must be, and how long each is."""
    if dim % len(operand.shape) != len(operand.shape) - 1:
        raise site.refuse("only the last dimension is covered")
    return operand.count // operand.shape[-1], operand.shape[-1]


def place_of(operand: Operand, text: str) -> str:
    """Where the element with this number lies, as C: a repeated one lies where the first does."""
    if operand.is_dense:
        return text
    terms, inner = [], operand.count
    for size, stride in zip(operand.shape, operand.strides, strict=True):
        inner //= size
        if size > 1 and stride != 0:
            terms.append(f"{text} / {inner} % {size} * {stride}")
    return " + ".join(terms) or "0"


def kept_and_summed(site: Site, source: Operand) -> tuple[str, str]:
    """Views of the dimensions that a sum keeps, and of those it goes over."""
    rank, dims = len(source.shape), site.arguments.get("dim")
    dims = [dims] if isinstance(dims, int) else dims or range(rank)
    over = {d % rank for d in dims} if rank else set()
    kept = [d for d in range(rank) if d not in over]
    parts = []
    for wanted in (kept, sorted(over)):
        shape = tuple(source.shape[d] for d in wanted)
        strides = tuple(source.strides[d] for d in wanted)
        parts.append(site.view(Operand(source.storage, 0, shape, strides, source.dtype)))
    return parts[0], parts[1]


def product_shape(
    site: Site,
    left: Operand,
    right: Operand,
    block: int = MOST_SUM_ROWS,
    out_row: int | None = None,
) -> str:
    """The constant for a product of two matrices, which the last two dimensions are.

    `out_row` is given where the result is a part of wider rows.
    """
    fields: Fields = {
        "m": left.shape[-2], "n": right.shape[-1], "k": left.shape[-1],
        "a_row": left.strides[-2], "a_column": left.strides[-1],
        "b_row": right.strides[-2], "b_column": right.strides[-1],
        "out_row": right.shape[-1] if out_row is None else out_row, "block": block,
    }  # fmt: skip
    return site.constant("matmul", fields)


Table = dict[str, Callable[[Site], list[str]]]
"""From the kind of a call, or its kind without the overload, to the C statements that do it."""
