"""What transformers need beside products of matrices."""

from collections.abc import Callable
from math import prod

from poet.firmware.kernels.site import (
    Site,
    Table,
    c_float,
    dense,
    maybe,
    operand,
    product_shape,
    result,
    rows_of,
)


def _batched_product(site: Site) -> list[str]:
    left, right, out = operand(site, "self"), operand(site, "mat2"), result(site)
    if not out.is_dense:
        raise site.refuse("its result is not row-major")
    shape = product_shape(site, left, right)
    step = left.shape[1] * right.shape[2]
    return [
        f"matmul({site.at(out, n * step)}, {site.at(left, n * left.strides[0])}, "
        f"{site.at(right, n * right.strides[0])}, NULL, {shape});"
        for n in range(left.shape[0])
    ]


def _layer_norm(site: Site) -> list[str]:
    image = dense(site, "input")
    columns = prod(site.arguments["normalized_shape"])
    given = (*site.results, image, maybe(site, "weight"), maybe(site, "bias"))
    operands = ", ".join(map(site.at, given))
    epsilon = c_float(site.arguments["eps"])
    return [f"layer_norm({operands}, {image.count // columns}, {columns}, {epsilon});"]


def _layer_norm_gradient(site: Site) -> list[str]:
    image = dense(site, "input")
    columns = prod(site.arguments["normalized_shape"])
    known = (dense(site, "grad_out"), image, dense(site, "mean"), dense(site, "rstd"))
    operands = ", ".join(map(site.at, (*site.results, *known, maybe(site, "weight"))))
    return [f"layer_norm_gradient({operands}, {image.count // columns}, {columns});"]


def _softmax(site: Site) -> list[str]:
    out, source = result(site), dense(site, "self")
    rows, columns = rows_of(site, source, site.arguments["dim"])
    return [f"softmax({site.at(out)}, {site.at(source)}, {rows}, {columns});"]


def _softmax_gradient(site: Site) -> list[str]:
    out, gradient, known = result(site), dense(site, "grad_output"), dense(site, "output")
    rows, columns = rows_of(site, known, site.arguments["dim"])
    operands = ", ".join(map(site.at, (out, gradient, known)))
    return [f"softmax_gradient({operands}, {rows}, {columns});"]


def _gelu(name: str) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, source = result(site), dense(site, "self")
        parts = [out, source]
        if name.endswith("gradient"):
            parts = [out, dense(site, "grad_output"), source]
        wanted = name
        if site.arguments.get("approximate", "none") == "tanh":
            wanted = name.replace("gelu", "gelu_tanh")
        return [f"{wanted}({', '.join(map(site.at, parts))}, {out.count});"]

    return make


def _embedding(site: Site) -> list[str]:
    out, table, rows = result(site), dense(site, "weight"), dense(site, "indices", "int64")
    operands = ", ".join(map(site.at, (out, table, rows)))
    return [f"embedding({operands}, {rows.count}, {table.shape[1]});"]


def _embedding_gradient(site: Site) -> list[str]:
    out, gradient = result(site), dense(site, "grad_output")
    rows = dense(site, "indices", "int64")
    if site.arguments.get("scale_grad_by_freq"):
        raise site.refuse("gradients scaled by frequency are not covered")
    operands = ", ".join(map(site.at, (out, gradient, rows)))
    ignored = site.arguments.get("padding_idx", -1)
    size = f"{rows.count}, {out.shape[1]}, {out.shape[0]}, {ignored}"
    return [f"embedding_gradient({operands}, {size});"]


def _gather(site: Site) -> list[str]:
    out, index = result(site), dense(site, "index", "int64")
    source = operand(site, "self")
    is_plain = source.dtype == "int64" and source.is_dense and len(source.shape) == 2
    if not is_plain or site.arguments["dim"] % 2 != 1 or source.shape[0] != index.shape[0]:
        raise site.refuse("only rows of whole numbers are covered")
    operands = ", ".join(map(site.at, (out, source, index)))
    return [f"gather_whole({operands}, {index.shape[0]}, {source.shape[1]}, {index.shape[1]});"]


def _select_gradient(site: Site) -> list[str]:
    out, gradient = result(site), dense(site, "grad_output")
    dim = site.arguments["dim"] % len(out.shape)
    at = site.arguments["index"] % out.shape[dim] * out.strides[dim]
    piece = out.piece(at, (*out.shape[:dim], *out.shape[dim + 1 :]), dim)
    return [
        f"fill({site.at(out)}, 0.0f, {out.count});",
        f"copy_view({site.at(piece)}, {site.at(gradient)}, {site.view(piece)}, "
        f"{site.view(gradient)});",
    ]


KERNELS: Table = {
    "aten.bmm": _batched_product,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_gradient,
    "aten._safe_softmax": _softmax,
    "aten._softmax": _softmax,
    "aten._softmax_backward_data": _softmax_gradient,
    "aten.gelu": _gelu("gelu"),
    "aten.gelu_backward": _gelu("gelu_gradient"),
    "aten.silu": _gelu("silu"),
    "aten.silu_backward": _gelu("silu_gradient"),
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_gradient,
    "aten.gather": _gather,
    "aten.select_backward": _select_gradient,
}
