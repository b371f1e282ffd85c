"""The table from the kinds of calls to the C that does them.

Each entry takes a `Site`, one call in one place, and gives C statements. A kind without an entry,
or with arguments that its kernel does not cover, is an error that names it and where it comes from.
`FILES` says which source file has which kernel, so that a folder holds only what it needs.
"""

from collections.abc import Callable
from typing import Any, Protocol

from poet.firmware.operands import ITEM_BYTES, Operand

Fields = dict[str, int | float]


class Site(Protocol):
    """A call in its place: operands by name, as C expressions, and constants for shapes."""

    kind: str
    arguments: dict[str, Any]
    results: tuple[Operand | None, ...]
    op_number: int

    def refuse(self, why: str) -> Exception: ...
    def at(self, operand: Operand | None) -> str:
        """The address as a C expression; `NULL` for None."""
        ...

    def constant(self, struct: str, fields: Fields) -> str:
        """The address of a constant struct with these fields."""
        ...

    def view(self, operand: Operand) -> str:
        """The address of a constant view of the operand."""
        ...

    def scalar(self, operand: Operand) -> str:
        """The one element of an operand as a C expression."""
        ...


def statements(site: Site) -> list[str]:
    """The C statements of one call."""
    family = ".".join(site.kind.split(".")[:2])
    make = _TABLE.get(site.kind) or _TABLE.get(family)
    if make is None:
        raise site.refuse("there is no kernel for it")
    return make(site)


def _operand(site: Site, name: str) -> Operand:
    found = site.arguments.get(name)
    if not isinstance(found, Operand):
        raise site.refuse(f"its argument {name} is not a tensor")
    return found


def _dense(site: Site, name: str, dtype: str = "float32") -> Operand:
    found = _operand(site, name)
    if not found.is_dense or found.dtype != dtype:
        raise site.refuse(f"its argument {name} is not a row-major {dtype} tensor")
    return found


def _maybe(site: Site, name: str) -> Operand | None:
    return None if site.arguments.get(name) is None else _dense(site, name)


def _result(site: Site, n: int = 0) -> Operand:
    found = site.results[n]
    if found is None:
        raise site.refuse("its result is not used")
    return found


def _pair(site: Site, name: str, default: Any = None) -> tuple[int, int]:
    found = site.arguments.get(name)
    found = default if found is None or found == [] else found
    if isinstance(found, int):
        return found, found
    return (found[0], found[-1])


def c_float(value: float) -> str:
    """A float constant that is read back as the same float."""
    text = f"{float(value):.9g}"
    if text in ("inf", "-inf", "nan"):
        return {"inf": "(1.0f / 0.0f)", "-inf": "(-1.0f / 0.0f)", "nan": "(0.0f / 0.0f)"}[text]
    return text + ("f" if "." in text or "e" in text else ".0f")


# ---- products -----------------------------------------------------------------------------------


def _product(site: Site, left: Operand, right: Operand, row: Operand | None) -> list[str]:
    out = _result(site)
    if len(left.shape) != 2 or len(right.shape) != 2 or not out.is_dense:
        raise site.refuse("its operands are not matrices")
    shape = site.constant(
        "matmul",
        {
            "m": left.shape[0], "n": right.shape[1], "k": left.shape[1],
            "a_row": left.strides[0], "a_column": left.strides[1],
            "b_row": right.strides[0], "b_column": right.strides[1],
        },
    )  # fmt: skip
    operands = ", ".join(map(site.at, (out, left, right, row)))
    return [f"matmul({operands}, {shape});"]


def _mm(site: Site) -> list[str]:
    return _product(site, _operand(site, "self"), _operand(site, "mat2"), None)


def _addmm(site: Site) -> list[str]:
    row = _dense(site, "self")
    if len(row.shape) != 1 or any(site.arguments.get(n, 1) != 1 for n in ("alpha", "beta")):
        raise site.refuse("only a row that is added once is covered")
    return _product(site, _operand(site, "mat1"), _operand(site, "mat2"), row)


# ---- convolution --------------------------------------------------------------------------------


def _conv_shape(site: Site, image: Operand, weight: Operand, out: Operand) -> str:
    arguments = site.arguments
    if arguments.get("transposed") or len(image.shape) != 4:
        raise site.refuse("only convolutions of images that are not transposed are covered")
    stride, pad = _pair(site, "stride", 1), _pair(site, "padding", 0)
    dilation = _pair(site, "dilation", 1)
    fields: Fields = {
        "batch": image.shape[0], "groups": arguments.get("groups", 1),
        "channels": image.shape[1], "height": image.shape[2], "width": image.shape[3],
        "out_channels": out.shape[1], "out_height": out.shape[2], "out_width": out.shape[3],
        "kernel_height": weight.shape[2], "kernel_width": weight.shape[3],
        "stride_y": stride[0], "stride_x": stride[1], "pad_y": pad[0], "pad_x": pad[1],
        "dilation_y": dilation[0], "dilation_x": dilation[1],
    }  # fmt: skip
    return site.constant("conv", fields)


def _conv(site: Site) -> list[str]:
    image, weight, out = _dense(site, "input"), _dense(site, "weight"), _result(site)
    shape = _conv_shape(site, image, weight, out)
    operands = ", ".join(map(site.at, (out, image, weight, _maybe(site, "bias"))))
    return [f"conv({operands}, {shape});"]


def _conv_gradients(site: Site) -> list[str]:
    gradient, image = _dense(site, "grad_output"), _dense(site, "input")
    weight = _dense(site, "weight")
    shape = _conv_shape(site, image, weight, gradient)
    to_image, to_weight, to_bias = site.results
    lines = []
    if to_image is not None:
        operands = ", ".join(map(site.at, (to_image, gradient, weight)))
        lines.append(f"conv_input_gradient({operands}, {shape});")
    if to_weight is not None:
        operands = ", ".join(map(site.at, (to_weight, gradient, image)))
        lines.append(f"conv_weight_gradient({operands}, {shape});")
    if to_bias is not None:
        lines.append(f"conv_bias_gradient({site.at(to_bias)}, {site.at(gradient)}, {shape});")
    return lines


# ---- norms --------------------------------------------------------------------------------------


def _norm_shape(site: Site, image: Operand) -> str:
    area = image.count // (image.shape[0] * image.shape[1])
    fields: Fields = {
        "batch": image.shape[0], "channels": image.shape[1], "area": area,
        "momentum": float(site.arguments.get("momentum", 0.0)),
        "epsilon": float(site.arguments["eps"]),
    }  # fmt: skip
    return site.constant("norm", fields)


def _batch_norm(site: Site) -> list[str]:
    image = _dense(site, "input")
    given = [_maybe(site, n) for n in ("weight", "bias", "running_mean", "running_var")]
    if site.arguments.get("training", True) and site.kind != _FIXED_NORM:
        results = [*site.results, *[None] * (5 - len(site.results))]
        operands = ", ".join(map(site.at, (*results, image, *given)))
        return [f"batch_norm({operands}, {_norm_shape(site, image)});"]
    lines = []
    operands = ", ".join(map(site.at, (_result(site), image, *given)))
    lines.append(f"batch_norm_fixed({operands}, {_norm_shape(site, image)});")
    for new, old in zip(site.results[3:], given[2:], strict=False):
        if new is not None and old is not None:  # statistics that stay as they are
            lines.append(f"copy_bytes({site.at(new)}, {site.at(old)}, {4 * new.count});")
    return lines


def _batch_norm_gradient(site: Site) -> list[str]:
    gradient, image = _dense(site, "grad_out"), _dense(site, "input")
    if site.arguments.get("train", True):
        name, stats = "batch_norm_gradient", ("save_mean", "save_invstd")
    else:
        name, stats = "batch_norm_fixed_gradient", ("running_mean", "running_var")
    given = [_maybe(site, n) for n in ("weight", *stats)]
    operands = ", ".join(map(site.at, (*site.results, gradient, image, *given)))
    return [f"{name}({operands}, {_norm_shape(site, image)});"]


_FIXED_NORM = "aten._native_batch_norm_legit_no_training"


# ---- elements -----------------------------------------------------------------------------------


def _one(name: str, *constants: str) -> Callable[[Site], list[str]]:
    """A kernel of one tensor and some constants."""

    def make(site: Site) -> list[str]:
        out, source = _result(site), _dense(site, "self")
        more = "".join(f", {c_float(site.arguments[n])}" for n in constants)
        return [f"{name}({site.at(out)}, {site.at(source)}{more}, {out.count});"]

    return make


def _gradient_of(name: str, other: str, *constants: str) -> Callable[[Site], list[str]]:
    """A kernel of a gradient and what it is the gradient of."""

    def make(site: Site) -> list[str]:
        out, gradient, known = _result(site), _dense(site, "grad_output"), _dense(site, other)
        more = "".join(f", {c_float(site.arguments[n])}" for n in constants)
        operands = ", ".join(map(site.at, (out, gradient, known)))
        return [f"{name}({operands}{more}, {out.count});"]

    return make


def _add(site: Site) -> list[str]:
    out, first, second = _result(site), _operand(site, "self"), site.arguments["other"]
    factor = site.arguments.get("alpha", 1)
    if not isinstance(second, Operand):
        if out.dtype == "int64" and isinstance(second, int) and first.is_dense:
            operands = f"{site.at(out)}, {site.at(first)}, {second * factor}"
            return [f"add_whole({operands}, {out.count});"]
        return [
            f"shift({site.at(out)}, {site.at(_dense(site, 'self'))}, {c_float(second * factor)}, "
            f"{out.count});"
        ]
    return _two(site, "add", first, second, f", {c_float(factor)}")


def _subtract(site: Site) -> list[str]:
    second = _operand(site, "other")
    return _two(
        site, "add", _operand(site, "self"), second, f", {c_float(-site.arguments.get('alpha', 1))}"
    )


def _multiply(site: Site) -> list[str]:
    second = site.arguments["other"]
    if not isinstance(second, Operand):
        out = _result(site)
        operands = f"{site.at(out)}, {site.at(_dense(site, 'self'))}, {c_float(second)}"
        return [f"scale({operands}, {out.count});"]
    return _two(site, "multiply", _operand(site, "self"), second, "")


def _two(site: Site, name: str, first: Operand, second: Operand, more: str) -> list[str]:
    out = _result(site)
    if {out.dtype, first.dtype, second.dtype} != {"float32"}:
        raise site.refuse("only float32 is covered")
    operands = ", ".join(map(site.at, (out, first, second)))
    if all(each.is_dense and each.count == out.count for each in (out, first, second)):
        return [f"{name}({operands}{more}, {out.count});"]
    views = [site.view(each.expanded(out.shape)) for each in (out, first, second)]
    return [f"{name}_view({operands}{more}, {', '.join(views)});"]


def _divide(site: Site) -> list[str]:
    out, source, divisor = _result(site), _operand(site, "self"), site.arguments["other"]
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
    return [_copied(site, _result(site), _operand(site, "self"))]


def _cat(site: Site) -> list[str]:
    out, parts = _result(site), site.arguments["tensors"]
    dim, at, lines = site.arguments.get("dim", 0) % len(out.shape), 0, []
    for part in parts:
        piece = Operand(
            out.storage, out.offset + at * out.strides[dim], part.shape, out.strides, out.dtype
        )
        lines.append(_copied(site, piece, part))
        at += part.shape[dim]
    return lines


def _full(site: Site) -> list[str]:
    out = _result(site)
    if out.dtype != "float32":
        raise site.refuse("only float32 is covered")
    return [f"fill({site.at(out)}, {c_float(site.arguments.get('fill_value', 0))}, {out.count});"]


def _zeros(site: Site) -> list[str]:
    out = _result(site)
    return [f"fill_bytes({site.at(out)}, 0, {out.count * ITEM_BYTES[out.dtype]});"]


# ---- sums, pools, losses ------------------------------------------------------------------------


def _sum(is_mean: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, source = _result(site), _operand(site, "self")
        rank = len(source.shape)
        dims = site.arguments.get("dim")
        over = {d % rank for d in (dims or range(rank))} if rank else set()
        kept = [d for d in range(rank) if d not in over]
        parts = []
        for wanted in (kept, sorted(over)):
            shape = tuple(source.shape[d] for d in wanted)
            strides = tuple(source.strides[d] for d in wanted)
            parts.append(site.view(Operand(source.storage, 0, shape, strides, source.dtype)))
        count = source.count // max(1, out.count)
        divisor = c_float(count if is_mean else 1)
        return [f"sum_view({site.at(out)}, {site.at(source)}, {parts[0]}, {parts[1]}, {divisor});"]

    return make


def _pool_shape(site: Site, image: Operand, out: Operand, adaptive: bool = False) -> str:
    kernel = (0, 0) if adaptive else _pair(site, "kernel_size")
    stride = (0, 0) if adaptive else _pair(site, "stride", kernel)
    pad, dilation = _pair(site, "padding", 0), _pair(site, "dilation", 1)
    fields: Fields = {
        "planes": image.count // (image.shape[-2] * image.shape[-1]),
        "height": image.shape[-2], "width": image.shape[-1],
        "out_height": out.shape[-2], "out_width": out.shape[-1],
        "kernel_height": kernel[0], "kernel_width": kernel[1],
        "stride_y": stride[0], "stride_x": stride[1], "pad_y": pad[0], "pad_x": pad[1],
        "dilation_y": dilation[0], "dilation_x": dilation[1],
        "count_padding": int(site.arguments.get("count_include_pad", True)),
        "divisor": site.arguments.get("divisor_override") or 0,
    }  # fmt: skip
    return site.constant("pool", fields)


def _max_pool(site: Site) -> list[str]:
    image, out = _dense(site, "self"), _result(site)
    shape = _pool_shape(site, image, out)
    return [f"max_pool({site.at(out)}, {site.at(_result(site, 1))}, {site.at(image)}, {shape});"]


def _max_pool_gradient(site: Site) -> list[str]:
    gradient, at = _dense(site, "grad_output"), _dense(site, "indices", "int64")
    out = _result(site)
    shape = _pool_shape(site, out, gradient)
    return [f"max_pool_gradient({', '.join(map(site.at, (out, gradient, at)))}, {shape});"]


def _average(name: str, adaptive: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        image, out = _dense(site, "self"), _result(site)
        shape = _pool_shape(site, image, out, adaptive)
        return [f"{name}({site.at(out)}, {site.at(image)}, {shape});"]

    return make


def _average_gradient(name: str, adaptive: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        gradient, out = _dense(site, "grad_output"), _result(site)
        shape = _pool_shape(site, out, gradient, adaptive)
        return [f"{name}({site.at(out)}, {site.at(gradient)}, {shape});"]

    return make


def _rows(site: Site, operand: Operand, dim: int) -> tuple[int, int]:
    if dim % len(operand.shape) != len(operand.shape) - 1:
        raise site.refuse("only the last dimension is covered")
    return operand.count // operand.shape[-1], operand.shape[-1]


def _log_softmax(site: Site) -> list[str]:
    out, source = _result(site), _dense(site, "self")
    rows, columns = _rows(site, source, site.arguments["dim"])
    return [f"log_softmax({site.at(out)}, {site.at(source)}, {rows}, {columns});"]


def _log_softmax_gradient(site: Site) -> list[str]:
    out, gradient, known = _result(site), _dense(site, "grad_output"), _dense(site, "output")
    rows, columns = _rows(site, known, site.arguments["dim"])
    operands = ", ".join(map(site.at, (out, gradient, known)))
    return [f"log_softmax_gradient({operands}, {rows}, {columns});"]


def _loss_rule(site: Site, scores: Operand) -> str:
    reduction = site.arguments.get("reduction", 1)
    if reduction == 0 or site.arguments.get("weight") is not None or len(scores.shape) != 2:
        raise site.refuse("only a mean or a sum over rows without weights is covered")
    ignored = site.arguments.get("ignore_index", -100)
    return f"{scores.shape[0]}, {scores.shape[1]}, {ignored}, {int(reduction == 1)}"


def _nll_loss(site: Site) -> list[str]:
    scores, target = _dense(site, "self"), _dense(site, "target", "int64")
    operands = ", ".join(map(site.at, (_result(site), _result(site, 1), scores, target)))
    return [f"nll_loss({operands}, {_loss_rule(site, scores)});"]


def _nll_loss_gradient(site: Site) -> list[str]:
    scores, target = _dense(site, "self"), _dense(site, "target", "int64")
    given = (_dense(site, "grad_output"), target, _dense(site, "total_weight"))
    operands = ", ".join(map(site.at, (_result(site), *given)))
    return [f"nll_loss_gradient({operands}, {_loss_rule(site, scores)});"]


# ---- randomness and updates ---------------------------------------------------------------------


def _dropout_mask(site: Site) -> list[str]:
    out = _result(site)
    kept = c_float(1.0 - site.arguments["p"])
    return [
        f"dropout_mask({site.at(out)}, {kept}, poet_seed, poet_step, {site.op_number}u, "
        f"{out.count});"
    ]


def _sgd(site: Site) -> list[str]:
    gradient, parameter = _dense(site, "gradient"), _dense(site, "parameter")
    rule = site.constant(
        "sgd",
        {
            "momentum": float(site.arguments["momentum"]),
            "dampening": float(site.arguments["dampening"]),
            "weight_decay": float(site.arguments["weight_decay"]),
            "nesterov": int(site.arguments["nesterov"]),
        },
    )
    rate = site.scalar(_operand(site, "learning_rate"))
    buffer = site.arguments.get("momentum_buffer")
    count = parameter.count
    if buffer is None:
        return [f"sgd({site.at(parameter)}, {site.at(gradient)}, {rate}, {rule}, {count});"]
    step = site.arguments.get("step")
    number = site.scalar(step) if isinstance(step, Operand) else "2"
    operands = ", ".join(map(site.at, (parameter, buffer, gradient)))
    return [f"sgd_momentum({operands}, {rate}, {number}, {rule}, {count});"]


_TABLE: dict[str, Callable[[Site], list[str]]] = {
    "aten.mm": _mm,
    "aten.addmm": _addmm,
    "aten.convolution": _conv,
    "aten.convolution_backward": _conv_gradients,
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._native_batch_norm_legit": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.native_batch_norm": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_gradient,
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
    "aten.sum": _sum(False),
    "aten.mean": _sum(True),
    "aten.max_pool2d_with_indices": _max_pool,
    "aten.max_pool2d_with_indices_backward": _max_pool_gradient,
    "aten.avg_pool2d": _average("average_pool", False),
    "aten.avg_pool2d_backward": _average_gradient("average_pool_gradient", False),
    "aten._adaptive_avg_pool2d": _average("adaptive_pool", True),
    "aten._adaptive_avg_pool2d_backward": _average_gradient("adaptive_pool_gradient", True),
    "aten._log_softmax": _log_softmax,
    "aten._log_softmax_backward_data": _log_softmax_gradient,
    "aten.nll_loss_forward": _nll_loss,
    "aten.nll_loss_backward": _nll_loss_gradient,
    "poet.dropout_mask": _dropout_mask,
    "poet.sgd": _sgd,
}
