"""Matrix products, and the shapes of convolutions."""

from math import prod

from poet.calls.loops import MOST_SUM_ROWS, sum_rows
from poet.calls.operands import Operand
from poet.firmware.write.kernels.site import (
    Fields,
    Site,
    Table,
    addresses,
    dense,
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
    return [f"poet_matmul({operands}, {shape});"]


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
    one = set(weight.shape[2:]) == {1} and tuple(pair(site, "stride", 1)) == (1, 1)
    return one and tuple(pair(site, "padding", 0)) == (0, 0)


def as_image(x: Operand) -> Operand:
    """A signal, or a kernel for signals, as an image of one row."""
    if len(x.shape) != 3:
        return x
    shape, strides = (*x.shape[:2], 1, x.shape[2]), (*x.strides[:2], 0, x.strides[2])
    return Operand(x.storage, x.offset, shape, strides, x.dtype)


def along(site: Site, name: str, default: int, rank: int) -> tuple[int, int]:
    """Stride, padding or dilation down and across; signals have one row."""
    found = pair(site, name, default)
    return found if rank == 4 else (default, found[1])


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
    rank, product = len(image.shape), is_product(of or site, weight)
    if arguments.get("transposed") or rank not in (3, 4):
        raise site.refuse("a convolution of this kind has no kernel of its own")
    stride, pad = along(site, "stride", 1, rank), along(site, "padding", 0, rank)
    dilation = along(site, "dilation", 1, rank)
    block = sum_rows(4 * prod(weight.shape[1:]))
    image, weight, out = map(as_image, (image, weight, out))
    fields: Fields = {
        "batch": image.shape[0], "groups": arguments.get("groups", 1),
        "channels": image.shape[1], "height": image.shape[2], "width": image.shape[3],
        "out_channels": out_channels or out.shape[1],
        "out_height": out.shape[2], "out_width": out.shape[3],
        "kernel_height": weight.shape[2], "kernel_width": weight.shape[3],
        "stride_y": stride[0], "stride_x": stride[1], "pad_y": pad[0], "pad_x": pad[1],
        "dilation_y": dilation[0], "dilation_x": dilation[1],
        "out_planes": out.shape[1], "block": block,
        "is_product": int(product),
    }  # fmt: skip
    return site.constant("conv", fields)


KERNELS: Table = {
    "aten.mm": _mm,
    "aten.addmm": _addmm,
}
