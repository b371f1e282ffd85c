"""Loops over the tiles of a parameter that is streamed from the card.

A tile is read, multiplied with, updated and written back; `row` is the first row that it holds. The
rows that are left over when tiles do not divide the parameter come after the loop.
"""

from collections.abc import Callable
from math import prod

import msgspec

from poet.calls.loops import Loop
from poet.calls.operands import Operand
from poet.calls.updates import SCALARS
from poet.firmware.write.kernels.products import conv_shape, sum_block
from poet.firmware.write.kernels.site import (
    Site,
    addresses,
    dense,
    maybe,
    operand,
    place_of,
    product_shape,
    result,
)
from poet.firmware.write.kernels.updates import KERNELS as UPDATES
from poet.firmware.write.text import c_int

Card = Callable[[int, bool], str]
"""Where a tensor is read on the card, or written (True), as C."""
Body = Callable[[str, int], list[str]]
"""The statements for a tile: from the C text of its first row, and its rows."""


def loop_statements(
    site: Site, update: Site | None, loop: Loop, tile_rows: int, card: Card
) -> list[str]:
    """The statements of a loop. `site` makes, `update` uses the parameter's gradient."""
    if loop.named_rows is not None:
        return _named(site, update, loop, card)
    before, body = _PARTS[site.family](site, loop)

    def tile(row: str, rows: int) -> list[str]:
        lines = [*_moves("stream_in", site, loop, card, row, rows), *body(row, rows)]
        if update is not None:
            lines += _update(update, rows)
            lines += _moves("stream_out", site, loop, card, row, rows)
        return lines

    rest = loop.rows % tile_rows
    whole = loop.rows - rest
    if whole == tile_rows:
        lines = [*before, *tile("0", tile_rows)]
    else:
        head = f"for (int32_t row = 0; row < {whole}; row += {tile_rows}) {{"
        lines = [*before, head, *(f"    {text}" for text in tile("row", tile_rows)), "}"]
    return lines if rest == 0 else [*lines, *tile(str(whole), rest)]


def _moves(call: str, site: Site, loop: Loop, card: Card, row: str, rows: int) -> list[str]:
    nbytes, step, is_out = rows * loop.row_bytes, loop.row_bytes, call == "stream_out"
    return [
        f"poet_{call}(ctx, {_tile(site, i)}, {_plus(card(i, is_out), row, step)}, {nbytes});"
        for i in loop.streamed
    ]


def _tile(site: Site, i: int) -> str:
    return site.at(Operand(("tensor", i), 0, (), (), "float32"))


def _plus(text: str, row: str, stride: int) -> str:
    """A C expression for some rows further."""
    if row.isdigit():
        further = int(row) * stride
        return f"{text} + {further}" if further else text
    return f"{text} + {row}" if stride == 1 else f"{text} + {row} * {stride}"


def _update(site: Site, rows: int) -> list[str]:
    """The update of a tile: parameter, state and gradient have its rows alone."""
    arguments = {
        name: msgspec.structs.replace(x, shape=(rows, *x.shape[1:]))
        if isinstance(x, Operand) and name not in SCALARS
        else x
        for name, x in site.arguments.items()
    }
    return UPDATES[site.kind](site.with_arguments(arguments))


def _conv(site: Site, loop: Loop) -> tuple[list[str], Body]:
    image, weight, out = dense(site, "input"), dense(site, "weight"), result(site)
    bias, area = maybe(site, "bias"), out.shape[2] * out.shape[3]

    def body(row: str, rows: int) -> list[str]:
        shape = conv_shape(site, image, weight, out, rows)
        to = _plus(site.at(out), row, area)
        shifted = "NULL" if bias is None else _plus(site.at(bias), row, 1)
        return [f"poet_conv({to}, {site.at(image)}, {site.at(weight)}, {shifted}, {shape});"]

    return [], body


def _conv_gradients(site: Site, loop: Loop) -> tuple[list[str], Body]:
    gradient, image = dense(site, "grad_output"), dense(site, "input")
    weight, area = dense(site, "weight"), gradient.shape[2] * gradient.shape[3]
    to_image, to_weight, to_bias = site.results
    before = []
    if to_image is not None:
        before.append(f"poet_fill({site.at(to_image)}, 0.0f, {to_image.count});")
    if to_bias is not None:
        shape = conv_shape(site, image, weight, gradient)
        before.append(f"poet_conv_bias_gradient({site.at(to_bias)}, {site.at(gradient)}, {shape});")

    def body(row: str, rows: int) -> list[str]:
        shape = conv_shape(site, image, weight, gradient, rows)
        y = _plus(site.at(gradient), row, area)
        lines = []
        if to_image is not None:
            operands = f"{site.at(to_image)}, {y}, {site.at(weight)}"
            lines.append(f"poet_conv_input_gradient_part({operands}, {shape}, 1);")
        if to_weight is not None:
            lines.append(
                f"poet_conv_weight_gradient({site.at(to_weight)}, {y}, {site.at(image)}, {shape});"
            )
        return lines

    return before, body


def _product(site: Site, loop: Loop) -> tuple[list[str], Body]:
    left = operand(site, "mat1" if site.kind == "aten.addmm" else "self")
    right, out = operand(site, "mat2"), result(site)
    bias = dense(site, "self") if site.kind == "aten.addmm" else None
    if not out.is_dense or any(site.arguments.get(n, 1) != 1 for n in ("alpha", "beta")):
        raise site.refuse("its result is not row-major, or it is scaled")

    def columns(row: str, rows: int) -> list[str]:
        some = msgspec.structs.replace(right, shape=(right.shape[0], rows))
        shape = product_shape(site, left, some, out_row=out.shape[1])
        shifted = "NULL" if bias is None else _plus(site.at(bias), row, 1)
        to = _plus(site.at(out), row, 1)
        return [f"poet_matmul({to}, {site.at(left)}, {site.at(right)}, {shifted}, {shape});"]

    def some_of_the_sum(row: str, rows: int) -> list[str]:
        some = msgspec.structs.replace(left, shape=(left.shape[0], rows))
        shape = product_shape(site, some, right, block=sum_block(site, right))
        a = _plus(site.at(left), row, left.strides[1])
        return [f"poet_matmul_part({site.at(out)}, {a}, {site.at(right)}, NULL, {shape}, 1);"]

    def gradient(row: str, rows: int) -> list[str]:
        some = msgspec.structs.replace(left, shape=(rows, left.shape[1]))
        shape = product_shape(site, some, right)
        a = _plus(site.at(left), row, left.strides[0])
        return [f"poet_matmul({site.at(out)}, {a}, {site.at(right)}, NULL, {shape});"]

    if loop.kind == "sum":
        first = f"poet_fill({site.at(out)}, 0.0f, {out.count});"
        if bias is not None:
            rows = bias.expanded(out.shape)
            views = f"{site.view(out)}, {site.view(rows)}"
            first = f"poet_copy_view({site.at(out)}, {site.at(bias)}, {views});"
        return [first], some_of_the_sum
    return [], columns if loop.kind == "columns" else gradient


def _embedding_gradient(site: Site, loop: Loop) -> tuple[list[str], Body]:
    gradient, rows_named = dense(site, "grad_output"), dense(site, "indices", "int64")
    out, ignored = result(site), c_int(site.arguments["padding_idx"])

    def body(row: str, rows: int) -> list[str]:
        operands = addresses(site, out, gradient, rows_named)
        size = f"{rows_named.count}, {prod(out.shape[1:])}, {row}, {rows}, {ignored}"
        return [f"poet_embedding_rows_gradient({operands}, {size});"]

    return [], body


def _named(site: Site, update: Site | None, loop: Loop, card: Card) -> list[str]:
    """Only the rows that indices name."""
    indices = operand(site, "indices")
    columns = loop.row_bytes // 4
    index = f"({site.at(indices)})[{place_of(indices, 'i')}]"
    place = f"(uint32_t)poet_index_of({index}, {loop.rows}) * {loop.row_bytes}u"
    head = f"for (int32_t i = 0; i < {indices.count}; i++)"
    if update is None:
        to = f"{site.at(result(site))} + i * {columns}"
        move = (
            f"poet_stream_in(ctx, {to}, {card(loop.parameter, False)} + {place}, {loop.row_bytes});"
        )
        return [head, f"    {move}"]
    gradient, ignored = dense(site, "grad_output"), c_int(site.arguments["padding_idx"])
    operands = addresses(site, result(site), gradient, indices)
    size = f"i, {indices.count}, {columns}, {ignored}"
    tile = _tile(site, loop.parameter)
    where = f"{card(loop.parameter, True)} + {place}"
    return [
        f"{head} {{",
        f"    if (!poet_embedding_row_gradient({operands}, {size}))",
        "        continue;",
        f"    poet_stream_in(ctx, {tile}, {where}, {loop.row_bytes});",
        *(f"    {text}" for text in _update(update, 1)),
        f"    poet_stream_out(ctx, {tile}, {where}, {loop.row_bytes});",
        "}",
    ]


_PARTS: dict[str, Callable[[Site, Loop], tuple[list[str], Body]]] = {
    "aten.convolution": _conv,
    "aten.convolution_backward": _conv_gradients,
    "aten.addmm": _product,
    "aten.mm": _product,
    "aten.embedding_dense_backward": _embedding_gradient,
}
