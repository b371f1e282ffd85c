"""Element by element, sums over dimensions, and pieces of tensors."""

from math import ceil
from typing import Any

from poet.calls.operands import Operand
from poet.calls.shapes.given import Given, Made, Rule, Shape, broadcast, checked_dim, size_of


def _reduced(shape: Shape, dims: Any, keepdim: bool) -> Shape:
    listed = [dims] if isinstance(dims, int) else dims or range(len(shape))
    over = {checked_dim(dim, max(1, len(shape))) for dim in listed}
    if len(over) != len(list(listed)):
        raise ValueError(f"a dimension twice in {dims}")
    return tuple(
        1 if d in over else extent for d, extent in enumerate(shape) if keepdim or d not in over
    )


def like(name: str, dtype: str | None = "float32", *others: str) -> Rule:
    """One result as large as an argument, and as the `others`."""

    def rule(given: Given) -> list[Made]:
        for other in others:
            given.must(other, given[name].shape)
        return [Made(given[name].shape, dtype)]

    return rule


def each(*names: str, dtype: str | None = None) -> Rule:
    """Element by element, of operands that are repeated to one shape."""
    return lambda given: [Made(broadcast(given.operands(*names)), dtype)]


def halved(given: Given) -> list[Made]:
    """GLU: one half of a dimension is let through by the other."""
    shape = given["self"].shape
    dim = given.dim("dim", len(shape), -1)
    if shape[dim] % 2:
        raise ValueError(f"halves of {shape[dim]}")
    return [Made((*shape[:dim], shape[dim] // 2, *shape[dim + 1 :]))]


def halved_gradient(given: Given) -> list[Made]:
    (made,) = halved(given)
    given.must("grad_output", made.shape)
    return [Made(given["self"].shape)]


def prelu_gradient(given: Given) -> list[Made]:
    shape = given["self"].shape
    given.must("grad_output", shape)
    if broadcast(given.operands("self", "weight")) != shape:
        raise ValueError(f"slopes of {list(given['weight'].shape)} for {list(shape)}")
    return [Made(shape)] * 2


_TERMS = ("self", "target", "weight", "pos_weight")


def loss(given: Given) -> list[Made]:
    """A term for each element, or their sum."""
    shape = broadcast(given.operands(*_TERMS))
    if shape != given["self"].shape:
        raise ValueError(f"a loss of {list(given['self'].shape)} over {list(shape)}")
    return [Made(() if given.get("reduction", 1) else shape)]


def loss_gradient(given: Given) -> list[Made]:
    (made,) = loss(given)
    given.must("grad_output", made.shape)
    return [Made(given["self"].shape)]


def sized(given: Given) -> list[Made]:
    return [Made(size_of(given), None)]


def reduction(given: Given) -> list[Made]:
    shape = _reduced(given["self"].shape, given.get("dim"), given.get("keepdim", False))
    return [Made(shape, None)]


def truths(given: Given) -> list[Made]:
    return [Made(made.shape, "bool") for made in reduction(given)]


def gather(given: Given) -> list[Made]:
    source, index = given["self"].shape, given["index"].shape
    _check_places(source, index, given.dim("dim", len(source)))
    return [Made(index, given["self"].dtype)]


def _named(given: Given) -> tuple[Shape, Shape]:
    """The shape of the rows that indices name together, and of one row."""
    indices = [x for x in given.arguments["indices"] if isinstance(x, Operand)]
    if not indices or len(indices) > len(given["self"].shape):
        raise ValueError(f"{len(indices)} indices into {list(given['self'].shape)}")
    return broadcast(indices), given["self"].shape[len(given.arguments["indices"]) :]


def index(given: Given) -> list[Made]:
    places, row = _named(given)
    return [Made((*places, *row), given["self"].dtype)]


def index_put(given: Given) -> list[Made]:
    places, row = _named(given)
    given.must("values", (*places, *row))
    return [Made(given["self"].shape)]


def _joined(given: Given, dim: int, parts: list[Operand]) -> Shape:
    first = parts[0].shape
    for part in parts:
        if (*part.shape[:dim], *part.shape[dim + 1 :]) != (*first[:dim], *first[dim + 1 :]):
            raise ValueError(f"{list(part.shape)} beside {list(first)}")
    return (*first[:dim], sum(part.shape[dim] for part in parts), *first[dim + 1 :])


def cat(given: Given) -> list[Made]:
    parts = given.arguments["tensors"]
    return [Made(_joined(given, given.dim("dim", len(parts[0].shape), 0), parts), None)]


def stack(given: Given) -> list[Made]:
    parts = given.arguments["tensors"]
    shape = parts[0].shape
    if any(part.shape != shape for part in parts):
        raise ValueError("parts of several shapes")
    dim = given.dim("dim", len(shape) + 1, 0)
    return [Made((*shape[:dim], len(parts), *shape[dim:]), None)]


def pad(given: Given) -> list[Made]:
    """What is below 0 is taken away."""
    shape, pads = given["self"].shape, given.arguments["pad"]
    if len(pads) % 2 or len(pads) > 2 * len(shape):
        raise ValueError(f"padding {pads} of {list(shape)}")
    both = list(zip(pads[::2], pads[1::2], strict=True))
    for extent, (before, after) in zip(reversed(shape), both, strict=False):
        if extent + min(0, before) + min(0, after) < 0:
            raise ValueError(f"padding {pads} of {list(shape)}")
    more = (*[0] * (len(shape) - len(both)), *map(sum, reversed(both)))
    return [Made(tuple(map(sum, zip(shape, more, strict=True))), None)]


def repeat(given: Given) -> list[Made]:
    shape, times = given["self"].shape, size_of(given, "repeats")
    if len(times) < len(shape):
        raise ValueError(f"{list(times)} times {list(shape)}")
    shape = (1,) * (len(times) - len(shape)) + shape
    return [
        Made(tuple(n * size for n, size in zip(times, shape, strict=True)), given["self"].dtype)
    ]


def turned(given: Given) -> list[Made]:
    """What changes places along some dimensions."""
    shape = given["self"].shape
    dims = given.get("dims", [])
    found = {checked_dim(dim, len(shape)) for dim in ([dims] if isinstance(dims, int) else dims)}
    if not isinstance(dims, int) and len(found) != len(dims):
        raise ValueError(f"a dimension twice in {dims}")
    return [Made(shape, given["self"].dtype)]


def scatter(given: Given) -> list[Made]:
    whole, index = given["self"], given["index"].shape
    dim = given.dim("dim", len(whole.shape))
    for source in given.operands("src"):
        if len(source.shape) != len(index) or any(
            n > most for n, most in zip(index, source.shape, strict=True)
        ):
            raise ValueError(f"indices of {list(index)} for {list(source.shape)}")
    _check_places(whole.shape, index, dim)
    return [Made(whole.shape, whole.dtype)]


def _check_places(whole: Shape, index: Shape, dim: int) -> None:
    """Indices are for one dimension; along all others they go no further than what they are for."""
    if len(whole) != len(index) or any(
        n > most for d, (n, most) in enumerate(zip(index, whole, strict=True)) if d != dim
    ):
        raise ValueError(f"indices of {list(index)} into {list(whole)}")


def extremes(given: Given) -> list[Made]:
    """The largest along a dimension, and where it is."""
    shape = _reduced(given["self"].shape, given.arguments["dim"], given.get("keepdim", False))
    return [Made(shape, given["self"].dtype), Made(shape, "int64")]


def places_of_extremes(given: Given) -> list[Made]:
    return [Made(made.shape, "int64") for made in reduction(given)]


def arange(given: Given) -> list[Made]:
    first, step = given.get("start", 0), given.get("step", 1)
    return [Made((max(0, ceil((given.arguments["end"] - first) / step)),), None)]


def triangle(given: Given) -> list[Made]:
    if len(given["self"].shape) < 2:
        raise ValueError(f"a triangle of {list(given['self'].shape)}")
    return [Made(given["self"].shape, given["self"].dtype)]


def select_gradient(given: Given) -> list[Made]:
    shape = size_of(given, "input_sizes")
    dim = given.dim("dim", len(shape))
    checked_dim(given.arguments["index"], shape[dim])
    given.must("grad_output", (*shape[:dim], *shape[dim + 1 :]))
    return [Made(shape, None)]


def slice_gradient(given: Given) -> list[Made]:
    shape = size_of(given, "input_sizes")
    dim, step = given.dim("dim", len(shape)), given.arguments["step"]
    if step < 1:
        raise ValueError(f"steps of {step}")
    taken = range(shape[dim])[given.arguments["start"] : given.arguments["end"] : step]
    given.must("grad_output", (*shape[:dim], len(taken), *shape[dim + 1 :]))
    return [Made(shape, None)]
