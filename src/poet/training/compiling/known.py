"""Known: what was measured of compiled steps, on disk beside captured ones.

A file for each question: both passes, the budget, what they were compiled and measured with. The
folder is this user's alone, and a split that is found is measured again before it is used.
"""

import contextlib
import hashlib

import msgspec

from poet.tracer.cache import folder
from poet.tracer.private_folder import NotOurs, private_folder
from poet.training.compiling.joint import Joint
from poet.training.compiling.splitting import Split

SUFFIX = ".split"
MOST_FILES = 200


class Known(msgspec.Struct, frozen=True):
    """A split, None for torch's own choice, and what its step was measured to take."""

    step_bytes: int
    split: Split | None = None


def name_of(joint: Joint, *settings: object) -> str:
    """The name of a question's file."""
    return hashlib.sha256(msgspec.json.encode([joint, *map(str, settings)])).hexdigest()[:32]


def find(name: str) -> Known | None:
    """What was kept under a name; nothing where it cannot be trusted or read."""
    try:
        with private_folder(folder()) as kept:
            return msgspec.json.decode(kept.read(name + SUFFIX), type=Known)
    except (NotOurs, OSError, ValueError, msgspec.MsgspecError):
        return None


def keep(name: str, known: Known) -> None:
    """Keep what is known, and remove the oldest beyond the most that are kept."""
    with (
        contextlib.suppress(NotOurs, OSError, ValueError),
        private_folder(folder(), make=True) as kept,
    ):
        kept.write(name + SUFFIX, msgspec.json.encode(known))
        kept.remove_oldest(SUFFIX, MOST_FILES)
