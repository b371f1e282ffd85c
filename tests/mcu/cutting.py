"""Power cuts at every write of a step, in one process of C (`cuts.c`)."""

import subprocess
from pathlib import Path
from typing import NamedTuple

from poet.firmware.write.folder import FLAGS

from .conftest import SANITIZED

_SOURCE = Path(__file__).with_name("cuts.c")
_EXAMPLES = ("main.c", "board.c")


class Cuts(NamedTuple):
    writes: int
    cuts: int
    while_taken_up: int


def cut_everywhere(folder: Path, samples: int = 2, words: str = SANITIZED) -> Cuts:
    """Three steps, cut at each of their writes in four ways. What is not as it should be fails."""
    (folder / "cuts.c").write_bytes(_SOURCE.read_bytes())
    files = [str(file) for file in sorted(folder.glob("*.c")) if file.name not in _EXAMPLES]
    command = ["cc", *FLAGS.split(), *words.split(), "-o", str(folder / "cuts"), *files]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [str(folder / "cuts"), str(folder / "card.img"), str(samples)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.split()
    return Cuts(int(said[1]), int(said[3]), int(said[-1]))
