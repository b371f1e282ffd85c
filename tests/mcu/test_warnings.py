"""C without a word from compilers that look hard, and from cppcheck: kernels and a step."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from poet.firmware.write.text import SOURCES

from .calls import STRICT
from .conftest import NETS, Emitter, Planner

WARNINGS = f"-std=c11 -Wall -Wextra {STRICT} -Werror"
CHECKS = (
    "--std=c11 --quiet --error-exitcode=1 --enable=warning,portability,performance "
    "--inline-suppr --suppress=missingIncludeSystem --suppress=invalidPointerCast"
)
"""Tensors of all types lie in an arena of bytes, which is aligned for them."""


def tool(name: str) -> str:
    """Skipped without on a laptop, demanded in CI."""
    if shutil.which(name) is None:
        assert not os.environ.get("CI"), f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture
def step(planned: Planner, emitted: Emitter) -> Path:
    """A folder with kernels of every family, a few of which stand in its step."""
    return emitted(planned(f"{NETS}:mixed", "10 KB"))


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_have_nothing_to_say(compiler: str, step: Path) -> None:
    files = [*SOURCES.glob("*.c"), *step.glob("*.c")]
    assert len(files) > 30
    command = [tool(compiler), *WARNINGS.split(), "-O1", "-fsyntax-only", f"-I{SOURCES}"]
    done = subprocess.run(
        [*command, f"-I{step}", *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_cppcheck_has_nothing_to_say(step: Path) -> None:
    done = subprocess.run(
        [tool("cppcheck"), *CHECKS.split(), f"-I{SOURCES}", str(SOURCES), str(step / "step.c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
