"""The table from the kinds of calls to the C that does them, one file a family.

Each entry takes a `Site`, one call in one place, and gives C statements. A kind without an entry,
or with arguments that its kernel does not cover, is an error that names it and where it comes from.
"""

from poet.firmware.write.kernels import (
    checks,
    convolutions,
    elements,
    functions,
    masks,
    norms,
    places,
    products,
    rearranged,
    recurrent,
    reductions,
    resizes,
    transformers,
    updates,
)
from poet.firmware.write.kernels.site import Site, Table

TABLE: Table = {
    **products.KERNELS,
    **convolutions.KERNELS,
    **norms.KERNELS,
    **elements.KERNELS,
    **functions.KERNELS,
    **reductions.KERNELS,
    **masks.KERNELS,
    **checks.KERNELS,
    **rearranged.KERNELS,
    **places.KERNELS,
    **resizes.KERNELS,
    **recurrent.KERNELS,
    **transformers.KERNELS,
    **updates.KERNELS,
}


def statements(site: Site) -> list[str]:
    """The C statements of one call."""
    make = TABLE.get(site.kind) or TABLE.get(site.family)
    if make is None:
        raise site.refuse("there is no kernel for it")
    return make(site)
