"""What all tests share: where things are, and the command line as a function."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from poet.cli.main import main

ROOT = Path(__file__).parent.parent
INSTANCES = ROOT / "instances"

# Tests and what they start run side by side, and steps are small: their threads would wait for each
# other for longer than they work. What needs two asks for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A run in the background is deaf to Ctrl-C, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Poet = Callable[..., Outcome]


PROGRESS = re.compile(
    r"^poet: (?:.*\(\d+ of \d+ done\)|planning \d+ s: .*|step [\d,]+ of .*: loss .*|"
    r"capturing .*)\n",
    re.MULTILINE,
)
"""Lines that a command says when it takes long, as it does on a busy machine."""


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of pytest alone, which all of its processes share."""
    own = tmp_path_factory.getbasetemp()
    is_worker = hasattr(request.config, "workerinput")
    folder = (own.parent if is_worker else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True, scope="session")
def _one_processor() -> Iterator[None]:
    """A search by the clock takes one, for the other has its own test.

    Tests of searches with several threads ask for them, and commands have what there is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _captures(shared: Path) -> Iterator[None]:
    """A step that one test has captured need not be traced again by others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POET_CACHE", str(shared / "captures"))
        yield


@pytest.fixture
def poet_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Poet:
    """Run `poet ARGS` in this process."""

    def run(*args: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["poet", *map(str, args)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        captured = capsys.readouterr()
        assert isinstance(exit_info.value.code, int)
        err = PROGRESS.sub("", captured.err)
        return Outcome(exit_info.value.code, captured.out, err)

    return run
