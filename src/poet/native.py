"""C libraries of POET's own: the one that came with the package, else one built on first use.

A wheel carries its libraries beside their sources (hatch_build.py puts them there), named by source
and flags. A checkout has none, and an edited source asks for another name: what is loaded is never
older than what is read.

A library that is built here lies in the user's cache folder under a name made from its source, the
compiler's version and the flags, so that a new source or compiler never meets an old library. It is
written under a temporary name and renamed, since two processes may build at once. What others may
have written is not loaded: neither the folder nor the library may be anybody else's to write.
Without a compiler there is no library, and `built` says so by None; whoever wants one can do
without.

The flags keep arithmetic the same on every machine: no fast-math, no fused multiply-add, no
instructions of one processor only (a cache folder may be shared between machines).

This module imports the standard library alone, since wheels are built where nothing else is.
"""

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O3", "-ffp-contract=off", "-fPIC", "-shared")
_BUILD_SECONDS = 120


@cache
def built(source: Path) -> ctypes.CDLL | None:
    """The library of a C file and the headers beside it; None where there is no way to one."""
    came = carried(source)
    library = _loaded(came) if came.exists() else None
    return library or next(filter(None, (_built_here(by, source) for by in _compilers())), None)


def carried(source: Path) -> Path:
    """Where the library of this very source lies, if one came with the package."""
    return source.with_name(f"{source.stem}-{_mark(source)}.so")


def compile_for_wheel(source: Path, path: Path) -> bool:
    """Compile a library with the first compiler that can; false where none can."""
    return any(_compile(by, source, path) for by in _compilers())


def _compilers() -> list[str]:
    return [path for path in map(shutil.which, COMPILERS) if path]


def _mark(source: Path, *more: bytes) -> str:
    text = b"".join(path.read_bytes() for path in sorted(source.parent.glob("*.[ch]")))
    return hashlib.sha256(b"\0".join((text, *more, " ".join(FLAGS).encode()))).hexdigest()[:32]


def _loaded(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # made for another machine
        return None


def _built_here(compiler: str, source: Path) -> ctypes.CDLL | None:
    try:
        asked = subprocess.run(
            [compiler, "--version"], capture_output=True, timeout=_BUILD_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    path = _cache_folder() / f"{source.stem}-{_mark(source, asked.stdout)}.so"
    return _loaded(path) if _is_ours(path) or _compile(compiler, source, path) else None


def _compile(compiler: str, source: Path, path: Path) -> bool:
    try:
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix="poet-", suffix=".part")
        os.close(handle)
    except OSError:
        return False
    try:
        command = [compiler, *FLAGS, "-o", unfinished, str(source), "-lm"]
        subprocess.run(command, capture_output=True, timeout=_BUILD_SECONDS, check=True)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, path)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return True


def _is_ours(path: Path) -> bool:
    """Whether it is there, and only this user can have written it."""
    try:
        about = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)
    return is_plain and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _cache_folder() -> Path:
    """The user's cache; a folder of this process alone where that is not theirs alone to write."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home) / "poet"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK) and _is_ours(folder):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="poet-"))
