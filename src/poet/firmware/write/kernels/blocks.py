"""What a block of a call is in C, where that is more than the call on smaller operands.

Some calls add to sums that other blocks have begun, or must know where their block lies.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from poet.calls.operands import Operand
from poet.calls.pieces.products import SUM
from poet.calls.pieces.space import Piece, Side, Space, Stretch
from poet.calls.pieces.ways import Part
from poet.firmware.write.kernels import statements
from poet.firmware.write.kernels.products import conv_shape
from poet.firmware.write.kernels.site import Site, dense, operand, product_shape, result
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

    def is_last(self, at: dict[int, At], axis: int) -> str:
        """Whether no other blocks of a sum follow."""
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
        lines.append(f"matmul_part({where}, {site.at(bias)}, {shape}, {more});")
    return lines


def _conv(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    image, weight, out = dense(site, "input"), dense(site, "weight"), result(site)
    shape = _conv_shape(nest, site, at, image, weight, out)
    bias = site.arguments.get("bias")
    where = ", ".join(site.at(x) for x in (out, image, weight, bias))
    more, last = nest.is_more(at, 2), nest.is_last(at, 2)
    return [f"conv_part({where}, {shape}, {more}, {last});"]


def _conv_shape(
    nest: Nest, site: Site, at: dict[int, At], image: Operand, weight: Operand, out: Operand
) -> str:
    groups = site.arguments.get("groups", 1)
    arguments = {**site.arguments}
    if groups > 1:
        arguments["groups"] = at[1].stretch.size
    side = nest.space.reads["input"]
    padding = site.arguments.get("padding") or [0, 0]
    if isinstance(padding, int):
        padding = [padding, padding]
    if site.family == "aten.convolution":
        arguments["padding"] = [nest.piece(side, at).outside[2], padding[-1]]
    elif len(nest.space.axes) > 3:
        # The first row of the block meets the first row of its gradients after so many taps.
        gradient, first = nest.space.reads["grad_output"], at[3].stretch.start
        begin = nest.piece(gradient, at).start[2]
        arguments["padding"] = [first + padding[0] - begin, padding[-1]]
    shaped = _With(site, arguments)
    return conv_shape(shaped, image, weight, out)


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
    lines = []
    if to_image is not None:
        where = ", ".join(site.at(x) for x in (to_image, gradient, weight))
        lines.append(f"conv_input_gradient_part({where}, {shape}, {nest.is_more(at, 1)});")
        if site.arguments.get("groups", 1) > 1:
            lines[-1] = f"conv_input_gradient_part({where}, {shape}, 0);"
    if to_weight is not None:
        where = ", ".join(site.at(x) for x in (to_weight, gradient, image))
        lines.append(f"conv_weight_gradient({where}, {shape});")
    if to_bias is not None:
        call = f"conv_bias_gradient({site.at(to_bias)}, {site.at(gradient)}, {shape});"
        lines.append(call if nest.is_more(at, 2) == "0" else f"if ({at[2].text} == 0) {call}")
    return lines


def _layer_norm_gradient(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    lines = statements(site)
    (call,) = lines
    return [call.replace("layer_norm_gradient(", "layer_norm_gradient_part(").replace(
        ");", f", {nest.is_more(at, 0)});"
    )]  # fmt: skip


def _loss(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    (call,) = statements(site)
    more, last = nest.is_more(at, 0), nest.is_last(at, 0)
    return [call.replace("nll_loss(", "nll_loss_part(").replace(");", f", {more}, {last});")]


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
        return [f"if (embedding_row_gradient({where}, {named}))"]
    size = f"{count}, {columns}, {at[0].text}, {out.shape[0]}, {ignored}"
    return [f"embedding_rows_gradient({where}, {size});"]


def _dropout_mask(nest: Nest, site: Site, at: dict[int, At]) -> list[str]:
    (call,) = statements(site)
    head, _, count = call.removesuffix(");").rpartition(", ")
    return [f"{head.removesuffix(', 0')}, {at[0].text}, {count});"]


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
}
