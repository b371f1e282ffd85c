"""Norms."""

from poet.calls.operands import Operand
from poet.firmware.write.kernels.masks import packed
from poet.firmware.write.kernels.site import (
    Fields,
    Site,
    Table,
    addresses,
    dense,
    dense_results,
    maybe,
    operand,
    result,
)


def norm_shape(site: Site, image: Operand, gradient: Operand | None = None) -> str:
    area = image.count // (image.shape[0] * image.shape[1])
    fields: Fields = {
        "batch": image.shape[0], "channels": image.shape[1], "area": area,
        "momentum": float(site.arguments.get("momentum", 0.0)),
        "epsilon": float(site.arguments["eps"]),
    }  # fmt: skip
    if gradient is not None and not gradient.is_dense:
        fields["gradient_gap"] = gradient.strides[0] - image.count // image.shape[0]
    return site.constant("norm", fields)


def _batch_norm(site: Site) -> list[str]:
    image = dense(site, "input")
    given = [maybe(site, n) for n in ("weight", "bias", "running_mean", "running_var")]
    if site.arguments.get("training", True) and site.kind != _FIXED_NORM:
        results = [*dense_results(site), *[None] * (5 - len(site.results))]
        operands = addresses(site, *results, image, *given)
        return [f"poet_batch_norm({operands}, {norm_shape(site, image)});"]
    lines = []
    operands = addresses(site, result(site), image, *given)
    lines.append(f"poet_batch_norm_fixed({operands}, {norm_shape(site, image)});")
    for new, old in zip(site.results[3:], given[2:], strict=False):
        if new is not None and old is not None:  # statistics that stay as they are
            lines.append(f"poet_copy_bytes({site.at(new)}, {site.at(old)}, {4 * new.count});")
    return lines


def _batch_norm_gradient(site: Site) -> list[str]:
    image, gradient = dense(site, "input"), operand(site, "grad_out")
    lines: list[str] = []
    sample = gradient.piece(0, gradient.shape[1:], 0)
    if not sample.is_dense or gradient.dtype != "float32" or gradient.strides[0] < sample.count:
        lines, gradient = packed(site, "grad_out", site.results[0])
    if site.arguments.get("train", True):
        name, stats = "batch_norm_gradient", ("save_mean", "save_invstd")
    else:
        name, stats = "batch_norm_fixed_gradient", ("running_mean", "running_var")
    given = [maybe(site, n) for n in ("weight", *stats)]
    operands = addresses(site, *dense_results(site), gradient, image, *given)
    return [*lines, f"poet_{name}({operands}, {norm_shape(site, image, gradient)});"]


def _group_shape(site: Site, image: Operand) -> str:
    fields: Fields = {
        "batch": site.arguments["N"], "channels": site.arguments["C"],
        "groups": site.arguments["group"], "area": site.arguments["HxW"],
        "epsilon": float(site.arguments.get("eps", 0.0)),
    }  # fmt: skip
    return site.constant("group_norm", fields)


def _group_norm(site: Site) -> list[str]:
    made = dense_results(site)
    lines, image = packed(site, "input", made[0])
    operands = addresses(site, *made, image, maybe(site, "weight"), maybe(site, "bias"))
    return [*lines, f"poet_group_norm({operands}, {_group_shape(site, image)});"]


def _group_norm_gradient(site: Site) -> list[str]:
    lines, gradient = packed(site, "grad_out", site.results[0])
    more, image = packed(site, "input", None if lines else site.results[0])
    known = (dense(site, "mean"), dense(site, "rstd"), maybe(site, "weight"))
    operands = addresses(site, *dense_results(site), gradient, image, *known)
    call = f"poet_group_norm_gradient({operands}, {_group_shape(site, image)});"
    return [*lines, *more, call]


_FIXED_NORM = "aten._native_batch_norm_legit_no_training"


KERNELS: Table = {
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._native_batch_norm_legit": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_gradient,
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm_gradient,
}
