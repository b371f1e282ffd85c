"""Cache: layouts of captured steps on disk, so that the same step is traced once.

One file for each key, in `$POET_CACHE`, or `poet/steps` where the system keeps caches. A layout
decides what a training computes, so one is taken only where this user kept it, under this very key
(`private_folder`). Anything else is as good as none and said once in the log; so is a file that
cannot be read. A folder that cannot be written is left alone: the cache saves time and never stands
in the way.
"""

import logging
import os
from functools import cache
from pathlib import Path

import msgspec

from poet.tracer.layout import Layout
from poet.tracer.private_folder import NotOurs, private_folder

MOST_FILES = 200
SUFFIX = ".capture"

_log = logging.getLogger(__name__)


def folder() -> Path:
    """Where captures are kept."""
    chosen = os.environ.get("POET_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "poet" / "steps"


def find(key: str) -> Layout | None:
    """The layout kept under a key."""
    try:
        with private_folder(folder()) as kept:
            content = kept.read(key + SUFFIX)
    except NotOurs as error:
        _say(f"captured steps are traced anew: {error}")
        return None
    except (OSError, ValueError):
        return None
    try:
        return msgspec.json.decode(content, type=Layout)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _say(f"a captured step is traced anew: {key}: {str(error)[:200]}")
        return None


def keep(key: str, layout: Layout) -> None:
    """Keep a layout, and remove the oldest beyond the most that are kept."""
    try:
        with private_folder(folder(), make=True) as kept:
            kept.write(key + SUFFIX, msgspec.json.encode(layout))
            kept.remove_oldest(SUFFIX, MOST_FILES)
    except NotOurs as error:
        _say(f"captured steps are not kept: {error}")
    except (OSError, ValueError):
        return


@cache
def _say(text: str) -> None:
    """Once each."""
    _log.warning("%s", text)
