"""Norms."""

from poet.calls.operands import Operand
from poet.firmware.write.kernels.site import Fields, Site, Table, addresses, dense, maybe, result


def norm_shape(site: Site, image: Operand) -> str:
    area = image.count // (image.shape[0] * image.shape[1])
    fields: Fields = {
        "batch": image.shape[0], "channels": image.shape[1], "area": area,
        "momentum": float(site.arguments.get("momentum", 0.0)),
        "epsilon": float(site.arguments["eps"]),
    }  # fmt: skip
    return site.constant("norm", fields)


def _batch_norm(site: Site) -> list[str]:
    image = dense(site, "input")
    given = [maybe(site, n) for n in ("weight", "bias", "running_mean", "running_var")]
    if site.arguments.get("training", True) and site.kind != _FIXED_NORM:
        results = [*site.results, *[None] * (5 - len(site.results))]
        operands = addresses(site, *results, image, *given)
        return [f"batch_norm({operands}, {norm_shape(site, image)});"]
    lines = []
    operands = addresses(site, result(site), image, *given)
    lines.append(f"batch_norm_fixed({operands}, {norm_shape(site, image)});")
    for new, old in zip(site.results[3:], given[2:], strict=False):
        if new is not None and old is not None:  # statistics that stay as they are
            lines.append(f"copy_bytes({site.at(new)}, {site.at(old)}, {4 * new.count});")
    return lines


def _batch_norm_gradient(site: Site) -> list[str]:
    gradient, image = dense(site, "grad_out"), dense(site, "input")
    if site.arguments.get("train", True):
        name, stats = "batch_norm_gradient", ("save_mean", "save_invstd")
    else:
        name, stats = "batch_norm_fixed_gradient", ("running_mean", "running_var")
    given = [maybe(site, n) for n in ("weight", *stats)]
    operands = addresses(site, *site.results, gradient, image, *given)
    return [f"{name}({operands}, {norm_shape(site, image)});"]


_FIXED_NORM = "aten._native_batch_norm_legit_no_training"


KERNELS: Table = {
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._native_batch_norm_legit": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.native_batch_norm_backward": _batch_norm_gradient,
}
