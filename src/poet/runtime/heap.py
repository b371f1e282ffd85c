"""The C library's heap, set the same way for every process that trains or measures.

Left to itself, glibc gives freed memory back to the system by rules that depend on all that was
allocated before, and memory given back is faulted in again at its next use: the same step took
0.23 s in one process and 0.40 s in another (docs/decisions/010). Tensors of a step come and go by
the hundred, so what is freed stays with the process, to be used again. Blocks of 32 MiB or more
still come and go on their own.
"""

import ctypes
import os
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
_OWN_MAPPING_FROM = 32 * 2**20
"""The most that glibc takes for this setting."""


@cache
def keep_freed_memory() -> bool:
    """Whether the heap is set so; not where the user has set it, or where there is no glibc."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _OWN_MAPPING_FROM) and mallopt(_TRIM_THRESHOLD, _NEVER))
