"""C libraries of POET's own, built on first use.

A library lies in the user's cache folder under a name made from its source, the compiler's version
and the flags, so that a new source or compiler never meets an old library. It is written under a
temporary name and renamed, since two processes may build at once. Without a compiler there is no
library, and `built` says so by None; whoever wants one can do without.

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

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O3", "-ffp-contract=off", "-fPIC", "-shared")
_BUILD_SECONDS = 120


@cache
def built(source: Path) -> ctypes.CDLL | None:
    """The library of a C file and the headers beside it; None where no compiler can build it."""
    for name in COMPILERS:
        compiler = shutil.which(name)
        library = compiler and _build(compiler, source)
        if library:
            return library
    return None


def _build(compiler: str, source: Path) -> ctypes.CDLL | None:
    try:
        asked = subprocess.run(
            [compiler, "--version"], capture_output=True, timeout=_BUILD_SECONDS, check=True
        )
        text = b"".join(path.read_bytes() for path in sorted(source.parent.glob("*.[ch]")))
        mark = hashlib.sha256(b"\0".join((text, asked.stdout, " ".join(FLAGS).encode())))
        path = _cache_folder() / f"{source.stem}-{mark.hexdigest()[:32]}.so"
        if not path.exists():
            _compile(compiler, source, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(compiler: str, source: Path, path: Path) -> None:
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix="poet-", suffix=".part")
    os.close(handle)
    try:
        command = [compiler, *FLAGS, "-o", unfinished, str(source), "-lm"]
        subprocess.run(command, capture_output=True, timeout=_BUILD_SECONDS, check=True)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


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
