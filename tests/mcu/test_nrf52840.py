"""examples/nrf52840: an emitted folder for the chip itself.

The emulator has no nRF52840, so its start-up and its SPI are compiled and linked, and do not run.
The driver of the card does: on a machine that the emulator has with an SD card on SPI.
"""

import re
from pathlib import Path

import pytest

from poet.firmware.boards import EMULATOR, find_board
from poet.firmware.emulate.emulation import emulate
from poet.firmware.write.folder import LINK, board_flags

from .conftest import ROOT, Emitter, Planner
from .test_packages import MLP, run

pytestmark = pytest.mark.usefixtures("board_tools")
EXAMPLE = ROOT / "examples/nrf52840"
STRICT = "-Wpedantic -Wconversion -Wshadow -Wsign-conversion"


@pytest.mark.parametrize("program", ["main.c of the folder", "examples/stream/main.c"])
def test_it_links_within_the_chip_and_without_semihosting(
    program: str, planned: Planner, emitted: Emitter, tmp_path: Path
) -> None:
    folder, out = emitted(planned(MLP, "13 KB"), "nrf52840"), tmp_path / "train.elf"
    main = folder / "main.c" if program.startswith("main") else ROOT / program
    words = (f"FIRMWARE={folder}", f"MAIN={main}", f"OUT={out}", f"EXTRA={STRICT}")
    run("make", "-C", EXAMPLE, *words, cwd=tmp_path)
    sections = run("arm-none-eabi-objdump", "-h", out, cwd=tmp_path)
    found = [
        (int(address, 16), int(size, 16))
        for size, address in re.findall(r"^ +\d+ \.\w+ +(\w+) +(\w+)", sections, re.MULTILINE)
    ]
    chip = find_board("nrf52840")
    assert chip is not None
    ram = [(at, size) for at, size in found if at >= chip.ram_origin and size]
    assert max(at + size for at, size in ram) <= chip.ram_origin + chip.ram_bytes
    flash = [at + size for at, size in found if 0 < at + size <= chip.flash_bytes]
    assert flash
    code = run("arm-none-eabi-objdump", "-d", out, cwd=tmp_path)
    assert "<sd_write>" in code
    assert "bkpt" not in code


@pytest.mark.parametrize("card_bytes", [2**20, 2**32])  # by bytes, and by sectors
def test_the_driver_trains_on_an_emulated_card(
    card_bytes: int, planned: Planner, emitted: Emitter, tmp_path: Path
) -> None:
    folder, board = emitted(planned(MLP, "13 KB"), "microbit", steps=2), find_board("microbit")
    assert board is not None
    flags = [*board_flags(board).split(), *STRICT.split(), "-I.", f"-I{EXAMPLE}"]
    gcc = "arm-none-eabi-gcc"
    board_c = ["-Dboard_read=file_read", "-Dboard_write=file_write", "-c", "board.c"]
    run(gcc, *flags, *board_c, "-o", "board.o", cwd=folder)
    own = [str(file) for file in sorted(folder.glob("*.c")) if file.name != "board.c"]
    drivers = [EXAMPLE / "sd.c", Path(__file__).with_name("pl022.c")]
    words = [*flags, *LINK.split(), "-o", "sd.elf", "board.o", *own, *drivers, "-lgcc"]
    run(gcc, *words, cwd=folder)
    card, image = tmp_path / "sd.img", (folder / "card.img").read_bytes()
    card.write_bytes(image)
    with card.open("r+b") as file:
        file.truncate(card_bytes)
    said = run(
        EMULATOR, "-M", "lm3s6965evb", "-nographic", "-monitor", "none", "-serial", "none",
        "-semihosting-config", "enable=on,target=native", "-kernel", "sd.elf",
        "-drive", f"if=sd,format=raw,file={card}", cwd=folder,
    )  # fmt: skip
    assert said.rstrip().endswith("done")
    emulate(folder)
    with card.open("rb") as trained:
        assert trained.read(len(image)) == (folder / "card.img").read_bytes()
