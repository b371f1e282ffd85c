"""Regressions: input and surroundings that once got past the checks."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import poet
from poet import Budget, Device, Plan, PoetError, write_json
from poet.values.files import decode_json, decode_toml
from poet.values.instances import InstanceFile
from poet.values.plan import draft
from tests.conftest import INSTANCES, ROOT, Poet

LINEAR = INSTANCES / "linear-m4.json"
BOARD = (ROOT / "src/poet/devices/nrf52840.toml").read_text()
HUGE = 10**400


def changed_node(**fields: Any) -> bytes:
    file = json.loads(LINEAR.read_text())
    for node in file["nodes"]:
        node.update(fields)
    return json.dumps(file).encode()


@pytest.mark.parametrize("field", ["output_bytes", "compute_joules", "page_in_seconds"])
@pytest.mark.parametrize("value", [HUGE, -HUGE, 1.7e308, 2**63])
def test_absurd_numbers_in_instances(field: str, value: float) -> None:
    if field != "output_bytes" and value == 2**63:
        value = 1e19
    with pytest.raises(PoetError) as error:
        decode_json(changed_node(**{field: value}), InstanceFile, "x.json")
    assert field in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("digits", [400, 5000])
def test_absurd_numbers_in_boards(digits: int) -> None:
    text = BOARD.replace("ram_bytes = 262_144", "ram_bytes = " + "9" * digits)
    with pytest.raises(PoetError):
        decode_toml(text.encode(), Device, "x.toml")


@pytest.mark.parametrize("field", ["peak_bytes", "floor_bytes", "joules", "solve_seconds"])
@pytest.mark.parametrize("value", [HUGE, -1])
def test_absurd_claims(field: str, value: int) -> None:
    plan = poet.plan(str(LINEAR), ram=4000, method="paging-greedy")
    file = json.loads(msgspec.json.encode(plan))
    with pytest.raises(PoetError, match=field):
        decode_json(json.dumps({**file, field: value}).encode(), Plan, "x.json")


def test_a_peak_claim_is_exact() -> None:
    plan = poet.plan(str(LINEAR), ram=4000, method="paging-greedy")
    assert plan.peak_bytes is not None
    lie = msgspec.structs.replace(plan, peak_bytes=plan.peak_bytes - 1)
    assert [m.field for m in poet.check(lie).mismatches] == ["peak_bytes"]


@pytest.mark.parametrize("text", ["1,5KB", "4,0,0,0", "9" * 5000, "1__0", "_1"])
def test_sizes_that_could_mean_two_things(text: str) -> None:
    with pytest.raises(PoetError):
        poet.plan(str(LINEAR), ram=text)


def test_only_ordinary_files_are_overwritten(tmp_path: Path) -> None:
    plan = poet.plan(str(LINEAR), ram=4000, method="paging-greedy")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(PoetError, match="not an ordinary file"):
        write_json(plan, fifo, force=True)
    assert fifo.is_fifo()
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    with pytest.raises(PoetError, match="exists already"):
        write_json(plan, link)
    write_json(plan, link, force=True)
    assert link.is_symlink()
    assert json.loads(target.read_text())["format"] == "poet-plan/1"


def run(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "POET": f"{sys.executable} -m poet", **environment},
    )


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = run("($POET devices; echo rc $? >&2) | true")
    assert done.stderr == "rc 0\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_said() -> None:
    done = run("$POET devices > /dev/full")
    assert (done.returncode, done.stderr) == (
        2,
        "error: cannot write the output: No space left on device\n",
    )


def test_no_stdout_at_all() -> None:
    assert run("$POET devices >&-").returncode == 0


def test_a_terminal_without_unicode() -> None:
    done = run(f"$POET plan {LINEAR} --ram 4000 --method paging-greedy", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "?J" in done.stdout


def test_names_cannot_write_to_the_terminal(tmp_path: Path, poet_command: Poet) -> None:
    file = json.loads(LINEAR.read_text())
    file["name"] = "a\nb\x1b[31mRED"
    file["nodes"][26]["name"] = "x\x1b[2J"
    path = tmp_path / "evil.json"
    path.write_text(json.dumps(file))
    outcome = poet_command("plan", path, "--ram", "4000", "--method", "paging-greedy")
    assert "\x1b" not in outcome.out
    assert outcome.out.startswith("graph           a\\nb\\x1b[31mRED\n")
    outcome = poet_command("plan", path, "--ram", "1000")
    assert "\x1b" not in outcome.err


def test_a_hand_written_plan_may_claim_nothing(tmp_path: Path, poet_command: Poet) -> None:
    plan = poet.plan(str(LINEAR), ram=4000, method="paging-greedy")
    bare = draft(plan.graph, plan.costs, plan.budget, plan.schedule)
    write_json(bare, tmp_path / "bare.json")
    assert poet_command("check", tmp_path / "bare.json").code == 0


def test_a_replay_that_ends_early_judges_no_claims() -> None:
    plan = poet.plan(str(LINEAR), ram=4000, method="paging-greedy")
    cut = msgspec.structs.replace(plan, schedule=plan.schedule[:5])
    report = poet.check(cut)
    assert not report.valid
    assert report.mismatches == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"transfers": "bogus"}, "transfers is 'bogus'"),
        ({"params": "floating"}, "params is 'floating'"),
        ({"params": "streamed"}, "need a device"),
        ({"time_limit": -1.0}, "time_limit is -1"),
        ({"time_limit": math.nan}, "time_limit is nan"),
    ],
)
def test_wrong_words_in_python(fields: Any, message: str) -> None:
    with pytest.raises(PoetError, match=message):
        poet.plan(str(LINEAR), **fields)
    with pytest.raises(ValueError, match="transfers is 'zz'"):
        Budget(transfers="zz")  # type: ignore[arg-type]


def test_a_deadline_may_be_a_number() -> None:
    assert poet.plan(str(LINEAR), deadline=20).budget.deadline_seconds == 20.0


def test_ctrl_c_says_so_and_is_130() -> None:
    code = (
        "import poet.cli.main, poet.planning.plan\n"
        "def stop(*_): raise KeyboardInterrupt\n"
        "poet.planning.solve.STARTS.update({name: stop for name in poet.planning.solve.STARTS})\n"
        f"import sys; sys.argv = ['poet', 'plan', {str(LINEAR)!r}]\n"
        "poet.cli.main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_nesting_where_another_type_belongs() -> None:
    """What stands there cannot be shown, and the message says so much without it."""
    file = json.loads(LINEAR.read_text())
    data = json.dumps({**file, "name": "@"}).encode().replace(b'"@"', b"[" * 9000 + b"]" * 9000)
    with pytest.raises(PoetError) as error:
        decode_json(data, InstanceFile, "x.json")
    assert str(error.value) == "x.json: name: Expected `str`, got `array`"


@pytest.mark.parametrize("field", ["peak_bytes", "paged_bytes", "joules", "recomputed"])
def test_absurd_numbers_in_comparisons(tmp_path: Path, field: str) -> None:
    from poet.cli.report import read_rows

    path = tmp_path / "rows.json"
    for value in (HUGE, -1):
        path.write_text(json.dumps([{"method": "poet", "status": "feasible", field: value}]))
        with pytest.raises(PoetError, match=field):
            read_rows(path)


def test_a_profile_of_no_time_at_all_is_shown() -> None:
    from poet.reports import profile_tables
    from poet.values.profile import Profile, StoreSpeed, Timing

    none = Timing(seconds=0.0, low_seconds=0.0, high_seconds=0.0)
    plan = poet.plan(str(LINEAR), ram=4000, method="paging-greedy")
    store = StoreSpeed(where="disk", sizes_bytes=(1,), page_ins=(none,), page_outs=(none,))
    profile = Profile(
        machine="here", threads=1, torch="2", energy="none", repeats=1, store=store, step=none,
        device=poet.find_device("rpi4"), ops=(none,) * len(plan.graph.ops), costs=plan.costs,
    )  # fmt: skip
    assert "in no time out" in profile_tables._speed_text(profile.store)
    with pytest.raises(ValueError, match="seconds is -1"):
        msgspec.structs.replace(none, seconds=-1.0)
