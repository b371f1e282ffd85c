"""What all tests share: where things are, and the command line as a function."""

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from poet.cli.main import main

ROOT = Path(__file__).parent.parent
INSTANCES = ROOT / "instances"

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
