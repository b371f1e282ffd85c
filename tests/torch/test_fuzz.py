"""Mutated files of every kind, as the benchmark `fuzz` has them: a few hundred, always the same."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.fuzz import run
from benchmarks.fuzz.uses import KINDS

from tests.conftest import ROOT

MUTANTS = 400


def test_mutants_end_well_or_in_one_message(tmp_path: Path) -> None:
    tally = run(MUTANTS, seed=11, workers=1, folder=tmp_path)
    kept = [path.read_text() for path in tmp_path.glob("*/failures/*/why.txt")]
    assert not tally.failures, "\n".join(kept)
    assert tally.outcomes.total() == MUTANTS
    assert {kind for kind, _ in tally.outcomes} == set(KINDS)
    for kind in KINDS:
        assert tally.outcomes[kind, "accepted"], kind
    assert sum(count for (_, what), count in tally.outcomes.items() if what == "refused") > 100
    done = {what for _, what in tally.deep}
    assert done >= {"train", "emit", "report"}


SEEN = {
    "pass": 0,
    "open('inside', 'w').close()": 0,
    "open('/etc/hostname').close()": 0,
    "open('../outside', 'w').close()": 1,
    "os.mkdir('../folder')": 1,
    "os.rename('inside', '../inside')": 1,
    "os.system('true')": 1,
    "subprocess.run(['true'])": 1,
    "import this_is_nowhere": 1,
    "eval('1 + 1')": 2,
    "pickle.loads(pickle.dumps(os.getcwd))": 1,
}
"""What code does, and how much of it the guard is to see."""
WATCHED = """
import contextlib, json, os, pickle, subprocess, sys
from pathlib import Path
from benchmarks.fuzz.guard import Guard
os.chdir(sys.argv[1])
guard, seen = Guard(Path(".")), {}
for code in json.loads(sys.argv[2]):
    ready = compile(code, os.__file__, "exec")  # as if it were a library's
    guard.seen.clear()
    guard.armed = True
    with contextlib.suppress(ImportError):
        exec(ready)
    guard.armed = False
    seen[code] = len(guard.seen)
print(json.dumps(seen))
"""


def test_the_guard_sees_what_must_not_be(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path / "place"), json.dumps(list(SEEN))],
        capture_output=True, text=True, check=False, env={"PYTHONPATH": f"{ROOT}:{ROOT}/src"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == SEEN
