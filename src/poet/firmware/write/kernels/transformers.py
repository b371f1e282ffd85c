"""What transformers need beside products of matrices."""

from collections.abc import Callable
from math import prod, sqrt

from poet.calls.operands import Operand, position
from poet.firmware.write.kernels.masks import copied, filled, named_rows
from poet.firmware.write.kernels.site import (
    Site,
    Table,
    addresses,
    dense,
    maybe,
    operand,
    product_shape,
    result,
    rows_of,
)
from poet.firmware.write.text import c_float, c_int


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
    operands = addresses(site, *given)
    epsilon = c_float(site.arguments["eps"])
    return [f"layer_norm({operands}, {image.count // columns}, {columns}, {epsilon});"]


def _layer_norm_gradient(site: Site) -> list[str]:
    image = dense(site, "input")
    columns = prod(site.arguments["normalized_shape"])
    known = (dense(site, "grad_out"), image, dense(site, "mean"), dense(site, "rstd"))
    operands = addresses(site, *site.results, *known, maybe(site, "weight"))
    return [f"layer_norm_gradient({operands}, {image.count // columns}, {columns});"]


def _softmax(site: Site) -> list[str]:
    out, source = result(site), dense(site, "self")
    rows, columns = rows_of(site, source, site.arguments["dim"])
    return [f"softmax({site.at(out)}, {site.at(source)}, {rows}, {columns});"]


def _softmax_gradient(site: Site) -> list[str]:
    out, gradient, known = result(site), dense(site, "grad_output"), dense(site, "output")
    rows, columns = rows_of(site, known, site.arguments["dim"])
    operands = addresses(site, out, gradient, known)
    return [f"softmax_gradient({operands}, {rows}, {columns});"]


def _attention(site: Site) -> list[str]:
    out, sums = site.results
    shape = _attention_shape(site, {"out": out, "sums": sums})
    given = (*site.results, *_queries(site).values(), _mask(site))
    return [f"attention({addresses(site, *given)}, {shape});"]


def _attention_gradient(site: Site) -> list[str]:
    names = ("query_gradient", "key_gradient", "value_gradient")
    made = dict(zip(names, site.results, strict=True))
    gradient, out, sums = (operand(site, name) for name in ("grad_out", "out", "logsumexp"))
    shape = _attention_shape(site, {"gradient": gradient, "out": out, "sums": sums, **made})
    given = (*site.results, gradient, *_queries(site).values(), out, sums, _mask(site))
    return [f"attention_gradient({addresses(site, *given)}, {shape});"]


def _queries(site: Site) -> dict[str, Operand]:
    return {name: operand(site, name) for name in ("query", "key", "value")}


def _mask(site: Site) -> Operand | None:
    return None if site.arguments.get("attn_mask") is None else operand(site, "attn_mask")


def _attention_shape(site: Site, more: dict[str, Operand | None]) -> str:
    tensors, mask = _queries(site), _mask(site)
    (*heads, _, width), keys = tensors["query"].shape, tensors["key"].shape
    if site.arguments.get("dropout_p"):
        raise site.refuse("dropout of weights is not covered")
    if len(heads) != 2 or [*keys[:2], keys[3]] != [*heads, width] or keys != tensors["value"].shape:
        raise site.refuse("only as many heads of keys and values as of queries are covered")
    parts = {**tensors, **{name: x for name, x in more.items() if x is not None}}
    if mask is not None:
        parts["mask"] = mask.expanded((*tensors["query"].shape[:3], keys[2]))
    if any(x.dtype != "float32" for x in parts.values()):
        raise site.refuse("only float32 is covered")
    for name, x in parts.items():
        if (name == "out" or name.endswith("_gradient")) and x.strides[3] != 1:
            raise site.refuse("its rows have gaps")
    scale = site.arguments.get("scale")
    words = [f".scale = {c_float(1 / sqrt(width) if scale is None else scale)}"]
    words += [f".is_causal = {int(site.arguments.get('is_causal', False))}"]
    return site.literal("attention", ", ".join(words + [_named_view(*x) for x in parts.items()]))


def _named_view(name: str, operand: Operand) -> str:
    """An initializer that keeps every dimension, also those of extent 1."""
    sizes, strides = (", ".join(map(str, x)) for x in (operand.shape, operand.strides))
    return f".{name} = {{{{{sizes}}}, {{{strides}}}}}"


def _gelu(name: str) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out, source = result(site), dense(site, "self")
        parts = [out, source]
        if name.endswith("gradient"):
            parts = [out, dense(site, "grad_output"), source]
        wanted = name
        if site.arguments.get("approximate", "none") == "tanh":
            wanted = name.replace("gelu", "gelu_tanh")
        return [f"{wanted}({addresses(site, *parts)}, {out.count});"]

    return make


def _embedding(site: Site) -> list[str]:
    out, table, rows = result(site), dense(site, "weight"), operand(site, "indices")
    if not rows.is_dense:
        places, shape = named_rows(site, table, [rows], out)
        return [f"pick_rows({site.at(out)}, {site.at(table)}, {places}, {shape});"]
    operands = addresses(site, out, table, dense(site, "indices", "int64"))
    return [f"embedding({operands}, {rows.count}, {table.shape[1]}, {table.shape[0]});"]


def _embedding_gradient(site: Site) -> list[str]:
    out, gradient, rows = result(site), dense(site, "grad_output"), operand(site, "indices")
    if site.arguments.get("scale_grad_by_freq"):
        raise site.refuse("gradients scaled by frequency are not covered")
    ignored, columns = site.arguments["padding_idx"], out.shape[1]
    if not rows.is_dense:
        places, shape = named_rows(site, out, [rows], gradient)
        unseen = [f"fill({site.at(out, ignored * columns)}, 0.0f, {columns});"]
        return [
            f"fill({site.at(out)}, 0.0f, {out.count});",
            f"add_rows({site.at(out)}, {site.at(gradient)}, {places}, {shape});",
            *(unseen if ignored >= 0 else []),
        ]
    operands = addresses(site, out, gradient, dense(site, "indices", "int64"))
    size = f"{rows.count}, {columns}, {out.shape[0]}, {c_int(ignored)}"
    return [f"embedding_gradient({operands}, {size});"]


def _gather(site: Site) -> list[str]:
    out, index = result(site), dense(site, "index", "int64")
    source = operand(site, "self")
    is_plain = source.dtype == "int64" and source.is_dense and len(source.shape) == 2
    if not is_plain or site.arguments["dim"] % 2 != 1 or source.shape[0] != index.shape[0]:
        raise site.refuse("only rows of whole numbers are covered")
    operands = addresses(site, out, source, index)
    return [f"gather_whole({operands}, {index.shape[0]}, {source.shape[1]}, {index.shape[1]});"]


def _select_gradient(site: Site) -> list[str]:
    out, gradient = result(site), operand(site, "grad_output")
    dim = site.arguments["dim"] % len(out.shape)
    at = site.arguments["index"] % out.shape[dim] * out.strides[dim]
    piece = out.piece(at, (*out.shape[:dim], *out.shape[dim + 1 :]), dim)
    return [filled(site, out, 0), copied(site, piece, gradient)]


def _slice_gradient(site: Site) -> list[str]:
    out, gradient = result(site), operand(site, "grad_output")
    dim, strides = site.arguments["dim"] % len(out.shape), list(out.strides)
    at = position(site.arguments["start"], out.shape[dim]) * strides[dim]
    strides[dim] *= site.arguments["step"]
    piece = Operand(out.storage, out.offset + at, gradient.shape, tuple(strides), out.dtype)
    return [filled(site, out, 0), copied(site, piece, gradient)]


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
    "aten.slice_backward": _slice_gradient,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_gradient,
}
