"""Collector: Python's collector of cyclic garbage, at rest while very many objects come and stay.

It looks through all that lives each time their number has grown by a quarter; imports, traces and
plans make hundreds of thousands of objects and hardly any garbage in cycles.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Collect nothing meanwhile, unless nothing is collected anyway."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
