"""What treats each element by itself, copies and constants."""

from collections.abc import Callable

from poet.firmware.c_types import ITEM_BYTES
from poet.firmware.kernels.site import Site, Table, c_float, dense, operand, result
from poet.operands import Operand


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
    if not (out.is_dense and source.is_dense) and not (
        out.strides == source.strides and out.is_whole
    ):
        raise site.refuse("its tensors lie in memory in different orders")
    return out, source


def _gradient_of(name: str, other: str, *constants: str) -> Callable[[Site], list[str]]:
    """A kernel of a gradient and what it is the gradient of."""

    def make(site: Site) -> list[str]:
        out, gradient, known = result(site), dense(site, "grad_output"), dense(site, other)
        more = "".join(f", {c_float(site.arguments[n])}" for n in constants)
        operands = ", ".join(map(site.at, (out, gradient, known)))
        return [f"{name}({operands}{more}, {out.count});"]

    return make


def _add(site: Site) -> list[str]:
    out, first, second = result(site), operand(site, "self"), site.arguments["other"]
    factor = site.arguments.get("alpha", 1)
    if not isinstance(second, Operand):
        if out.dtype == "int64" and isinstance(second, int) and first.is_dense:
            operands = f"{site.at(out)}, {site.at(first)}, {second * factor}"
            return [f"add_whole({operands}, {out.count});"]
        return [
            f"shift({site.at(out)}, {site.at(dense(site, 'self'))}, {c_float(second * factor)}, "
            f"{out.count});"
        ]
    return _two(site, "add", first, second, f", {c_float(factor)}")


def _subtract(site: Site) -> list[str]:
    second = operand(site, "other")
    return _two(
        site, "add", operand(site, "self"), second, f", {c_float(-site.arguments.get('alpha', 1))}"
    )


def _multiply(site: Site) -> list[str]:
    second = site.arguments["other"]
    if not isinstance(second, Operand):
        out = result(site)
        out, source = _alike(site, out, operand(site, "self"))
        operands = f"{site.at(out)}, {site.at(source)}, {c_float(second)}"
        return [f"scale({operands}, {out.count});"]
    return _two(site, "multiply", operand(site, "self"), second, "")


def _two(site: Site, name: str, first: Operand, second: Operand, more: str) -> list[str]:
    out = result(site)
    if {out.dtype, first.dtype, second.dtype} != {"float32"}:
        raise site.refuse("only float32 is covered")
    operands = ", ".join(map(site.at, (out, first, second)))
    if all(each.is_dense and each.count == out.count for each in (out, first, second)):
        return [f"{name}({operands}{more}, {out.count});"]
    views = [site.view(each.expanded(out.shape)) for each in (out, first, second)]
    return [f"{name}_view({operands}{more}, {', '.join(views)});"]


def _divide(site: Site) -> list[str]:
    out, source, divisor = result(site), operand(site, "self"), site.arguments["other"]
    if isinstance(divisor, Operand):
        raise site.refuse("only division by a number is covered")
    lines, source_text = [], site.at(source)
    if not (source.is_dense and source.count == out.count):
        lines.append(_copied(site, out, source))
        source_text = site.at(out)
    return [*lines, f"divide_by({site.at(out)}, {source_text}, {c_float(divisor)}, {out.count});"]


def _copied(site: Site, out: Operand, source: Operand) -> str:
    if out.is_dense and source.is_dense and out.count == source.count:
        nbytes = out.count * ITEM_BYTES[out.dtype]
        return f"copy_bytes({site.at(out)}, {site.at(source)}, {nbytes});"
    if out.dtype != "float32":
        raise site.refuse("only float32 is covered")
    views = f"{site.view(out)}, {site.view(source.expanded(out.shape))}"
    return f"copy_view({site.at(out)}, {site.at(source)}, {views});"


def _clone(site: Site) -> list[str]:
    return [_copied(site, result(site), operand(site, "self"))]


def _cat(site: Site) -> list[str]:
    out, parts = result(site), site.arguments["tensors"]
    dim, at, lines = site.arguments.get("dim", 0) % len(out.shape), 0, []
    for part in parts:
        piece = Operand(
            out.storage, out.offset + at * out.strides[dim], part.shape, out.strides, out.dtype
        )
        lines.append(_copied(site, piece, part))
        at += part.shape[dim]
    return lines


def _full(site: Site) -> list[str]:
    out = result(site)
    if out.dtype != "float32":
        raise site.refuse("only float32 is covered")
    return [f"fill({site.at(out)}, {c_float(site.arguments.get('fill_value', 0))}, {out.count});"]


def _zeros(site: Site) -> list[str]:
    out = result(site)
    return [f"fill_bytes({site.at(out)}, 0, {out.count * ITEM_BYTES[out.dtype]});"]


KERNELS: Table = {
    "aten.relu": _one("relu"),
    "aten.threshold_backward": _gradient_of("relu_gradient", "self", "threshold"),
    "aten.hardtanh": _one("clamp", "min_val", "max_val"),
    "aten.hardtanh_backward": _gradient_of("clamp_gradient", "self", "min_val", "max_val"),
    "aten.tanh": _one("tanh_all"),
    "aten.tanh_backward": _gradient_of("tanh_gradient", "output"),
    "aten.sigmoid": _one("sigmoid_all"),
    "aten.sigmoid_backward": _gradient_of("sigmoid_gradient", "output"),
    "aten.add": _add,
    "aten.sub": _subtract,
    "aten.mul": _multiply,
    "aten.div": _divide,
    "aten.clone": _clone,
    "aten.cat": _cat,
    "aten.full": _full,
    "aten.zeros": _zeros,
    "aten.zeros_like": _zeros,
}
