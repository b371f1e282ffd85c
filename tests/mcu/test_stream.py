"""What a reader of docs/firmware.md writes: a stream of samples, with inference between steps."""

from pathlib import Path

import pytest

from poet.firmware.card.commits import commit_of

from .conftest import ROOT, Emitter, Planner, run_make

MAIN = ROOT / "examples/stream/main.c"
STRICT = "-Wpedantic -Wconversion -Wshadow -Wsign-conversion"


@pytest.mark.usefixtures("board_tools")
def test_a_board_learns_from_a_stream(planned: Planner, emitted: Emitter) -> None:
    plan = planned("mlp?size=8&hidden=16&layers=1", "13 KB")
    folder: Path = emitted(plan, "nrf52840", steps=1)
    done = run_make(folder, f"MAIN={MAIN}", f"EXTRA={STRICT}", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("right")]
    early, late = (int(line.rpartition(" ")[2]) for line in said)
    assert early < 40
    assert late > 54
    assert commit_of(folder / "card.img").steps_done == 240
