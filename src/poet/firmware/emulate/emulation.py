"""Emulation: builds a firmware folder, runs it, and reads what it says."""

import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import msgspec

from poet.errors import PoetError
from poet.firmware.boards import EMULATOR, emulator_command, find_board
from poet.firmware.card.commits import Order, commit_of, order_of, write_order
from poet.firmware.write.folder import Firmware, read_firmware, write_again
from poet.values.graph import printable

_MOST = 2**32 - 1
"""The most steps that a card counts."""
CROSS_COMPILER = "arm-none-eabi-gcc"


class StepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """One training step as the firmware counted it."""

    number: int
    loss: float
    instructions: int
    page_ins: int
    page_in_bytes: int
    page_outs: int
    page_out_bytes: int
    streamed_in_bytes: int
    streamed_out_bytes: int
    peak_bytes: int
    stack_bytes: int
    sectors_read: int
    sectors_written: int

    @property
    def streamed_bytes(self) -> int:
        return self.streamed_in_bytes + self.streamed_out_bytes


class ImageRam(msgspec.Struct, frozen=True, kw_only=True):
    """The image's RAM, from the linker: the stack's room, the arena, variables beside them."""

    used_bytes: int
    stack_bytes: int
    arena_bytes: int
    limit_bytes: int


class Emulation(msgspec.Struct, frozen=True, kw_only=True):
    """What a firmware did on its board. `differences` says where it was not what was planned."""

    steps: tuple[StepCounts, ...]
    ram: ImageRam | None
    differences: tuple[str, ...]


def emulate(
    folder: Path,
    steps: int | None = None,
    seconds: float = 600.0,
    progress: Callable[[StepCounts, int, int], None] | None = None,
    edited: bool = False,
) -> Emulation:
    """Build the folder, and take `steps` steps on its card from where it stands.

    What is built and run is what POET writes for the folder's plan, in a folder of its own that is
    gone afterwards; `edited` runs the folder's own C and Makefile, whatever they do. `progress` is
    told each step, how many are done, and of how many.
    """
    with tempfile.TemporaryDirectory(prefix="poet-emulate-") as name:
        home = Path(name)
        made = _copied(folder, home) if edited else write_again(folder, home)
        build(home, made)
        count = made.steps if steps is None else steps
        _ask_for(folder / "card.img", count)
        found: list[StepCounts] = []
        line = "it said nothing"
        with closing(_output(folder, home, made, seconds)) as lines:
            for line in lines:
                if line.startswith("step "):
                    found.append(_counts(line))
                    if progress is not None:
                        progress(found[-1], len(found), count)
        if line != "done" or len(found) != count:
            raise PoetError(f"the firmware did not end well after {len(found)} steps: {line}")
        return Emulation(
            steps=tuple(found),
            ram=None if made.target == "host" else image_ram(home, made),
            differences=tuple(_differences(made, found)),
        )


def _copied(folder: Path, home: Path) -> Firmware:
    """The files that a Makefile may need, as they are."""
    made = read_firmware(folder)
    if made.package is not None:
        raise PoetError(
            f"{folder} is a package for {made.package}, which builds it in its own way: edited "
            "C runs there. Without edited=True its library runs under POET's own program"
        )
    for file in folder.iterdir():
        if file.is_file() and (file.suffix in (".c", ".h", ".ld") or file.name == "Makefile"):
            shutil.copyfile(file, home / file.name)
    return made


def build(folder: Path, made: Firmware, *extra: str) -> None:
    """Run the folder's Makefile."""
    run_make(folder, made.target != "host", *extra)


def run_make(folder: Path, on_board: bool, *extra: str) -> None:
    """The same for any Makefile. Compilers leave no files elsewhere, nor processes behind."""
    if on_board:
        _need(CROSS_COMPILER, "gcc-arm-none-eabi")
    _need("make", "make")
    with (
        tempfile.TemporaryDirectory(prefix="poet-build-") as beside,
        subprocess.Popen(
            ["make", "-f", "Makefile", "-C", str(folder), "MAIN=main.c", *extra],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True, env=os.environ | {"TMPDIR": beside},
        ) as running,
    ):  # fmt: skip
        try:
            _, said = running.communicate()
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    if running.returncode != 0:
        text = said.decode(errors="replace").strip()[-2000:]
        raise PoetError(f"the firmware does not build:\n{text}")


def _need(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        raise PoetError(f"{tool} is not installed (Debian: apt-get install {package})")


def _ask_for(card: Path, steps: int) -> None:
    """So many steps more from where the card stands."""
    done, samples = commit_of(card).steps_done, order_of(card).samples
    if samples == 0:
        raise PoetError(f"{card} has no samples; poet emit writes some")
    if done + steps > _MOST:
        raise PoetError(f"{card} has {done:,} steps done; with {steps:,} more it is past {_MOST:,}")
    with card.open("r+b") as file:
        write_order(file, Order(stop_at=done + steps, samples=samples))


def _output(folder: Path, home: Path, made: Firmware, seconds: float) -> Generator[str, None, None]:
    """The lines that the firmware built in `home` logs, as they come, over the folder's card."""
    if made.target == "host":
        command = [str(home / "train")]
    else:
        board = find_board(made.target)
        assert board is not None
        _need(EMULATOR, "qemu-system-arm")
        command = emulator_command(board, str(home / "train.elf"))
    last: deque[str] = deque(maxlen=5)
    late = threading.Event()
    env = {name: x for name, x in os.environ.items() if name != "POET_CARD"}
    running, clock = None, None
    try:
        running = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", env=env,
        )  # fmt: skip
        assert running.stdout is not None
        clock = threading.Timer(seconds, _stop, (running, late))
        clock.daemon = True
        clock.start()
        for line in running.stdout:
            last.append(line.rstrip("\n"))
            yield last[-1]
        running.wait()
    finally:
        if clock is not None:
            clock.cancel()
        if running is not None:
            with running:  # closes its pipe
                running.kill()
    if late.is_set():
        raise PoetError(f"the firmware was not done after {seconds:g} s")
    if running.returncode != 0:
        text = "\n".join(last) or "it said nothing"
        raise PoetError(f"the firmware stopped with exit code {running.returncode}: {text}")


def _stop(running: "subprocess.Popen[str]", late: threading.Event) -> None:
    late.set()
    running.kill()


def _counts(line: str) -> StepCounts:
    try:
        return _parsed(line.split())
    except (IndexError, ValueError, struct.error):
        raise PoetError(f"the firmware says what cannot be read: {printable(line[:80])}") from None


def _parsed(words: list[str]) -> StepCounts:
    (loss,) = struct.unpack("<f", struct.pack("<I", int(words[3], 16)))
    return StepCounts(
        number=int(words[1]), loss=loss, instructions=int(words[5]), page_ins=int(words[7]),
        page_in_bytes=int(words[8]), page_outs=int(words[10]), page_out_bytes=int(words[11]),
        streamed_in_bytes=int(words[13]), streamed_out_bytes=int(words[15]),
        peak_bytes=int(words[17]), stack_bytes=int(words[19]),
        sectors_read=int(words[21]), sectors_written=int(words[23]),
    )  # fmt: skip


def _differences(made: Firmware, steps: list[StepCounts]) -> list[str]:
    texts = []
    for step in steps:
        for what, counted, planned in (
            ("page-ins", step.page_ins, made.page_ins),
            ("bytes paged in", step.page_in_bytes, made.page_in_bytes),
            ("page-outs", step.page_outs, made.page_outs),
            ("bytes paged out", step.page_out_bytes, made.page_out_bytes),
            ("bytes at the peak", step.peak_bytes, made.planned_bytes),
            ("bytes read in tiles", step.streamed_in_bytes, made.streamed_in_bytes),
            ("bytes written in tiles", step.streamed_out_bytes, made.streamed_out_bytes),
        ):
            # Of rows that are named twice, the second is not moved again.
            is_less = what.endswith("tiles") and counted < planned and made.names_rows
            if counted != planned and not is_less:
                texts.append(f"step {step.number}: {counted:,} {what}; {planned:,} were planned")
    return texts


def image_ram(folder: Path, made: Firmware) -> ImageRam:
    """Sizes in RAM, from the linker's map."""
    board = find_board(made.target)
    assert board is not None
    assert made.ram_bytes is not None
    sizes, end = {}, 0
    for line in (folder / "train.map").read_text().splitlines():
        words = line.split()  # sections of the image begin a line; parts of them are indented
        if len(words) >= 3 and line[:1] == "." and words[0] in (".stack", ".arena"):
            sizes[words[0]] = int(words[2], 16)
        elif words[1:2] == ["ram_end"]:
            end = int(words[0], 16)
    if not end or len(sizes) != 2:
        raise PoetError("the linker's map has no stack, no arena, or no end of RAM")
    return ImageRam(
        used_bytes=end - board.ram_origin,
        stack_bytes=sizes[".stack"],
        arena_bytes=sizes[".arena"],
        limit_bytes=made.ram_bytes,
    )
