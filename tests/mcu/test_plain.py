"""Convolutions and products give the bits of plain loops in the order that is specified."""

import subprocess
from pathlib import Path

import pytest
from benchmarks.instructions import kernel_files, run_on

from poet.firmware.write.folder import FLAGS
from poet.firmware.write.text import SOURCES

PLAIN = Path(__file__).with_name("plain.c")


def test_on_this_computer_without_complaints_from_sanitizers(tmp_path: Path) -> None:
    files = [str(file) for file in (PLAIN, *kernel_files()) if file.name != "bytes.c"]
    words = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover", "-DCASES=800"]
    program = str(tmp_path / "plain")
    command = ["cc", *FLAGS.split(), *words, f"-I{SOURCES}", *files, "-o", program]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("board_tools")
@pytest.mark.parametrize("target", ["nrf52840", "mps3-an547"])
def test_on_processors_with_instructions_of_their_own(target: str) -> None:
    done = run_on(target, PLAIN.read_text(), ["-DCASES=200"])
    assert done.returncode == 0, done.stderr
