"""Sums, pools and losses."""

from collections.abc import Callable
from math import prod

from poet.calls.operands import Operand
from poet.firmware.write.kernels.masks import packed, plural
from poet.firmware.write.kernels.site import (
    Fields,
    Site,
    Table,
    addresses,
    dense,
    dense_result,
    kept_and_summed,
    maybe,
    operand,
    pair,
    result,
    view_text,
)
from poet.firmware.write.text import c_float, c_int


def _sum(is_mean: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, source = result(site), operand(site, "self")
        kept, summed = kept_and_summed(site, source)
        operands = f"{site.at(out)}, {site.at(source)}"
        if out.dtype == "int64" and source.dtype in ("int64", "bool"):
            return [f"poet_sum_{plural(site, source.dtype)}({operands}, {kept}, {summed});"]
        plural(site, out.dtype, source.dtype, "float32")
        divisor = c_float(source.count // max(1, out.count) if is_mean else 1)
        return [f"poet_sum_view({operands}, {kept}, {summed}, {divisor});"]

    return make


def pool_shape(site: Site, image: Operand, out: Operand, adaptive: bool = False) -> str:
    kernel = (0, 0) if adaptive else pair(site, "kernel_size")
    stride = (0, 0) if adaptive else pair(site, "stride", kernel)
    pad, dilation = pair(site, "padding", 0), pair(site, "dilation", 1)
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
    image, out = dense(site, "self"), result(site)
    shape = pool_shape(site, image, out)
    return [
        f"poet_max_pool({site.at(out)}, {site.at(result(site, 1))}, {site.at(image)}, {shape});"
    ]


def _max_pool_gradient(site: Site) -> list[str]:
    gradient, at = dense(site, "grad_output"), dense(site, "indices", "int64")
    out = result(site)
    shape = pool_shape(site, out, gradient)
    return [f"poet_max_pool_gradient({addresses(site, out, gradient, at)}, {shape});"]


def _average(name: str, adaptive: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        image, out = dense(site, "self"), result(site)
        shape = pool_shape(site, image, out, adaptive)
        return [f"poet_{name}({site.at(out)}, {site.at(image)}, {shape});"]

    return make


def _average_gradient(name: str, adaptive: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        gradient, out = dense(site, "grad_output"), result(site)
        shape = pool_shape(site, out, gradient, adaptive)
        return [f"poet_{name}({site.at(out)}, {site.at(gradient)}, {shape});"]

    return make


def _log_softmax(site: Site) -> list[str]:
    out = dense_result(site)
    lines, source = packed(site, "self", out)
    classes = _classes(site, source)
    return [*lines, f"poet_log_softmax({site.at(out)}, {site.at(source)}, {classes});"]


def _log_softmax_gradient(site: Site) -> list[str]:
    out, known = dense_result(site), dense(site, "output")
    lines, gradient = packed(site, "grad_output", out)
    operands = addresses(site, out, gradient, known)
    return [*lines, f"poet_log_softmax_gradient({operands}, {_classes(site, known)});"]


def _classes(site: Site, scores: Operand) -> str:
    """Rows, classes along the dimension of a softmax, and what comes after it."""
    dim = site.arguments["dim"] % len(scores.shape)
    shape = scores.shape
    return f"{prod(shape[:dim])}, {shape[dim]}, {prod(shape[dim + 1 :])}"


def _is_plain(site: Site, scores: Operand) -> bool:
    """Whether a loss is a mean or a sum over rows without weights."""
    if len(scores.shape) < 2:
        raise site.refuse("scores of a single row are not covered")
    return site.arguments.get("reduction", 1) != 0 and site.arguments.get("weight") is None


def _loss_rule(site: Site, scores: Operand) -> str:
    if not _is_plain(site, scores):
        raise site.refuse("only a mean or a sum over rows without weights is covered")
    reduction = site.arguments.get("reduction", 1)
    ignored = site.arguments.get("ignore_index", -100)
    rows, classes, *area = scores.shape
    return f"{rows}, {classes}, {prod(area)}, {c_int(ignored)}, {int(reduction == 1)}"


def _weighted_rule(site: Site, scores: Operand) -> str:
    reduction = site.arguments.get("reduction", 1)
    rows, classes, *area = scores.shape
    fields: Fields = {
        "rows": rows, "classes": classes, "area": prod(area), "is_mean": int(reduction == 1),
        "is_each": int(reduction == 0), "ignored": site.arguments.get("ignore_index", -100),
    }  # fmt: skip
    return site.constant("classes", fields)


def _nll_loss(site: Site) -> list[str]:
    scores, target = dense(site, "self"), dense(site, "target", "int64")
    if _is_plain(site, scores):
        operands = addresses(site, result(site), result(site, 1), scores, target)
        return [f"poet_nll_loss({operands}, {_loss_rule(site, scores)});"]
    given = (dense_result(site), site.results[1], scores, target, maybe(site, "weight"))
    operands = addresses(site, *(x if x is None or x.count else None for x in given))
    return [f"poet_weighted_nll({operands}, {_weighted_rule(site, scores)});"]


def _nll_loss_gradient(site: Site) -> list[str]:
    scores, target = operand(site, "self"), dense(site, "target", "int64")
    out, total = dense_result(site), dense(site, "total_weight")
    if _is_plain(site, scores):
        operands = addresses(site, out, dense(site, "grad_output"), target, total)
        return [f"poet_nll_loss_gradient({operands}, {_loss_rule(site, scores)});"]
    gradient = operand(site, "grad_output")
    view = site.literal("view", view_text(site, gradient.expanded(target.shape))[1:-1])
    operands = addresses(site, out, gradient, target, maybe(site, "weight"), total)
    return [f"poet_weighted_nll_gradient({operands}, {_weighted_rule(site, scores)}, {view});"]


def _adaptive_max(site: Site) -> list[str]:
    image, out, at = dense(site, "self"), dense_result(site), result(site, 1)
    shape = pool_shape(site, image, out, adaptive=True)
    return [f"poet_adaptive_max({addresses(site, out, at, image)}, {shape});"]


def _adaptive_max_gradient(site: Site) -> list[str]:
    gradient, at = dense(site, "grad_output"), dense(site, "indices", "int64")
    out = dense_result(site)
    shape = pool_shape(site, out, gradient, adaptive=True)
    return [f"poet_max_pool_gradient({addresses(site, out, gradient, at)}, {shape});"]


def _margins(site: Site) -> list[str]:
    scores, target = dense(site, "self"), dense(site, "target", "int64")
    operands = addresses(site, dense_result(site), scores, target, maybe(site, "weight"))
    return [f"poet_margins({operands}, {_margin_rule(site, scores)});"]


def _margins_gradient(site: Site) -> list[str]:
    scores, target = dense(site, "self"), dense(site, "target", "int64")
    gradient = operand(site, "grad_output")
    given = (dense_result(site), gradient, scores, target, maybe(site, "weight"))
    step = gradient.strides[0] if gradient.shape else 0
    rule = _margin_rule(site, scores, step)
    return [f"poet_margins_gradient({addresses(site, *given)}, {rule});"]


def _margin_rule(site: Site, scores: Operand, step: int = 0) -> str:
    power, reduction = site.arguments.get("p", 1), site.arguments.get("reduction", 1)
    if power not in (1, 2) or len(scores.shape) != 2:
        raise site.refuse("only rows of scores, and margins or their squares, are covered")
    fields: Fields = {
        "rows": scores.shape[0], "classes": scores.shape[1], "is_squared": int(power == 2),
        "is_mean": int(reduction == 1), "is_each": int(reduction == 0), "gradient_step": step,
        "margin": float(site.arguments.get("margin", 1)),
    }  # fmt: skip
    return site.constant("margins", fields)


KERNELS: Table = {
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
    "aten.adaptive_max_pool2d": _adaptive_max,
    "aten.adaptive_max_pool2d_backward": _adaptive_max_gradient,
    "aten.multi_margin_loss": _margins,
    "aten.multi_margin_loss_backward": _margins_gradient,
    "aten.nll_loss_forward": _nll_loss,
    "aten.nll_loss_backward": _nll_loss_gradient,
    "aten.nll_loss2d_forward": _nll_loss,
    "aten.nll_loss2d_backward": _nll_loss_gradient,
}
