"""Progress of commands whose stderr is no terminal: a line now and then."""

import logging
from typing import Any

import pytest

from poet.cli import console
from poet.values.progress import SearchProgress
from tests.conftest import PROGRESS


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    printed = capsys.readouterr()
    assert printed.out == ""
    assert PROGRESS.sub("", printed.err) == ""
    return printed.err.splitlines()


def test_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("poet.cli.console.time.monotonic", lambda: now)
    with console.progress_bar() as show, console.planning_line() as planning:
        show("poet", 0, 4)
        assert told(capsys) == []  # who is done in seconds says nothing
        for seconds, count in ((9.0, 0), (11.0, 1), (14.0, 0), (22.0, 1)):
            now = 100.0 + seconds
            show("keep-all", 1, 4)
            assert told(capsys) == ["poet: keep-all (1 of 4 done)"] * count
        now = 140.0
        planning(SearchProgress(seconds=40.0, joules=None, bound_joules=0.0))
        assert told(capsys) == ["poet: planning 40 s: no schedule yet"]
        now = 151.0
        planning(SearchProgress(seconds=51.0, joules=2.0, bound_joules=1.0))
        assert "2.000 J, at least 1.000 J, gap 50.00%" in told(capsys)[0]


def test_a_long_capture(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now: Any = 0.0
    monkeypatch.setattr("poet.cli.console.time.monotonic", lambda: now)
    log = logging.getLogger("poet.tracer.capture")
    with console.listening():
        log.info("capturing bert-base: tracing")
        now = 12.0
        log.info("capturing bert-base: lowering")
        log.info("captured bert-base in 12.0 s")
        assert told(capsys) == ["poet: capturing bert-base: lowering"]
        log.info("capturing another: tracing")  # its own seconds begin
        now = 13.0
        log.info("capturing another: lowering")
        assert told(capsys) == []
