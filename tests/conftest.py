"""What all tests share: where things are, and the command line as a function."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from poet.cli.main import main

ROOT = Path(__file__).parent.parent
INSTANCES = ROOT / "instances"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Poet = Callable[..., Outcome]


@pytest.fixture
def poet_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Poet:
    """Run `poet ARGS` in this process."""

    def run(*args: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["poet", *map(str, args)])
        # The command leaves at once where a worker is deep inside a solver; the tests go on.
        monkeypatch.setattr("poet.cli.main.os._exit", sys.exit)
        with pytest.raises(SystemExit) as exit_info:
            main()
        captured = capsys.readouterr()
        assert isinstance(exit_info.value.code, int)
        return Outcome(exit_info.value.code, captured.out, captured.err)

    return run
