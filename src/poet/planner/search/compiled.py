"""The compiled half of the planner's local search: csrc/anneal.c as a library."""

import ctypes
from functools import cache
from pathlib import Path

from poet.native import COMPILERS, built

__all__ = ["COMPILERS", "load"]

SOURCE = Path(__file__).with_name("csrc") / "anneal.c"


@cache
def load() -> ctypes.CDLL | None:
    """The library that came with the package, or one built here; None where neither can be."""
    library = built(SOURCE)
    return library and _declared(library)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes the signatures of anneal.c's functions."""
    pointer, real, whole, number = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64, ctypes.c_int
    for name, result, arguments in (
        ("new", pointer, (pointer,)),
        ("free", None, (pointer,)),
        ("greedy", number, (pointer, real)),
        ("run", number, (pointer, real, whole, ctypes.c_uint64, pointer)),
        ("lean", number, (pointer, real, whole, ctypes.c_uint64, pointer)),
        ("emit", whole, (pointer, pointer, whole)),
        ("counted", real, (pointer, pointer)),
        ("set", None, (pointer, pointer, pointer, pointer, pointer, pointer)),
        ("restore", None, (pointer,)),
        ("stop", None, (pointer, number)),
    ):
        function = getattr(library, f"poet_anneal_{name}")
        function.restype, function.argtypes = result, arguments
    return library
