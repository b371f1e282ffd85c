"""Checks in the model's own Python or its loss, such as that no variance is negative."""

from poet.firmware.write.kernels.masks import filled
from poet.firmware.write.kernels.site import Site, Table, operand
from poet.firmware.write.text import c_int


def _required(site: Site) -> list[str]:
    asked, (out,) = operand(site, "asked"), site.results
    if asked.count != 1:
        raise site.refuse(f"it asks for {asked.count} numbers, not one")
    found, wanted = site.scalar(asked), int(site.arguments["wanted"])
    lines = [f"poet_required({found} != 0, {wanted}, {c_int(site.op_number)}u);"]
    return lines if out is None else [*lines, filled(site, out, 1)]


KERNELS: Table = {"poet.required": _required}
