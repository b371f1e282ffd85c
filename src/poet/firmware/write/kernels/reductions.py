"""Sums, pools and losses."""

from collections.abc import Callable
from math import prod

from poet.calls.operands import Operand
from poet.firmware.write.kernels.masks import plural
from poet.firmware.write.kernels.site import (
    Fields,
    Site,
    Table,
    addresses,
    dense,
    kept_and_summed,
    operand,
    pair,
    result,
)
from poet.firmware.write.text import c_float, c_int


def _sum(is_mean: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, source = result(site), operand(site, "self")
        kept, summed = kept_and_summed(site, source)
        operands = f"{site.at(out)}, {site.at(source)}"
        if out.dtype == "int64" and source.dtype in ("int64", "bool"):
            return [f"sum_{plural(site, source.dtype)}({operands}, {kept}, {summed});"]
        plural(site, out.dtype, source.dtype, "float32")
        divisor = c_float(source.count // max(1, out.count) if is_mean else 1)
        return [f"sum_view({operands}, {kept}, {summed}, {divisor});"]

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
    return [f"max_pool({site.at(out)}, {site.at(result(site, 1))}, {site.at(image)}, {shape});"]


def _max_pool_gradient(site: Site) -> list[str]:
    gradient, at = dense(site, "grad_output"), dense(site, "indices", "int64")
    out = result(site)
    shape = pool_shape(site, out, gradient)
    return [f"max_pool_gradient({addresses(site, out, gradient, at)}, {shape});"]


def _average(name: str, adaptive: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        image, out = dense(site, "self"), result(site)
        shape = pool_shape(site, image, out, adaptive)
        return [f"{name}({site.at(out)}, {site.at(image)}, {shape});"]

    return make


def _average_gradient(name: str, adaptive: bool) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        gradient, out = dense(site, "grad_output"), result(site)
        shape = pool_shape(site, out, gradient, adaptive)
        return [f"{name}({site.at(out)}, {site.at(gradient)}, {shape});"]

    return make


def _log_softmax(site: Site) -> list[str]:
    out, source = result(site), dense(site, "self")
    return [f"log_softmax({site.at(out)}, {site.at(source)}, {_classes(site, source)});"]


def _log_softmax_gradient(site: Site) -> list[str]:
    out, gradient, known = result(site), dense(site, "grad_output"), dense(site, "output")
    operands = addresses(site, out, gradient, known)
    return [f"log_softmax_gradient({operands}, {_classes(site, known)});"]


def _classes(site: Site, scores: Operand) -> str:
    """Rows, classes along the dimension of a softmax, and what comes after it."""
    dim = site.arguments["dim"] % len(scores.shape)
    shape = scores.shape
    return f"{prod(shape[:dim])}, {shape[dim]}, {prod(shape[dim + 1 :])}"


def _loss_rule(site: Site, scores: Operand) -> str:
    reduction = site.arguments.get("reduction", 1)
    if reduction == 0 or site.arguments.get("weight") is not None or len(scores.shape) < 2:
        raise site.refuse("only a mean or a sum over rows without weights is covered")
    ignored = site.arguments.get("ignore_index", -100)
    rows, classes, *area = scores.shape
    return f"{rows}, {classes}, {prod(area)}, {c_int(ignored)}, {int(reduction == 1)}"


def _nll_loss(site: Site) -> list[str]:
    scores, target = dense(site, "self"), dense(site, "target", "int64")
    operands = addresses(site, result(site), result(site, 1), scores, target)
    return [f"nll_loss({operands}, {_loss_rule(site, scores)});"]


def _nll_loss_gradient(site: Site) -> list[str]:
    scores, target = dense(site, "self"), dense(site, "target", "int64")
    given = (dense(site, "grad_output"), target, dense(site, "total_weight"))
    operands = addresses(site, result(site), *given)
    return [f"nll_loss_gradient({operands}, {_loss_rule(site, scores)});"]


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
    "aten.nll_loss_forward": _nll_loss,
    "aten.nll_loss_backward": _nll_loss_gradient,
    "aten.nll_loss2d_forward": _nll_loss,
    "aten.nll_loss2d_backward": _nll_loss_gradient,
}
