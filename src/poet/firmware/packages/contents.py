"""What a package is made of: the firmware as the plain folder has it, and a name that is safe.

Names of networks come from plan files. What a package is called, and all that its manifests say of
the network, is made of letters, digits and underscores here, and of numbers; nothing else of a
plan reaches C, JSON, XML, CMake or YAML.
"""

import re
from pathlib import Path

import msgspec

from poet.firmware.boards import Board
from poet.version import __version__

VERSION = __version__
HOME = "src/poet"
"""The library's place in a package: apart, for `memory.h` is a name of C libraries', too."""
FLAGS = ("-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-tree-vectorize")
"""What keeps the bits those of the host: no product is fused with a sum, sums keep their order."""
_MOST_LETTERS = 40


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The firmware that is packed. `plain` is the folder that `poet emit` writes by itself."""

    name: str
    plain: Path
    sources: tuple[str, ...]
    samples: int
    """On the card."""
    steps: int
    board: Board | None
    board_flags: str

    @property
    def paths(self) -> list[str]:
        """The sources by their places in the package."""
        return [f"{HOME}/{name}" for name in self.sources]

    @property
    def sentence(self) -> str:
        return f"Training and inference of the network {self.name}, in memory that was planned"


def package_name(network: str) -> str:
    """`poet_` and the letters and digits of a network's name, of a file's without its folders."""
    words = re.findall(r"[a-z0-9]+", network.rpartition("/")[2].lower(), re.ASCII)
    return f"poet_{'_'.join(words)[:_MOST_LETTERS].strip('_') or 'network'}"


def filled(text: str, **values: str | int) -> str:
    """A template with each @word@ replaced."""
    return re.sub(r"@(\w+)@", lambda found: str(values[found[1]]), text)
