"""Elements by places that data names, the largest of some and where it is, lengths."""

from collections.abc import Callable

import msgspec

from poet.calls.operands import Operand
from poet.firmware.write.kernels.masks import copied
from poet.firmware.write.kernels.site import (
    Site,
    Table,
    kept_and_summed,
    operand,
    result,
    view_text,
)


def _along(site: Site, whole: Operand, places: Operand) -> tuple[int, Operand]:
    """The stride of the dimension that indices are for, and the rest of what they point into."""
    if not whole.shape:
        raise site.refuse("a single number has no places")
    dim = site.arguments["dim"] % len(whole.shape)
    strides = (*whole.strides[:dim], 0, *whole.strides[dim + 1 :])
    return dim, msgspec.structs.replace(whole, shape=places.shape, strides=strides)


def _moved(
    site: Site, name: str, out: Operand, source: Operand, whole: Operand, is_sum: bool = False
) -> str:
    """A kernel that goes by the indices; one of `out` and `source` is a part of `whole`."""
    places = operand(site, "index")
    if {out.dtype, source.dtype} != {"float32"} or places.dtype != "int64":
        raise site.refuse("only float32 by whole numbers is covered")
    dim = site.arguments["dim"] % len(whole.shape)
    shape = site.constant("places", {"extent": whole.shape[dim], "stride": whole.strides[dim],
                                     "is_sum": int(is_sum)})  # fmt: skip
    views = ", ".join(_view(site, x) for x in (out, source, places))
    where = f"{site.at(out)}, {site.at(source)}, {site.at(places)}"
    return f"poet_{name}({where}, {shape}, {views});"


def _view(site: Site, x: Operand) -> str:
    """A view that keeps every dimension: those of indices and of what they name go together."""
    return site.literal("view", view_text(site, x)[1:-1])


def _gather(site: Site) -> list[str]:
    whole, places = operand(site, "self"), operand(site, "index")
    if whole.dtype == "int64":
        return _gather_wholes(site)
    _, source = _along(site, whole, places)
    return [_moved(site, "gather", result(site), source, whole)]


def _gather_wholes(site: Site) -> list[str]:
    out, source, index = result(site), operand(site, "self"), operand(site, "index")
    is_plain = source.is_dense and index.is_dense and len(source.shape) == 2
    if not is_plain or site.arguments["dim"] % 2 != 1 or source.shape[0] != index.shape[0]:
        raise site.refuse("of whole numbers only rows are covered")
    where = f"{site.at(out)}, {site.at(source)}, {site.at(index)}"
    sizes = f"{index.shape[0]}, {source.shape[1]}, {index.shape[1]}"
    return [f"poet_gather_whole({where}, {sizes});"]


def _scatter(is_sum: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, places = result(site), operand(site, "index")
        given = site.arguments["src"]
        if site.arguments.get("reduce") is not None or not isinstance(given, Operand):
            raise site.refuse("only tensors that are put in place or added are covered")
        _, into = _along(site, out, places)
        source = msgspec.structs.replace(given, shape=places.shape)
        first = copied(site, out, operand(site, "self"))
        return [first, _moved(site, "scatter", into, source, out, is_sum)]

    return make


def _extreme(is_least: bool, *which: str) -> Callable[[Site], list[str]]:
    """`which` the results are: `value`, `place`."""

    def make(site: Site) -> list[str]:
        source = operand(site, "self")
        if source.dtype != "float32" or not source.count:
            raise site.refuse("only float32 is covered, and something of it")
        made = {name: site.results[n] for n, name in enumerate(which)}
        for x in made.values():
            if x is not None and not x.is_dense:
                raise site.refuse("its result is not row-major")
        where = ", ".join(site.at(made.get(name)) for name in ("value", "place"))
        outer, inner = kept_and_summed(site, source)
        return [f"poet_extreme({where}, {site.at(source)}, {int(is_least)}, {outer}, {inner});"]

    return make


def _length(power: str) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, source = result(site), operand(site, "self")
        found = site.arguments.get(power)
        found = 2 if found is None else found
        if found not in (1, 2) or {out.dtype, source.dtype} != {"float32"} or not out.is_dense:
            raise site.refuse(f"a length by a power of {found} is not covered")
        outer, inner = kept_and_summed(site, source)
        where = f"{site.at(out)}, {site.at(source)}"
        return [f"poet_length({where}, {int(found == 2)}, {outer}, {inner});"]

    return make


KERNELS: Table = {
    "aten.gather": _gather,
    "aten.scatter.src": _scatter(False),
    "aten.scatter_add": _scatter(True),
    "aten.amax": _extreme(False, "value"),
    "aten.amin": _extreme(True, "value"),
    "aten.max.dim": _extreme(False, "value", "place"),
    "aten.min.dim": _extreme(True, "value", "place"),
    "aten.argmax": _extreme(False, "place"),
    "aten.argmin": _extreme(True, "place"),
    "aten.norm.ScalarOpt_dim": _length("p"),
    "aten.linalg_vector_norm": _length("ord"),
}
