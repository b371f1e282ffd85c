"""The compiled half of the planner's local search: builds csrc/anneal.c on first use and loads it.

The shared library lies in the user's cache folder under a name made from the source, the compiler's
version and the flags, so that a new source or compiler never meets an old library. It is written
under a temporary name and renamed, since two processes may build at once. Without a compiler there
is no library, and `load` says so by None; whoever wants one can do without.

The flags keep arithmetic the same on every machine: no fast-math, no fused multiply-add, no
instructions of one processor only (a cache folder may be shared between machines).
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).with_name("csrc")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O3", "-ffp-contract=off", "-fPIC", "-shared")
_BUILD_SECONDS = 120


@cache
def load() -> ctypes.CDLL | None:
    """The library, built if need be; None where there is no compiler that can."""
    for name in COMPILERS:
        compiler = shutil.which(name)
        library = compiler and _build(compiler)
        if library:
            return library
    return None


def _build(compiler: str) -> ctypes.CDLL | None:
    try:
        asked = subprocess.run(
            [compiler, "--version"], capture_output=True, timeout=_BUILD_SECONDS, check=True
        )
        source = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.[ch]")))
        mark = hashlib.sha256(b"\0".join((source, asked.stdout, " ".join(FLAGS).encode())))
        path = _cache_folder() / f"anneal-{mark.hexdigest()[:32]}.so"
        if not path.exists():
            _compile(compiler, path)
        return _declared(ctypes.CDLL(str(path)))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(compiler: str, path: Path) -> None:
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix="anneal-", suffix=".part")
    os.close(handle)
    try:
        command = [compiler, *FLAGS, "-o", unfinished, str(SOURCES / "anneal.c"), "-lm"]
        subprocess.run(command, capture_output=True, timeout=_BUILD_SECONDS, check=True)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes the signatures of anneal.c's functions."""
    pointer, real, whole, number = ctypes.c_void_p, ctypes.c_double, ctypes.c_int64, ctypes.c_int
    for name, result, arguments in (
        ("new", pointer, (pointer,)),
        ("free", None, (pointer,)),
        ("greedy", number, (pointer, real)),
        ("run", number, (pointer, real, whole, ctypes.c_uint64, pointer)),
        ("emit", whole, (pointer, pointer, whole)),
        ("set", None, (pointer, pointer, pointer, pointer, pointer)),
        ("restore", None, (pointer,)),
        ("stop", None, (pointer, number)),
    ):
        function = getattr(library, f"poet_anneal_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _cache_folder() -> Path:
    """The user's cache; a folder of this process alone where that cannot be written."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home) / "poet"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="poet-"))
