"""Cache: layouts of captured steps on disk, so that the same step is traced once.

One file for each key, in `$POET_CACHE`, or `poet/captures` where the system keeps caches. A file
that cannot be read is as good as none, and a folder that cannot be written is left alone: the cache
saves time and never stands in the way.
"""

import os
import tempfile
from pathlib import Path

import msgspec

from poet.tracer.layout import Layout

MOST_FILES = 200


def folder() -> Path:
    """Where captures are kept."""
    chosen = os.environ.get("POET_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "poet" / "captures"


def find(key: str) -> Layout | None:
    """The layout kept under a key."""
    path = _path(key)
    try:
        layout = msgspec.json.decode(path.read_bytes(), type=Layout)
        os.utime(path)  # the oldest are removed first
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return layout


def keep(key: str, layout: Layout) -> None:
    """Keep a layout, and remove the oldest beyond the most that are kept."""
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            file.write(msgspec.json.encode(layout))
        os.replace(file.name, path)
        kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-MOST_FILES]:
            old.unlink(missing_ok=True)
    except OSError:
        return


def _path(key: str) -> Path:
    return folder() / f"{key}.json"
