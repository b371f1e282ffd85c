"""Images and signals made larger or smaller, as PyTorch finds the places in them."""

from collections.abc import Callable, Sequence
from math import prod

from poet.firmware.write.kernels.masks import packed
from poet.firmware.write.kernels.site import Fields, Site, Table, dense_result


def _scale(given: float | None, size: int, out: int, is_at_corners: bool) -> float:
    """From a place in the result to one in the image."""
    if is_at_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1 / given if given else size / out


def _shape(site: Site, image: Sequence[int], out: Sequence[int], offset: float) -> str:
    corners = bool(site.arguments.get("align_corners", False))
    given = [site.arguments.get(name) for name in ("scales_h", "scales_w")]
    if len(image) == 3:
        given = [None, site.arguments.get("scales")]
    height, width = (1, image[2]) if len(image) == 3 else image[2:]
    out_height, out_width = (1, out[2]) if len(out) == 3 else out[2:]
    fields: Fields = {
        "planes": prod(image[:2]), "height": height, "width": width, "out_height": out_height,
        "out_width": out_width, "is_at_corners": int(corners),
        "scale_y": float(_scale(given[0], height, out_height, corners)),
        "scale_x": float(_scale(given[1], width, out_width, corners)), "offset": offset,
    }  # fmt: skip
    return site.constant("resize", fields)


def _resized(name: str, offset: float = 0.0) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out = dense_result(site)
        _, image = packed(site, "self", None)
        shape = _shape(site, image.shape, out.shape, offset)
        return [f"poet_{name}({site.at(out)}, {site.at(image)}, {shape});"]

    return make


def _gradient(name: str, offset: float = 0.0) -> Callable[[Site], list[str]]:
    def make(site: Site) -> list[str]:
        out = dense_result(site)
        _, gradient = packed(site, "grad_output", None)
        shape = _shape(site, out.shape, gradient.shape, offset)
        return [f"poet_{name}_gradient({site.at(out)}, {site.at(gradient)}, {shape});"]

    return make


_KINDS = {
    "upsample_nearest1d": ("nearest", 0.0),
    "upsample_nearest2d": ("nearest", 0.0),
    "_upsample_nearest_exact1d": ("nearest", 0.5),
    "_upsample_nearest_exact2d": ("nearest", 0.5),
    "upsample_linear1d": ("bilinear", 0.0),
    "upsample_bilinear2d": ("bilinear", 0.0),
}

KERNELS: Table = {
    **{f"aten.{kind}": _resized(*how) for kind, how in _KINDS.items()},
    **{f"aten.{kind}_backward": _gradient(*how) for kind, how in _KINDS.items()},
}
