"""What transformers need beside products of matrices."""

from collections.abc import Callable
from math import prod, sqrt

from poet.calls.operands import Operand, position
from poet.firmware.write.kernels.masks import copied, filled, named_rows, packed
from poet.firmware.write.kernels.site import (
    Site,
    Table,
    addresses,
    dense,
    dense_result,
    dense_results,
    maybe,
    operand,
    product_shape,
    result,
    view_text,
)
from poet.firmware.write.text import c_float, c_int


def _batched_product(site: Site) -> list[str]:
    left, right, out = operand(site, "self"), operand(site, "mat2"), result(site)
    if not out.is_dense:
        raise site.refuse("its result is not row-major")
    shape = product_shape(site, left, right)
    step = left.shape[1] * right.shape[2]
    return [
        f"poet_matmul({site.at(out, n * step)}, {site.at(left, n * left.strides[0])}, "
        f"{site.at(right, n * right.strides[0])}, NULL, {shape});"
        for n in range(left.shape[0])
    ]


def _layer_norm(site: Site) -> list[str]:
    lines, image = packed(site, "input", result(site))
    columns = prod(site.arguments["normalized_shape"])
    given = (*dense_results(site), image, maybe(site, "weight"), maybe(site, "bias"))
    operands = addresses(site, *given)
    epsilon = c_float(site.arguments["eps"])
    size = f"{image.count // columns}, {columns}"
    return [*lines, f"poet_layer_norm({operands}, {size}, {epsilon});"]


def _layer_norm_gradient(site: Site) -> list[str]:
    gradient, image = operand(site, "grad_out"), operand(site, "input")
    columns = prod(site.arguments["normalized_shape"])
    known = (gradient, image, dense(site, "mean"), dense(site, "rstd"))
    operands = addresses(site, *dense_results(site), *known, maybe(site, "weight"))
    if gradient.is_dense and image.is_dense:
        size = f"{image.count // columns}, {columns}"
        return [f"poet_layer_norm_gradient({operands}, {size});"]
    if len(site.arguments["normalized_shape"]) != 1:
        raise site.refuse("norms over several dimensions that are not row-major are not covered")
    views = ", ".join(site.literal("view", view_text(site, x)[1:-1]) for x in (gradient, image))
    return [f"poet_layer_norm_view_gradient({operands}, {views});"]


def _softmax(site: Site) -> list[str]:
    out = dense_result(site)
    lines, source = packed(site, "self", out)
    return [*lines, _along(site, "softmax", source, out, source)]


def _softmax_gradient(site: Site) -> list[str]:
    out, known = dense_result(site), dense(site, "output")
    lines, gradient = packed(site, "grad_output", out)
    return [*lines, _along(site, "softmax_gradient", known, out, gradient, known)]


def _along(site: Site, name: str, whole: Operand, *operands: Operand) -> str:
    """A kernel along the last dimension, or along another one, whose elements lie apart."""
    dim, where = site.arguments["dim"] % max(1, len(whole.shape)), addresses(site, *operands)
    area, extent = prod(whole.shape[dim + 1 :]), whole.shape[dim] if whole.shape else 1
    rows = whole.count // max(1, area * extent)
    if area == 1:
        return f"poet_{name}({where}, {rows}, {extent});"
    name = name.replace("softmax", "softmax_across")
    return f"poet_{name}({where}, {rows}, {extent}, {area});"


def _attention(site: Site) -> list[str]:
    out, sums = site.results
    shape = _attention_shape(site, {"out": out, "sums": sums})
    given = (*site.results, *_queries(site).values(), _mask(site))
    return [f"poet_attention({addresses(site, *given)}, {shape});"]


def _attention_gradient(site: Site) -> list[str]:
    names = ("query_gradient", "key_gradient", "value_gradient")
    made = dict(zip(names, site.results, strict=True))
    gradient, out, sums = (operand(site, name) for name in ("grad_out", "out", "logsumexp"))
    shape = _attention_shape(site, {"gradient": gradient, "out": out, "sums": sums, **made})
    given = (*site.results, gradient, *_queries(site).values(), out, sums, _mask(site))
    return [f"poet_attention_gradient({addresses(site, *given)}, {shape});"]


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
        return [f"poet_{wanted}({addresses(site, *parts)}, {out.count});"]

    return make


def _embedding(site: Site) -> list[str]:
    out, table, rows = result(site), dense(site, "weight"), operand(site, "indices")
    if not rows.is_dense:
        places, shape = named_rows(site, table, [rows], out)
        return [f"poet_pick_rows({site.at(out)}, {site.at(table)}, {places}, {shape});"]
    operands = addresses(site, out, table, dense(site, "indices", "int64"))
    return [f"poet_embedding({operands}, {rows.count}, {table.shape[1]}, {table.shape[0]});"]


def _embedding_gradient(site: Site) -> list[str]:
    out, gradient, rows = result(site), operand(site, "grad_output"), operand(site, "indices")
    if site.arguments.get("scale_grad_by_freq"):
        raise site.refuse("gradients scaled by frequency are not covered")
    ignored, columns = site.arguments["padding_idx"], out.shape[1]
    if not rows.is_dense and gradient.is_dense:
        places, shape = named_rows(site, out, [rows], gradient)
        unseen = [f"poet_fill({site.at(out, ignored * columns)}, 0.0f, {columns});"]
        return [
            f"poet_fill({site.at(out)}, 0.0f, {out.count});",
            f"poet_add_rows({site.at(out)}, {site.at(gradient)}, {places}, {shape});",
            *(unseen if ignored >= 0 else []),
        ]
    if not gradient.is_dense:
        return _rows_with_gaps(site, gradient, rows, out)
    operands = addresses(site, out, gradient, dense(site, "indices", "int64"))
    size = f"{rows.count}, {columns}, {out.shape[0]}, {c_int(ignored)}"
    return [f"poet_embedding_gradient({operands}, {size});"]


def _rows_with_gaps(site: Site, gradient: Operand, rows: Operand, out: Operand) -> list[str]:
    if {gradient.dtype, out.dtype} != {"float32"} or rows.dtype != "int64":
        raise site.refuse("only float32 by whole numbers is covered")
    both = [gradient, Operand(rows.storage, rows.offset, (*rows.shape, gradient.shape[-1]),
                              (*rows.strides, 0), rows.dtype)]  # fmt: skip
    views = ", ".join(site.literal("view", view_text(site, x)[1:-1]) for x in both)
    size = f"{out.shape[0]}, {c_int(site.arguments['padding_idx'])}"
    return [
        f"poet_fill({site.at(out)}, 0.0f, {out.count});",
        f"poet_add_rows_view({addresses(site, out, gradient, rows)}, {size}, {views});",
    ]


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
    "aten.select_backward": _select_gradient,
    "aten.slice_backward": _slice_gradient,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_gradient,
}
