"""Every command and snippet in README and docs is run, and prints what the text says it prints.

In a `console` block each line after `$ ` is a command and the lines below it are its output.
Seconds that a clock gave are not compared, and figures that rounding touches by their meaning
(figures.py). Python blocks must run; assertions in them count.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.serving import Served, served

from tests.conftest import PROGRESS, ROOT
from tests.docs.figures import far_apart, words

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ONCE = "installing POET into .venv ...\n"


def blocks(language: str) -> list[tuple[str, str]]:
    found = [
        (f"{page.name}-{n}", text)
        for page in PAGES
        for n, (kind, text) in enumerate(BLOCK.findall(page.read_text()))
        if kind == language
    ]
    assert found or language != "console"
    return found


def steady(text: str) -> str:
    """Without what differs from run to run: measured seconds, and the first run's installation."""
    text = PROGRESS.sub("", text.replace(ONCE, ""))
    text = re.sub(r"^poet: steps took .*\n", "", text, flags=re.MULTILINE)  # on a busy machine
    text = re.sub(
        r"(instructions a step +|, )[\d,]+( bytes of stack used)?$", r"\1…", text, flags=re.M
    )
    return re.sub(r"(made by .*, )\d+\.\d\d s", r"\1… s", text).strip()


BRIEF = {
    "DEMO_PLAN": "--work-limit 2",
    "DEMO_MODEL": "resnet18-cifar?batch=2",
    "DEMO_PROFILE": "--seconds 0.1",
    "DEMO_TRAIN": "--steps 2 --time-limit 2",
}
"""The demo in little: the same commands, of whose output only the labels are compared."""
DEMO = re.compile(r"^\.venv/bin/poet .*$", re.MULTILINE)


def labels(text: str) -> list[str]:
    """The first column: what the planner reaches in seconds of a shared machine is not compared."""
    text = DEMO.sub(lambda command: " ".join(command[0].split()[:2]), text)
    first = [re.split(r"\s{2,}|(?<=^poet:)", line)[0] for line in text.splitlines()]
    return [x for x in first if not x.startswith("1 % more") and x != "written"]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with the instances in it, as a person in the repository would see them."""
    (tmp_path / "instances").symlink_to(ROOT / "instances")
    return tmp_path


@pytest.mark.parametrize("text", [pytest.param(t, id=i) for i, t in blocks("console")])
def test_commands_print_what_the_page_says(text: str, workplace: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        done = subprocess.run(
            command,
            shell=True,
            cwd=ROOT if command.startswith("make") else workplace,
            env={**os.environ, **BRIEF, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        printed = re.sub(r"^make\[\d\]: .*\n", "", done.stdout, flags=re.MULTILINE)
        found, told = steady(printed), steady(output)
        if command == "make demo":
            asked = subprocess.run(
                ["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
            )
            assert DEMO.findall(asked.stdout) == DEMO.findall(told) != []
            assert labels(found) == labels(told)
            gap = re.search(r"gap ([\d.]+)%", found)
            assert gap is not None
            assert float(gap[1]) < 5.0
            continue
        assert words(found) == words(told), command
        assert far_apart(found, told) == [], command


ADDRESS, FOLDER = "http://127.0.0.1:8000", "/var/lib/poet"
"""Where the pages have a service, and where it keeps its jobs."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("service")) as service:
        yield service


def warned_of(page: str) -> list[pytest.MarkDecorator]:
    """Libraries on this page warn of each other, which is not for POET to mend."""
    of_others = page.startswith("integrations.md")
    left_open = page.startswith("service.md")  # connections and files, for brevity
    return [pytest.mark.filterwarnings("ignore")] if of_others or left_open else []


@pytest.mark.parametrize(
    "text", [pytest.param(t, id=i, marks=warned_of(i)) for i, t in blocks("python")]
)
def test_python_snippets_run(
    text: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(workplace)
    if ADDRESS in text or FOLDER in text:
        service: Served = request.getfixturevalue("service")
        text = text.replace(ADDRESS, service.address).replace(FOLDER, str(service.folder))
    exec(compile(text, "snippet", "exec"), {})


def test_every_path_and_link_on_the_pages_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
