"""Ctrl-C at the command line, sent to real commands while they capture, plan, import or train."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.conftest import INSTANCES, PROGRESS

WAITS_SECONDS = 120
SAYING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs have it ignored
from importlib import import_module

def saying(where, what):
    module, name = where.split(":")
    home = import_module(module)
    *outer, name = name.split(".")
    for each in outer:
        home = getattr(home, each)
    usual = getattr(home, name)
    def said(*args, **kwargs):
        os.write(2, what)  # in one piece: workers say it side by side
        return usual(*args, **kwargs)
    setattr(home, name, said)

where = sys.argv.pop(1)
if where == "import":
    class Slow:
        def find_spec(self, name, path, target=None):
            if name == "scipy":
                os.write(2, b"now\\n")
                try:
                    while True: sum(range(1000))
                except BaseException as error:
                    raise ImportError("a library that is broken off says what it likes") from error
    sys.meta_path.insert(0, Slow())
else:
    saying(where, b"now\\n")
from poet.cli.main import main
main()
"""
"""A `poet` command that says `now` when it comes to a place."""
PLANNING = "poet.planner.search.portfolio:_work"
ASKED = "poet.planning.executor:_Worker.ask"
"""Comparisons and frontiers are planned by worker processes, one question after the other."""


def interrupted(
    where: str, *command: str | Path, times: int = 1, visit: int = 1
) -> tuple[int, str, str]:
    """Exit code and output of a command that gets SIGINT when it is there, for the nth time."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAYING, where, *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        for line in iter(process.stderr.readline, ""):
            visit -= line == "now\n"
            if visit == 0:
                break
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAITS_SECONDS)
    finally:
        process.kill()
    return process.returncode, out, re.sub(r"^now\n", "", PROGRESS.sub("", err), flags=re.MULTILINE)


NOTHING = (130, "", "error: interrupted\n")
LARGE = INSTANCES / "bert-m4.json"


@pytest.mark.parametrize(
    "command",
    [("compare", LARGE, "--ram=60MB"), ("frontier", LARGE)],
    ids=lambda command: command[0],
)
def test_while_a_comparison_plans(command: tuple[str, ...]) -> None:
    assert interrupted(ASKED, *command, "--time-limit=600") == NOTHING


def test_the_methods_that_were_done_before_it_are_printed() -> None:
    asked = ("--ram=60MB", "--method=paging", "--method=checkmate", "--time-limit=3", "--json")
    code, out, err = interrupted(ASKED, "compare", LARGE, *asked, visit=2)
    assert (code, err) == (0, "poet: interrupted: 1 of 2 methods were done\n")
    assert [row["method"] for row in msgspec.json.decode(out)["rows"]] == ["paging"]


def test_the_budgets_that_were_done_before_it_are_printed() -> None:
    asked = ("--method=poet", "--time-limit=3", "--json")
    code, out, err = interrupted(ASKED, "frontier", LARGE, *asked, visit=7)
    points = msgspec.json.decode(out)["points"]
    assert 1 <= len(points) < 12
    assert (code, err) == (0, f"poet: interrupted: {len(points)} of 12 budgets were done\n")


def test_no_training_starts_after_it(tmp_path: Path) -> None:
    model = ("train", "lenet?batch=4", "--ram=600KB", f"--store={tmp_path / 'pages'}")
    weights = tmp_path / "weights.safetensors"
    command = (*model, "--time-limit=600", "--steps=1", f"--save={weights}")
    assert interrupted(PLANNING, *command) == NOTHING
    assert not weights.exists()
    assert not any((tmp_path / "pages").iterdir())  # the page file is removed


def test_while_it_captures() -> None:
    command = ("plan", "lenet?batch=4", "--device=rpi4", "--no-cache")
    assert interrupted("poet.tracer.pipeline:layout_of", *command) == NOTHING


def test_while_it_imports() -> None:
    """For minutes: it is not waited for, and no library is broken off."""
    assert interrupted("import", "plan", LARGE, "--ram=60MB") == NOTHING


def test_a_plan_in_hand_is_printed_and_written(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    command = ("plan", LARGE, "--ram=60MB", "--time-limit=600", "-o", target)
    code, out, err = interrupted(PLANNING, *command)
    assert (code, err) == (0, "")
    assert "made by" in out
    assert target.exists()


def test_twice_is_at_once() -> None:
    code, _, err = interrupted(PLANNING, "plan", LARGE, "--ram=60MB", "--time-limit=600", times=2)
    assert code in (0, 130)  # two signals may arrive as one
    assert err in ("", "error: interrupted\n")
