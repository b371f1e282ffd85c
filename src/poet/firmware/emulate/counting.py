"""Counting: instructions of calls, run one by one on an emulated board that has room for them.

The processor, the compiler and its flags are the board's; its RAM is more: an op's operands must
all be there at once, and what is counted does not depend on where they are.
"""

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from poet.errors import PoetError
from poet.firmware.boards import EMULATOR, Board, emulator_command
from poet.firmware.emulate.emulation import CROSS_COMPILER, _need, run_make
from poet.firmware.write.folder import write_program
from poet.firmware.write.probe import Probe, probe_source

_AT_ONCE = 48
"""Calls in one program."""
_MIB = 1 << 20
_ROOMS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "microbit": (0x20000000, 64 * _MIB, (f"nrf51-soc.sram-size={64 * _MIB}",)),
    "mps2-an386": (0x21000000, 16 * _MIB, ()),
    "mps2-an505": (0x80000000, 16 * _MIB, ()),
    "mps3-an547": (0x60000000, 256 * _MIB, ()),
}
"""Where an emulated machine has more memory: begin, bytes, and what it must be told."""
_BESIDE = 64 * 1024


def roomy(board: Board) -> Board:
    """The board with as much RAM as its emulator has to give."""
    if board.machine not in _ROOMS:
        return board
    begin, nbytes, settings = _ROOMS[board.machine]
    return msgspec.structs.replace(
        board, ram_origin=begin, ram_bytes=nbytes, settings=settings, reserved_bytes=_BESIDE
    )


def count_instructions(
    board: Board,
    probes: Sequence[Probe],
    seconds: float = 3600.0,
    progress: Callable[[int], None] | None = None,
) -> list[int]:
    """What each call takes. `progress` is told how many are done."""
    _need(CROSS_COMPILER, "gcc-arm-none-eabi")
    _need(EMULATOR, "qemu-system-arm")
    counts: list[int] = []
    for first in range(0, len(probes), _AT_ONCE):
        some = probes[first : first + _AT_ONCE]
        with tempfile.TemporaryDirectory(prefix="poet-count-") as name:
            found = _run(Path(name), board, some, seconds)
        counts += found
        if progress is not None:
            progress(len(counts))
    return counts


def compiler_version() -> str:
    _need(CROSS_COMPILER, "gcc-arm-none-eabi")
    said = subprocess.run(
        [CROSS_COMPILER, "--version"], capture_output=True, text=True, check=True
    ).stdout
    return said.splitlines()[0]


def _run(home: Path, board: Board, probes: Sequence[Probe], seconds: float) -> list[int]:
    write_program(home, board, probe_source(probes))
    run_make(home, on_board=True)
    try:
        done = subprocess.run(
            emulator_command(board, "train.elf"), cwd=home, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PoetError(f"the calls were not done after {seconds:g} s") from None
    *lines, last = (done.stdout + done.stderr).split("\n")[:-1] or [""]
    if done.returncode != 0 or last != "done" or len(lines) != len(probes) + 1:
        raise PoetError(f"the program of calls ended with {done.returncode}: {last[:200]}")
    *counts, nothing = map(int, lines)
    return [max(0, count - nothing) for count in counts]
