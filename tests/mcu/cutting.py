"""Power cuts at every write of a step, in one process of C (`cuts.c`)."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from poet.firmware.write.folder import FLAGS

from .conftest import SANITIZED

_HERE = Path(__file__).parent
_STORE = "dying_store.h"
_NOT = ("main.c", "board.c", "cuts.c", "formats.c")


class Cuts(NamedTuple):
    writes: int
    cuts: int
    while_taken_up: int


class Formats(NamedTuple):
    writes: int
    old: int
    none: int
    new: int


def cut_everywhere(
    folder: Path, samples: int = 2, words: str = SANITIZED, card: str = "card.img"
) -> Cuts:
    """Three steps, cut at each of their writes in four ways. What is not as it should be fails."""
    said = _said(folder, "cuts.c", words, card, str(samples))
    return Cuts(int(said[1]), int(said[3]), int(said[-1]))


def cut_formats(folder: Path, new: str, is_from_flash: bool, words: str = SANITIZED) -> Formats:
    """New cards out of six kinds of stores, cut at each write in four ways; what was left, how
    often. `new` becomes one that was made where another network had trained."""
    said = _said(folder, "formats.c", words, "card.img", new, str(int(is_from_flash)))
    return Formats(*(int(word) for word in said[1::2]))


def _said(folder: Path, source: str, words: str, *arguments: str) -> list[str]:
    """What a program over the folder's library says."""
    for name in (source, _STORE):
        (folder / name).write_bytes((_HERE / name).read_bytes())
    program = folder / Path(source).stem
    files = [str(file) for file in sorted(folder.glob("*.c")) if file.name not in _NOT]
    command = ["cc", *FLAGS.split(), *words.split(), "-o", str(program), *files]
    subprocess.run([*command, str(folder / source)], check=True)
    done = subprocess.run(
        [str(program), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()
