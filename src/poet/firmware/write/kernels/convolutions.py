"""Convolutions of images and signals, transposed ones, and their gradients, in any layout.

A transposed convolution is the gradient of one: what it makes is the image whose gradient it is.
So it runs by the same kernels, with the parts changed. Those want row-major tensors; for others, as
behind a `transpose`, there are plain loops by views.
"""

from typing import NamedTuple

from poet.calls.operands import Operand
from poet.firmware.write.kernels.products import along, as_image, conv_shape
from poet.firmware.write.kernels.site import (
    Site,
    Table,
    addresses,
    kept_and_summed,
    maybe,
    operand,
    result,
    view_text,
)


class _Parts(NamedTuple):
    """A convolution: what it reads and makes, whichever of them the call reads and makes."""

    site: Site
    """Of the convolution, which is not transposed."""
    image: Operand
    weight: Operand
    out: Operand

    @property
    def is_dense(self) -> bool:
        return all(x.is_dense for x in (self.image, self.weight, self.out))

    @property
    def shape(self) -> str:
        return conv_shape(self.site, self.image, self.weight, self.out)

    @property
    def views(self) -> str:
        """The shape for kernels that take any layout."""
        site, rank = self.site, len(self.image.shape)
        fields = []
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1)):
            y, x = along(site, name, default, rank)
            short = "pad" if name == "padding" else name
            fields += [f".{short}_y = {y}", f".{short}_x = {x}"]
        fields += [f".groups = {site.arguments.get('groups', 1)}"]
        for name, part in zip(("in", "weight", "out"), self[1:], strict=True):
            fields.append(f".{name} = {view_text(site, as_image(part))}")
        return site.literal("conv_view", ", ".join(fields))


def _parts(site: Site, given: Operand, made: Operand) -> _Parts:
    """The convolution that makes `made` of `given`, or, transposed, `given` of `made`."""
    weight = operand(site, "weight")
    if {x.dtype for x in (given, weight, made)} != {"float32"}:
        raise site.refuse("only float32 is covered")
    if len(given.shape) not in (3, 4):
        raise site.refuse("only images and signals are covered")
    if not site.arguments.get("transposed"):
        return _Parts(site, given, weight, made)
    plain = site.with_arguments({**site.arguments, "transposed": False})
    return _Parts(plain, made, weight, given)


def _conv(site: Site) -> list[str]:
    given, out, bias = operand(site, "input"), result(site), maybe(site, "bias")
    parts = _parts(site, given, out)
    where = addresses(site, out, given, parts.weight)
    is_transposed = parts.image is out
    if not parts.is_dense:
        name = "poet_conv_view_input_gradient" if is_transposed else "poet_conv_view"
        return [f"{name}({where}, {site.at(bias)}, {parts.views});"]
    if not is_transposed:
        return [f"poet_conv({where}, {site.at(bias)}, {parts.shape});"]
    lines = [f"poet_conv_input_gradient({where}, {parts.shape});"]
    if bias is not None:
        row = Operand(bias.storage, bias.offset, (*bias.shape, *[1] * (len(out.shape) - 2)),
                      (*bias.strides, *[0] * (len(out.shape) - 2)), bias.dtype)  # fmt: skip
        views = ", ".join(map(site.view, (out, out, row.expanded(out.shape))))
        lines.append(f"poet_add_view({addresses(site, out, out, bias)}, 1.0f, {views});")
    return lines


def _gradients(site: Site) -> list[str]:
    gradient, given = operand(site, "grad_output"), operand(site, "input")
    parts = _parts(site, given, gradient)
    is_transposed, is_dense = parts.image is gradient, parts.is_dense
    to_given, to_weight, to_bias = site.results
    lines = []
    if to_given is not None:
        where = addresses(site, to_given, gradient, parts.weight)
        seated = parts._replace(out=to_given) if is_transposed else parts._replace(image=to_given)
        name = "conv" if is_transposed else "conv_input_gradient"
        if not seated.is_dense:
            name = "conv_view" if is_transposed else "conv_view_input_gradient"
            lines.append(f"poet_{name}({where}, NULL, {seated.views});")
        elif is_transposed:
            lines.append(f"poet_{name}({where}, NULL, {seated.shape});")
        else:
            lines.append(f"poet_{name}({where}, {seated.shape});")
    if to_weight is not None:
        where = addresses(site, to_weight, parts.out, parts.image)
        seated = parts._replace(weight=to_weight)
        if seated.is_dense:
            lines.append(f"poet_conv_weight_gradient({where}, {seated.shape});")
        else:
            lines.append(f"poet_conv_view_weight_gradient({where}, {seated.views});")
    if to_bias is not None and is_dense and not is_transposed:
        lines.append(
            f"poet_conv_bias_gradient({addresses(site, to_bias, gradient)}, {parts.shape});"
        )
    elif to_bias is not None:
        over = site.with_arguments({"dim": [0, *range(2, len(gradient.shape))]})
        views = ", ".join(kept_and_summed(over, gradient))
        lines.append(f"poet_sum_view({addresses(site, to_bias, gradient)}, {views}, 1.0f);")
    return lines


KERNELS: Table = {
    "aten.convolution": _conv,
    "aten.convolution_backward": _gradients,
}
