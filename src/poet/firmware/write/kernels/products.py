"""Matrix products and convolutions."""

from math import prod

from poet.calls.loops import MOST_SUM_ROWS, sum_rows
from poet.calls.operands import Operand
from poet.firmware.write.kernels.site import (
    Fields,
    Site,
    Table,
    addresses,
    dense,
    maybe,
    operand,
    pair,
    product_shape,
    result,
)


def _product(site: Site, left: Operand, right: Operand, row: Operand | None) -> list[str]:
    out = result(site)
    if len(left.shape) != 2 or len(right.shape) != 2 or not out.is_dense:
        raise site.refuse("its operands are not matrices")
    shape = product_shape(site, left, right, sum_block(site, right))
    operands = addresses(site, out, left, right, row)
    return [f"matmul({operands}, {shape});"]


def sum_block(site: Site, right: Operand) -> int:
    """Products that are summed at a time: over the rows of a parameter as many as of its tiles."""
    if site.is_parameter(right) and right.is_dense:
        return sum_rows(4 * right.shape[1])
    return MOST_SUM_ROWS


def _mm(site: Site) -> list[str]:
    return _product(site, operand(site, "self"), operand(site, "mat2"), None)


def _addmm(site: Site) -> list[str]:
    row = dense(site, "self")
    if len(row.shape) != 1 or any(site.arguments.get(n, 1) != 1 for n in ("alpha", "beta")):
        raise site.refuse("only a row that is added once is covered")
    return _product(site, operand(site, "mat1"), operand(site, "mat2"), row)


def is_product(site: Site, weight: Operand) -> bool:
    """Whether a convolution is a product of matrices: one tap that meets every pixel."""
    one = weight.shape[2:] == (1, 1) and tuple(pair(site, "stride", 1)) == (1, 1)
    return one and tuple(pair(site, "padding", 0)) == (0, 0)


def conv_shape(
    site: Site,
    image: Operand,
    weight: Operand,
    out: Operand,
    out_channels: int | None = None,
    of: Site | None = None,
) -> str:
    """The constant for a convolution, or for a tile of it with so many of its output channels.

    A block of rows is summed as the whole convolution `of` which it is a part.
    """
    arguments = site.arguments
    if arguments.get("transposed") or len(image.shape) != 4:
        raise site.refuse("only convolutions of images that are not transposed are covered")
    stride, pad = pair(site, "stride", 1), pair(site, "padding", 0)
    dilation = pair(site, "dilation", 1)
    fields: Fields = {
        "batch": image.shape[0], "groups": arguments.get("groups", 1),
        "channels": image.shape[1], "height": image.shape[2], "width": image.shape[3],
        "out_channels": out_channels or out.shape[1],
        "out_height": out.shape[2], "out_width": out.shape[3],
        "kernel_height": weight.shape[2], "kernel_width": weight.shape[3],
        "stride_y": stride[0], "stride_x": stride[1], "pad_y": pad[0], "pad_x": pad[1],
        "dilation_y": dilation[0], "dilation_x": dilation[1],
        "out_planes": out.shape[1], "block": sum_rows(4 * prod(weight.shape[1:])),
        "is_product": int(is_product(of or site, weight)),
    }  # fmt: skip
    return site.constant("conv", fields)


def _conv(site: Site) -> list[str]:
    image, weight, out = dense(site, "input"), dense(site, "weight"), result(site)
    shape = conv_shape(site, image, weight, out)
    operands = addresses(site, out, image, weight, maybe(site, "bias"))
    return [f"conv({operands}, {shape});"]


def _conv_gradients(site: Site) -> list[str]:
    gradient, image = dense(site, "grad_output"), dense(site, "input")
    weight = dense(site, "weight")
    shape = conv_shape(site, image, weight, gradient)
    to_image, to_weight, to_bias = site.results
    lines = []
    if to_image is not None:
        operands = addresses(site, to_image, gradient, weight)
        lines.append(f"conv_input_gradient({operands}, {shape});")
    if to_weight is not None:
        operands = addresses(site, to_weight, gradient, image)
        lines.append(f"conv_weight_gradient({operands}, {shape});")
    if to_bias is not None:
        lines.append(f"conv_bias_gradient({site.at(to_bias)}, {site.at(gradient)}, {shape});")
    return lines


KERNELS: Table = {
    "aten.mm": _mm,
    "aten.addmm": _addmm,
    "aten.convolution": _conv,
    "aten.convolution_backward": _conv_gradients,
}
