"""The boards that C can be written for: one folder each, with its figures and its start-up code."""

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from poet.errors import PoetError

FOLDER = Path(__file__).parent
CORTEX_M = (FOLDER / "cortex_m/start.c", FOLDER / "cortex_m/board.c")
"""The start-up, and the functions of `board.h` under the emulator."""
HOST = "host"
EMULATOR = "qemu-system-arm"


class Board(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A microcontroller board as the emulator has it.

    `reserved_bytes` of its RAM are for the stack (`stack_bytes`) and variables; the rest is the
    arena's. `machine` is the emulator's name for it, `cpu` what the compiler must know.
    """

    name: str
    title: str
    machine: str
    cpu: tuple[str, ...]
    clock_mhz: int
    flash_origin: int
    flash_bytes: int
    ram_origin: int
    ram_bytes: int
    reserved_bytes: int
    stack_bytes: int
    settings: tuple[str, ...] = ()
    """What the emulator is told of the machine: `device.property=value`."""

    @property
    def free_bytes(self) -> int:
        """What an arena may have."""
        return self.ram_bytes - self.reserved_bytes

    def refusal(self, ram_bytes: int) -> str:
        """What to say to a plan for more than that."""
        return (
            f"the plan is for {ram_bytes:,} bytes of RAM; {self.name} has {self.free_bytes:,} "
            f"beside {self.reserved_bytes:,} for stack and variables. Plan with "
            f'ram="{self.free_bytes}"'
        )


def targets() -> list[str]:
    """What `--target` takes."""
    return [HOST, *sorted(file.parent.name for file in FOLDER.glob("*/board.toml"))]


@cache
def find_board(name: str) -> Board | None:
    """The board with this name; None for the computer itself."""
    if name == HOST:
        return None
    file = FOLDER / name / "board.toml"
    if name not in targets():
        raise PoetError(f"there is no target {name!r}; the targets are {', '.join(targets())}")
    return msgspec.convert({"name": name, **tomllib.loads(file.read_text())}, Board)


def emulator_command(board: Board, image: str) -> list[str]:
    """What runs an image on the emulated board, an instruction a nanosecond."""
    settings = (word for setting in board.settings for word in ("-global", setting))
    return [
        EMULATOR, "-M", board.machine, *settings, "-nographic", "-monitor", "none", "-serial",
        "none", "-semihosting-config", "enable=on,target=native", "-icount", "shift=0", "-kernel",
        image,
    ]  # fmt: skip
