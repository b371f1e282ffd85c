"""What treats each element by itself, copies and constants."""

from collections.abc import Callable
from math import inf

from poet.calls.operands import Operand
from poet.firmware.write.kernels import masks
from poet.firmware.write.kernels.site import Site, Table, addresses, dense, operand, result
from poet.firmware.write.text import c_float, c_int


def _one(name: str, *constants: str) -> Callable[[Site], list[str]]:
    """A kernel of one tensor and some constants."""

    def make(site: Site) -> list[str]:
        out, source = _alike(site, result(site), operand(site, "self"))
        more = "".join(f", {c_float(site.arguments[n])}" for n in constants)
        return [f"{name}({site.at(out)}, {site.at(source)}{more}, {out.count});"]

    return make


def _alike(site: Site, out: Operand, source: Operand) -> tuple[Operand, Operand]:
    """Two float32 tensors whose elements lie in the same order, without gaps."""
    if {out.dtype, source.dtype} != {"float32"}:
        raise site.refuse("only float32 is covered")
    if not _is_alike(out, source):
        raise site.refuse("its tensors lie in memory in different orders")
    return out, source


def _is_alike(out: Operand, source: Operand) -> bool:
    if {out.dtype, source.dtype} != {"float32"} or out.count != source.count:
        return False
    same = out.strides == source.strides and out.is_whole
    return same or (out.is_dense and source.is_dense)


def _gradient_of(name: str, other: str, *constants: str) -> Callable[[Site], list[str]]:
    """A kernel of a gradient and what it is the gradient of."""

    def make(site: Site) -> list[str]:
        out, gradient, known = result(site), dense(site, "grad_output"), dense(site, other)
        more = "".join(f", {c_float(site.arguments[n])}" for n in constants)
        operands = addresses(site, out, gradient, known)
        return [f"{name}({operands}{more}, {out.count});"]

    return make


def _plus(sign: int) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, first, second = result(site), operand(site, "self"), site.arguments["other"]
        factor = sign * site.arguments.get("alpha", 1)
        if not isinstance(second, Operand):
            if _is_alike(out, first):
                return [_with_number(site, "shift", first, second * factor)]
            if out.dtype == first.dtype == "int64" and first.is_dense and isinstance(second, int):
                operands = f"{site.at(out)}, {site.at(first)}, {c_int(second * factor)}"
                return [f"add_whole({operands}, {out.count});"]
        return _sum(site, first, second, factor)

    return make


def _subtract_from(site: Site) -> list[str]:
    factor = -site.arguments.get("alpha", 1)
    return _sum(site, site.arguments["other"], operand(site, "self"), factor)


def _sum(site: Site, first: Operand | float, second: Operand | float, factor: float) -> list[str]:
    if result(site).dtype != "float32":
        return masks.add(site, first, second, factor)
    return _two(site, "add", first, second, f"{c_float(factor)}, ")


def _multiply(site: Site) -> list[str]:
    return _product(site, operand(site, "self"), site.arguments["other"])


def _negative(site: Site) -> list[str]:
    return _product(site, operand(site, "self"), -1)


def _product(site: Site, first: Operand, second: Operand | float) -> list[str]:
    out = result(site)
    if out.dtype != "float32":
        return masks.multiply(site, first, second)
    if not isinstance(second, Operand) and _is_alike(out, first):
        return [_with_number(site, "scale", first, second)]
    return _two(site, "multiply", first, second)


def _divide(site: Site) -> list[str]:
    first, second = operand(site, "self"), site.arguments["other"]
    if site.arguments.get("rounding_mode") is not None:
        raise site.refuse("quotients that are rounded are not covered")
    if not isinstance(second, Operand) and _is_alike(result(site), first):
        return [_with_number(site, "divide_by", first, second)]
    return _two(site, "divide", first, second)


def _with_number(site: Site, name: str, source: Operand, number: float) -> str:
    out = result(site)
    return f"{name}({site.at(out)}, {site.at(source)}, {c_float(number)}, {out.count});"


def _two(
    site: Site, name: str, first: Operand | float, second: Operand | float, more: str = ""
) -> list[str]:
    """A kernel of two tensors, or a tensor and a number, and `more` constants."""
    out = result(site)
    lines, given = masks.of_one_type(site, out, first, second)
    tensors = [x for x in given if isinstance(x, Operand)]
    masks.plural(site, out.dtype, "float32")
    if len(tensors) == 2 and all(x.is_dense and x.count == out.count for x in (out, *tensors)):
        operands = addresses(site, out, *tensors)
        return [*lines, f"{name}({operands}, {more}{out.count});"]
    return [*lines, masks.call(site, f"{name}_view", out, *given, more=more)]


def _power(site: Site) -> list[str]:
    out, source, power = result(site), operand(site, "self"), site.arguments["exponent"]
    if power not in range(1, 9):
        raise site.refuse(f"a power of {power} is not covered")
    if power == 1:
        return [masks.copied(site, out, source)]
    times = [_product(site, out, source) for _ in range(int(power) - 2)]
    return [*_product(site, source, source), *(line for lines in times for line in lines)]


def _clamp(site: Site) -> list[str]:
    low, high = (site.arguments.get(name) for name in ("min", "max"))
    if result(site).dtype == "int64":
        return [masks.clamped(site, low, high)]
    out, source = _alike(site, result(site), operand(site, "self"))
    limits = f"{c_float(-inf if low is None else low)}, {c_float(inf if high is None else high)}"
    return [f"clamp({site.at(out)}, {site.at(source)}, {limits}, {out.count});"]


def _clone(site: Site) -> list[str]:
    return [masks.copied(site, result(site), operand(site, "self"))]


def _cat(site: Site) -> list[str]:
    out, parts = result(site), site.arguments["tensors"]
    dim, at, lines = site.arguments.get("dim", 0) % len(out.shape), 0, []
    for part in parts:
        piece = Operand(
            out.storage, out.offset + at * out.strides[dim], part.shape, out.strides, out.dtype
        )
        lines.append(masks.copied(site, piece, part))
        at += part.shape[dim]
    return lines


def _stack(site: Site) -> list[str]:
    out, parts = result(site), site.arguments["tensors"]
    dim = site.arguments.get("dim", 0) % len(out.shape)
    pieces = [out.piece(n * out.strides[dim], x.shape, dim) for n, x in enumerate(parts)]
    return [masks.copied(site, piece, x) for piece, x in zip(pieces, parts, strict=True)]


def _full(site: Site) -> list[str]:
    return [masks.filled(site, result(site), site.arguments["fill_value"])]


def _zeros(site: Site) -> list[str]:
    out = result(site)
    return [f"fill_bytes({site.at(out)}, 0, {out.nbytes});"]


KERNELS: Table = {
    "aten.relu": _one("relu"),
    "aten.threshold_backward": _gradient_of("relu_gradient", "self", "threshold"),
    "aten.hardtanh": _one("clamp", "min_val", "max_val"),
    "aten.hardtanh_backward": _gradient_of("clamp_gradient", "self", "min_val", "max_val"),
    "aten.tanh": _one("tanh_all"),
    "aten.tanh_backward": _gradient_of("tanh_gradient", "output"),
    "aten.sigmoid": _one("sigmoid_all"),
    "aten.sigmoid_backward": _gradient_of("sigmoid_gradient", "output"),
    "aten.add": _plus(1),
    "aten.sub": _plus(-1),
    "aten.rsub": _subtract_from,
    "aten.neg": _negative,
    "aten.mul": _multiply,
    "aten.div": _divide,
    "aten.pow.Tensor_Scalar": _power,
    "aten.clamp": _clamp,
    "aten.clone": _clone,
    "aten.cat": _cat,
    "aten.stack": _stack,
    "aten.full": _full,
    "aten.full_like": _full,
    "aten.new_full": _full,
    "aten.zeros": _zeros,
    "aten.zeros_like": _zeros,
    "aten.new_zeros": _zeros,
}
