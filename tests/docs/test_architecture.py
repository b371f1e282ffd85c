"""docs/architecture.md against the code: the tree is the tree, and the walks are walked."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.conftest import ROOT, Poet

PAGE = (ROOT / "docs/architecture.md").read_text()
HOME = str(ROOT / "src") + "/"
WALKS = re.findall(r"^```walk\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
REFEREE = "poet.referee.replay.check"
"""Replays every schedule, so it has no place in the order."""


def test_the_tree_is_the_tree() -> None:
    folder = ROOT / "src/poet"
    listed = set(re.findall(r"^  (\w+\.py|\w+/) ", PAGE, re.MULTILINE))
    rooms = {p.name for p in folder.glob("*.py")}
    rooms |= {f"{p.name}/" for p in folder.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert listed == rooms
    assert len(list(folder.glob("*.py"))) <= 6


def test_the_layers_on_the_page_are_those_of_the_contract() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    layers = re.findall(r'^    "(poet\.[\w. |]+)",$', text, re.MULTILINE)
    assert 15 <= len(layers) <= 24
    rooms = [room for row in layers for room in row.replace("poet.", "").split(" | ")]
    chain = PAGE[PAGE.index("`cli` > `server`") :].partition(". The")[0]
    told = re.findall(r"`([\w.]+)`", chain)
    assert [room for room in told if room in rooms] == [room for room in rooms if room in told]
    assert {room.partition(".")[0] for room in rooms} - {"version"} == {
        room.partition(".")[0] for room in told
    }


@contextmanager
def visited() -> Iterator[list[str]]:
    """The functions of POET that are called, each once, in the order of their first calls."""
    seen: dict[Any, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not code.co_flags & CO_OPTIMIZED:
            return  # modules and bodies of classes run, too, when they are imported
        if code.co_filename.startswith(HOME):
            module = code.co_filename[len(HOME) :].removesuffix(".py").replace("/", ".")
            seen[code] = f"{module}.{code.co_qualname}".removesuffix(".__init__")

    found: list[str] = []
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found += seen.values()


def check_walk(text: str, found: list[str]) -> None:
    """All that a walk lists was visited, in its order; what depends on the case may be missing."""
    steps = [line.strip().partition(" ") for line in text.splitlines()]
    assert len(steps) > 6
    at, missing = -1, []
    for name, _, note in steps:
        depends = note.strip().startswith(("where", "again"))
        if name not in found:
            missing += [] if depends else [name]
        elif name != REFEREE and found.index(name) < len(found):
            assert found.index(name) > at, f"{name} is visited earlier than the page says"
            at = found.index(name)
    assert not missing


def test_the_walks(tmp_path: Path, poet_command: Poet, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, train, step, emit = WALKS
    monkeypatch.setenv("POET_CACHE", str(tmp_path / "captures"))
    file = tmp_path / "plan.json"
    with visited() as found:
        done = poet_command(
            "plan", "lenet?batch=1", "--device", "nrf52840", "--ram", "1MB", "--time-limit", "1",
            "-o", file,
        )  # fmt: skip
    assert done.code == 0, done.err
    check_walk(plan, found)
    with visited() as found:
        done = poet_command(
            "train", "lenet?batch=2", "--steps", "2", "--time-limit", "1", "--store",
            tmp_path / "pages", "--checkpoint", tmp_path / "run",
        )  # fmt: skip
    assert done.code == 0, done.err
    check_walk(train, found)
    check_walk(step, found)
    with visited() as found:
        done = poet_command("emit", file, "-o", tmp_path / "firmware")
    assert done.code == 0, done.err
    check_walk(emit, found)


@pytest.mark.parametrize("walk", WALKS, ids=["plan", "train", "step", "emit"])
def test_a_walk_visits_each_room_once(walk: str) -> None:
    """Once it has been left for its caller, no room but the referee is entered again.

    The command itself may ask a room several things in turn.
    """
    inside: list[str] = []
    left: set[tuple[str, str]] = set()
    for line in walk.splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        room = name.split(".")[1]
        while len(inside) > level:
            gone = inside.pop()
            if gone not in inside and inside and inside[-1] != "cli":
                left.add((inside[-1], gone))
        if name != REFEREE and room != "values" and room not in inside:
            callers = {caller for caller, each in left if each == room}
            assert not callers - {inside[-1] if inside else ""}, f"{room} again, at {name}"
        inside.append(room)


def test_the_tests_that_decisions_name_exist() -> None:
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        file = ""
        for found in re.findall(r"`((?:\w+/\w+\.py)?(?:::\w+)?)`", page.read_text()):
            named, _, name = found.partition("::")
            file = named or file
            if not file or not (ROOT / "tests" / file).exists():
                assert not file or "test_" not in file, (page.name, found)
                continue
            if name:
                assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (page.name, found)
