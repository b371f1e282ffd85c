"""What a block of a call is in C, where that is more than the call on smaller operands.

Some calls add to sums that other blocks have begun, or must know where their block lies.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from poet.calls.operands import Operand
from poet.calls.pieces import planes
from poet.calls.pieces.images import CHANNELS, OUT_CHANNELS, ROWS, SAMPLES
from poet.calls.pieces.products import KEYS, PIXELS, QUERIES, SUM
from poet.calls.pieces.space import Piece, Side, Space, Stretch
from poet.calls.pieces.ways import Part
from poet.firmware.write.kernels import statements
from poet.firmware.write.kernels.norms import norm_shape
from poet.firmware.write.kernels.products import conv_shape
from poet.firmware.write.kernels.reductions import pool_shape
from poet.firmware.write.kernels.site import (
    Site,
    addresses,
    dense,
    maybe,
    operand,
    pair,
    product_shape,
    result,
)
from poet.firmware.write.text import c_int


class At(NamedTuple):
    """Where a loop is: the C text of a block's first place, one such place, and its size."""

    text: str
    stretch: Stretch


class Nest(Protocol):
    """The loops around a block."""

    part: Part
    space: Space

    def piece(self, side: Side, at: dict[int, At]) -> Piece: ...
    def is_more(self, at: dict[int, At], *sums: int) -> str:
        """Whether other blocks of a sum came before: C text, `0` where there are none."""
        ...

    def is_last(self, at: dict[int, At], *sums: int) -> str:
        """Whether no other blocks of a sum follow."""
        ...

    def start(self, side: Side, d: int, at: dict[int, At]) -> str:
        """Where in a dimension a piece begins, as C."""
        ...

    def room(self, name: str) -> str:
        """The address of what blocks of a sum leave for the next."""
        ...


def _product(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    left = operand(site, "mat1" if site.family == "aten.addmm" else "self")
    right, out = operand(site, "mat2"), result(site)
    bias = operand(site, "self") if site.family == "aten.addmm" else None
    block = nest.space.axes[SUM].granule
    shape = product_shape(site, left, right, block, out_row=max(1, out.strides[-2]))
    more = nest.is_more(at, SUM)
    lines = []
    for n in range(left.shape[0] if len(left.shape) == 3 else 1):
        apart = [x.strides[0] if len(x.shape) == 3 else 0 for x in (out, left, right)]
        where = ", ".join(
            site.at(x, n * step) for x, step in zip((out, left, right), apart, strict=True)
        )
        lines.append(f"poet_matmul_part({where}, {site.at(bias)}, {shape}, {more});")
    return lines


def _conv(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    image, weight, out = dense(site, "input"), dense(site, "weight"), result(site)
    shape = _conv_shape(nest, site, at, image, weight, out)
    bias = site.arguments.get("bias")
    where = ", ".join(site.at(x) for x in (out, image, weight, bias))
    more, last = nest.is_more(at, CHANNELS), nest.is_last(at, CHANNELS)
    return [f"poet_conv_part({where}, {shape}, {more}, {last});"]


def _conv_shape(
    nest: Nest, site: Site, at: dict[int, At], image: Operand, weight: Operand, out: Operand
) -> str:
    groups = site.arguments.get("groups", 1)
    arguments = {**site.arguments}
    if groups > 1:
        arguments["groups"] = at[OUT_CHANNELS].stretch.size
    side = nest.space.reads["input"]
    padding = site.arguments.get("padding") or [0, 0]
    if isinstance(padding, int):
        padding = [padding, padding]
    if side.reach[2] is not None and not side.is_unread:
        arguments["padding"] = [nest.piece(side, at).outside[2], padding[-1]]
    elif side.reach[2] is not None:
        # The first row of the block meets the first row of its gradients after so many taps.
        first = nest.piece(side, at).start[2]
        begin = (
            nest.piece(nest.space.reads["grad_output"], at).start[2] * pair(site, "stride", 1)[0]
        )
        arguments["padding"] = [first + padding[0] - begin, padding[-1]]
    shaped = _With(site, arguments)
    return conv_shape(shaped, image, weight, out, of=site)


class _With:
    """A site with other arguments."""

    def __init__(self, site: Site, arguments: dict[str, Any]) -> None:
        self._site, self.arguments = site, arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)


def _conv_gradients(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    gradient, image = dense(site, "grad_output"), dense(site, "input")
    weight = dense(site, "weight")
    shape = _conv_shape(nest, site, at, image, weight, gradient)
    to_image, to_weight, to_bias = site.results
    lines, summed = [], nest.is_more(at, SAMPLES, ROWS)
    if to_image is not None:
        where = ", ".join(site.at(x) for x in (to_image, gradient, weight))
        is_sum = site.arguments.get("groups", 1) == 1
        more = nest.is_more(at, OUT_CHANNELS) if is_sum else "0"
        lines.append(f"poet_conv_input_gradient_part({where}, {shape}, {more});")
    if to_weight is not None:
        where = ", ".join(site.at(x) for x in (to_weight, gradient, image))
        lines.append(f"poet_conv_weight_gradient_part({where}, {shape}, {summed});")
    if to_bias is not None:
        where = f"{site.at(to_bias)}, {site.at(gradient)}"
        call = f"poet_conv_bias_gradient_part({where}, {shape}, {summed});"
        is_once = nest.is_more(at, CHANNELS) == "0"
        lines.append(call if is_once else f"if ({at[CHANNELS].text} == 0) {call}")
    return lines


def _layer_norm_gradient(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    lines = statements(site)
    (call,) = lines
    return [call.replace("poet_layer_norm_gradient(", "poet_layer_norm_gradient_part(").replace(
        ");", f", {nest.is_more(at, 0)});"
    )]  # fmt: skip


def _loss(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    (call,) = statements(site)
    more, last = nest.is_more(at, 0, PIXELS), nest.is_last(at, 0, PIXELS)
    return [
        call.replace("poet_nll_loss(", "poet_nll_loss_part(").replace(");", f", {more}, {last});")
    ]


def _embedding(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    if nest.part.held.get("weight") is not None:
        return []  # read straight to where it belongs
    return statements(site)


def _embedding_gradient(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    out, gradient = result(site), operand(site, "grad_output")
    indices = operand(site, "indices")
    ignored = c_int(site.arguments["padding_idx"])
    where = ", ".join(site.at(x) for x in (out, gradient, indices))
    count, columns = indices.count, out.shape[1]
    side = nest.space.writes[0]
    assert side is not None
    if side.named_by is not None:
        named = f"{at[0].text}, {count}, {columns}, {ignored}"
        return [f"if (poet_embedding_row_gradient({where}, {named}))"]
    size = f"{count}, {columns}, {at[0].text}, {out.shape[0]}, {ignored}"
    return [f"poet_embedding_rows_gradient({where}, {size});"]


def _dropout_mask(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    (call,) = statements(site)
    head, _, count = call.removesuffix(");").rpartition(", ")
    return [f"{head.removesuffix(', 0')}, {at[0].text}, {count});"]


def _attention(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    (call,) = statements(site)
    name, _, operands = call.partition("(")
    if len(nest.space.axes) == 2:
        return [call]  # head by head
    fields = {
        "first_query": at[QUERIES].text, "first_key": at[KEYS].text,
        "more_queries": nest.is_more(at, QUERIES), "more_keys": nest.is_more(at, KEYS),
        "is_last": nest.is_last(at, KEYS),
    }  # fmt: skip
    if "state" in nest.space.rooms:
        fields["state"] = f"(float *){nest.room('state')}"
    return [f"{name}_of_part({operands.removesuffix(');')}, {_part('attention_part', fields)});"]


def _part(struct: str, fields: dict[str, str]) -> str:
    """What a kernel is told of a block: some of it changes with the loops."""
    return f"&(struct poet_{struct}){{{', '.join(f'.{n} = {x}' for n, x in fields.items())}}}"


def _norm_part(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    image, given = dense(site, "input"), site.arguments
    whole = nest.space.axes
    fields = {"count": f"{float(whole[planes.SAMPLES].extent * whole[planes.AREA].extent)}f"}
    shape = norm_shape(site, image)
    if nest.space.rooms:
        fields["sums"] = f"(struct poet_sum *){nest.room('sums')}"
        is_more = nest.is_more(at, planes.SAMPLES, planes.AREA)
        fields["is_first"] = f"!({is_more})"
        fields["is_last"] = nest.is_last(at, planes.SAMPLES, planes.AREA)
    if given.get("is_fixed"):
        fields["is_fixed"] = "1"
    if site.family == planes.STATISTICS:
        results = [*site.results, *[None] * (4 - len(site.results))]
        pass_ = at[planes.PASS]
        fields["pass"] = "POET_BOTH_PASSES" if pass_.stretch.size == 2 else pass_.text
        old = [maybe(site, n) for n in ("running_mean", "running_var")]
        where = addresses(site, *results, image, *old)
        return [f"poet_norm_statistics({where}, {shape}, {_part('norm_part', fields)});"]
    if site.family == planes.APPLIED:
        with_ = [maybe(site, n) for n in ("weight", "bias", "save_mean", "save_invstd")]
        where = addresses(site, result(site), image, *with_)
        return [f"poet_norm_apply({where}, {shape});"]
    gradient = dense(site, "grad_out")
    if site.family == planes.SUMS:
        stats = (dense(site, n) for n in ("mean", "inverse"))
        where = addresses(site, *site.results, gradient, image, *stats)
        return [f"poet_norm_sums({where}, {shape}, {_part('norm_part', fields)});"]
    with_ = [maybe(site, n) for n in ("weight", "mean", "inverse", "to_weight", "to_bias")]
    where = addresses(site, result(site), gradient, image, *with_)
    return [f"poet_norm_gradient({where}, {shape}, {_part('norm_part', fields)});"]


def _pool(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    """Windows are counted from the plane's first row, so the shape is the whole plane's."""
    is_gradient = site.family.endswith("_backward")
    image = nest.space.writes[0] if is_gradient else nest.space.reads["self"]
    windows = nest.space.reads["grad_output"] if is_gradient else nest.space.writes[0]
    assert image is not None
    assert windows is not None
    if image.reach[1] is None:
        return statements(site)
    fields = {
        "first": nest.start(image, 1, at), "rows": str(nest.piece(image, at).shape[1]),
        "out_first": nest.start(windows, 1, at), "out_rows": str(nest.piece(windows, at).shape[1]),
    }  # fmt: skip
    whole = [
        msgspec.structs.replace(x.operand, shape=(nest.piece(x, at).shape[0], *x.operand.shape[1:]))
        for x in (image, windows)
    ]
    shape = pool_shape(site, whole[0], whole[1])
    gradients = [operand(site, n) for n in ("grad_output", "indices") if n in nest.space.reads]
    parts = [*site.results, *(gradients if is_gradient else [dense(site, "self")])]
    name = "max_pool" if "max_pool" in site.family else "average_pool"
    name += "_gradient_rows" if is_gradient else "_rows"
    return [f"poet_{name}({addresses(site, *parts)}, {shape}, {_part('pool_rows', fields)});"]


BLOCKS: dict[str, Callable[[Nest, Any, dict[int, At]], list[str]]] = {
    "aten.mm": _product,
    "aten.addmm": _product,
    "aten.bmm": _product,
    "aten.convolution": _conv,
    "aten.convolution_backward": _conv_gradients,
    "aten.native_layer_norm_backward": _layer_norm_gradient,
    "aten.nll_loss_forward": _loss,
    "aten.nll_loss2d_forward": _loss,
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding_gradient,
    "poet.dropout_mask": _dropout_mask,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention,
    **dict.fromkeys((planes.STATISTICS, planes.APPLIED, planes.SUMS, planes.GRADIENT), _norm_part),
    **dict.fromkeys(
        (
            "aten.max_pool2d_with_indices",
            "aten.max_pool2d_with_indices_backward",
            "aten.avg_pool2d",
            "aten.avg_pool2d_backward",
        ),
        _pool,
    ),
}
