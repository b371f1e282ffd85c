"""What treats each element by itself, copies and constants."""

from collections.abc import Callable
from math import inf

from poet.calls.operands import Operand
from poet.firmware.write.kernels import masks
from poet.firmware.write.kernels.functions import each
from poet.firmware.write.kernels.site import Site, Table, addresses, operand, result
from poet.firmware.write.text import c_float, c_int


def _one(name: str, otherwise: str, *constants: str) -> Callable[[Site], list[str]]:
    """A kernel of one tensor and some constants; `otherwise`, where layouts differ, a function."""

    def make(site: Site) -> list[str]:
        out, source = result(site), operand(site, "self")
        numbers = [site.arguments[n] for n in constants]
        if not _is_alike(out, source):
            return [each(site, otherwise, out, [source], numbers)]
        more = "".join(f", {c_float(x)}" for x in numbers)
        return [f"poet_{name}({site.at(out)}, {site.at(source)}{more}, {out.count});"]

    return make


def _is_alike(out: Operand, source: Operand) -> bool:
    """Whether the elements of two float32 tensors lie in the same order, without gaps."""
    if {out.dtype, source.dtype} != {"float32"} or out.count != source.count:
        return False
    same = out.strides == source.strides and out.is_whole
    return same or (out.is_dense and source.is_dense)


def _gradient_of(
    name: str, otherwise: str, other: str, *constants: str
) -> Callable[[Site], list[str]]:
    """A kernel of a gradient and of what it is one; `otherwise`, where layouts differ."""

    def make(site: Site) -> list[str]:
        out, given = result(site), [operand(site, "grad_output"), operand(site, other)]
        numbers = [site.arguments[n] for n in constants]
        if not all(_is_alike(out, x) for x in given):
            return [each(site, otherwise, out, given, numbers)]
        more = "".join(f", {c_float(x)}" for x in numbers)
        return [f"poet_{name}({addresses(site, out, *given)}{more}, {out.count});"]

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
                return [f"poet_add_whole({operands}, {out.count});"]
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
    return f"poet_{name}({site.at(out)}, {site.at(source)}, {c_float(number)}, {out.count});"


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
        return [*lines, f"poet_{name}({operands}, {more}{out.count});"]
    return [*lines, masks.call(site, f"{name}_view", out, *given, more=more)]


_POWERS = {0.5: "sqrt_of", -0.5: "rsqrt_of", -1: "reciprocal"}


def _power(site: Site) -> list[str]:
    out, source, power = result(site), operand(site, "self"), site.arguments["exponent"]
    if power in _POWERS:
        return [each(site, _POWERS[power], out, [source])]
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
    return _clamped(site, -inf if low is None else low, inf if high is None else high)


def _clamped(site: Site, low: float, high: float) -> list[str]:
    out, source = result(site), operand(site, "self")
    if not _is_alike(out, source):
        return [each(site, "clamp_of", out, [source], (low, high))]
    limits = f"{c_float(low)}, {c_float(high)}"
    return [f"poet_clamp({site.at(out)}, {site.at(source)}, {limits}, {out.count});"]


def _clamp_below(site: Site) -> list[str]:
    return _clamped(site, site.arguments["min"], inf)


def _clamp_above(site: Site) -> list[str]:
    return _clamped(site, -inf, site.arguments["max"])


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


def _filled(site: Site) -> list[str]:
    return [masks.filled(site, result(site), site.arguments["value"])]


def _zeros(site: Site) -> list[str]:
    out = result(site)
    return [f"poet_fill_bytes({site.at(out)}, 0, {out.nbytes});"]


KERNELS: Table = {
    "aten.relu": _one("relu", "relu_of"),
    "aten.threshold_backward": _gradient_of("relu_gradient", "relu_slope", "self", "threshold"),
    "aten.hardtanh": _one("clamp", "clamp_of", "min_val", "max_val"),
    "aten.hardtanh_backward": _gradient_of(
        "clamp_gradient", "clamp_slope", "self", "min_val", "max_val"
    ),
    "aten.tanh": _one("tanh_all", "tanh_of"),
    "aten.tanh_backward": _gradient_of("tanh_gradient", "tanh_slope", "output"),
    "aten.sigmoid": _one("sigmoid_all", "sigmoid_of"),
    "aten.sigmoid_backward": _gradient_of("sigmoid_gradient", "sigmoid_slope", "output"),
    "aten.add": _plus(1),
    "aten.sub": _plus(-1),
    "aten.rsub": _subtract_from,
    "aten.neg": _negative,
    "aten.mul": _multiply,
    "aten.div": _divide,
    "aten.pow.Tensor_Scalar": _power,
    "aten.clamp": _clamp,
    "aten.clamp_min": _clamp_below,
    "aten.clamp_max": _clamp_above,
    "aten.clone": _clone,
    "aten.cat": _cat,
    "aten.stack": _stack,
    "aten.empty_like": _zeros,
    "aten.fill.Scalar": _filled,
    "aten.full": _full,
    "aten.full_like": _full,
    "aten.new_full": _full,
    "aten.zeros": _zeros,
    "aten.zeros_like": _zeros,
    "aten.new_zeros": _zeros,
}
