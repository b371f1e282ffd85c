"""`poet emit`, `poet emulate` and `poet card` as a person types them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import poet
from poet.errors import PoetError
from poet.firmware.card.safetensors import read_safetensors, write_safetensors
from poet.firmware.card.sectors import sectors_of
from poet.values.plan import Plan, draft
from tests.conftest import Poet

from .conftest import Planner

pytestmark = pytest.mark.usefixtures("references")

MLP = "mlp?size=8&hidden=16&layers=1"


def written(plan: Plan, folder: Path) -> Path:
    path = folder / "plan.json"
    poet.write_json(plan, path)
    return path


def test_from_a_plan_to_trained_weights(
    planned: Planner, poet_command: Poet, tmp_path: Path
) -> None:
    plan, out = written(planned(MLP, "13 KB"), tmp_path), tmp_path / "fw"
    done = poet_command("emit", plan, "-o", out, "--steps", "3", "--lr", "0.1", "--seed", "4")
    assert done.code == 0
    assert "poet emulate" in done.err
    assert "A commit: 1 sector written, 1 read a step: " in done.err
    done = poet_command("emulate", out, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["target"] == "host"
    assert len(said["losses"]) == said["steps"] == 3
    assert said["as_planned"]
    assert said["difference"] < 1e-5
    assert said["error_ratio"] < 3
    assert said["page_in_bytes"] > 0
    names = {"1.weight", "1.bias", "4.weight", "4.bias"}
    assert set(said["written_bytes"]) == names | {f"{name}.momentum_buffer" for name in names}
    assert sum(said["written_bytes"].values()) == said["page_out_bytes"]
    assert said["commit"]["seconds"] > 0
    whole = sum(sectors_of(n) for n in said["written_bytes"].values() if n > 254)
    assert said["sectors_written"] == whole + 1 + said["commit"]["sectors_written"]
    done = poet_command("card", "export", out, "-o", tmp_path / "w.safetensors")
    assert done.code == 0
    assert set(read_safetensors(tmp_path / "w.safetensors")) == {
        "1.weight", "1.bias", "4.weight", "4.bias",
    }  # fmt: skip
    done = poet_command("emulate", out)  # more steps than the reference has: nothing to compare
    assert done.code == 0
    assert "not compared with PyTorch" in done.err
    assert "written as planned" in done.out
    assert "commit, predicted" in done.out


def test_what_a_save_takes_is_told_and_the_samples_must_fit(
    planned: Planner, poet_command: Poet, tmp_path: Path
) -> None:
    kept = planned(MLP, "64 KB", params="resident")
    plan, out = written(kept, tmp_path), tmp_path / "fw"
    done = poet_command("emit", plan, "-o", out, "--save-every", "7")
    assert "A commit: " in done.err
    assert " every 7 steps: " in done.err
    card = (out / "card.img").stat().st_size
    small = msgspec.structs.replace(kept.budget, store_bytes=card - 1)
    refused = msgspec.structs.replace(kept, budget=small)
    with pytest.raises(PoetError, match=f"card takes {card:,} bytes, 4 samples of"):
        poet.emit(refused, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    poet.emit(refused, tmp_path / "other", samples=3)


def test_sigterm_leaves_no_folder_and_no_firmware_behind(
    planned: Planner, poet_command: Poet, tmp_path: Path
) -> None:
    plan, out = written(planned(MLP, "13 KB"), tmp_path), tmp_path / "fw"
    assert poet_command("emit", plan, "-o", out, "--steps", "1").code == 0
    beside = tmp_path / "tmp"
    beside.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-m", "poet", "emulate", out, "--steps", "1000000000"],
        env=os.environ | {"TMPDIR": str(beside)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while not any(beside.glob("poet-emulate-*/train")) or not (started := children.read_text()):
            assert running.poll() is None
            time.sleep(0.05)
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    finally:
        running.kill()
    assert not any(beside.iterdir())
    assert not any(Path(f"/proc/{child}").exists() for child in started.split())


def test_weights_that_are_not_pytorchs_are_a_failed_check(
    planned: Planner, poet_command: Poet, tmp_path: Path
) -> None:
    plan, out = written(planned(MLP, "13 KB"), tmp_path), tmp_path / "fw"
    assert poet_command("emit", plan, "-o", out).code == 0
    kept = {k: v.copy() for k, v in read_safetensors(out / "reference.safetensors").items()}
    for way in ("float32", "float64", "noise"):
        kept[f"{way}/1.weight"] += 0.01
    write_safetensors(kept, out / "reference.safetensors")
    done = poet_command("emulate", out)
    assert done.code == 5
    assert "1.weight is " in done.err
    assert "as far from a float64 run as rounding explains; the limit is 10" in done.err


def test_transfers_that_were_not_planned_are_a_failed_check(
    planned: Planner, poet_command: Poet, tmp_path: Path
) -> None:
    plan, out = written(planned(MLP, "13 KB"), tmp_path), tmp_path / "fw"
    assert poet_command("emit", plan, "-o", out).code == 0
    source = (out / "step.c").read_text()
    line = next(line for line in source.splitlines() if line.strip().startswith("poet_page_out("))
    (out / "step.c").write_text(source.replace(line, line + "\n" + line, 1))
    done = poet_command("emulate", out, "--edited")
    assert done.code == 5
    assert "were planned" in done.err


def test_the_predicted_step_waits_for_its_transfers_whatever_the_plan_hoped(
    poet_command: Poet, tmp_path: Path
) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "fw"
    asked = ("plan", MLP, "--device", "stm32f746", "--ram", "13KB", "--params", "paged")
    done = poet_command(*asked, "--transfers", "overlap", "--work-limit", "1", "-o", plan)
    assert done.code == 0, done.err
    beside = poet.read_json(plan, Plan)
    assert beside.seconds is not None
    assert poet_command("emit", plan, "-o", out).code == 0
    placed = poet.read_json(out / "plan.json", Plan)
    assert placed.budget.transfers == "overlap"
    budget = msgspec.structs.replace(placed.budget, transfers="serial")
    serial = poet.check(draft(placed.graph, placed.costs, budget, placed.schedule))
    made = json.loads((out / "firmware.json").read_text())
    assert (made["seconds"], made["joules"]) == (serial.seconds, serial.joules)
    assert made["seconds"] > beside.seconds


def test_wrong_usage(planned: Planner, poet_command: Poet, tmp_path: Path) -> None:
    plan = written(planned(MLP, "13 KB"), tmp_path)
    for words, text in (
        (("emit", plan), "--output"),
        (("emit", tmp_path / "none.json", "-o", tmp_path / "a"), "none.json"),
        (("emit", plan, "-o", tmp_path / "a", "--target", "avr"), "no target 'avr'"),
        (("emit", plan, "-o", tmp_path / "a", "--weights", plan), "no safetensors file"),
        (("emit", plan, "-o", tmp_path / "a", "--steps", "0"), "--steps"),
        (("emulate", tmp_path), "not a folder that poet emit wrote"),
        (("card", "export", tmp_path, "-o", tmp_path / "x"), "not a folder that poet emit wrote"),
        (("emit", "instances/linear-m4.json", "-o", tmp_path / "a"), ""),
    ):
        done = poet_command(*words)
        assert done.code == 2, words
        assert text in done.err
        assert not (tmp_path / "a").exists() or not any((tmp_path / "a").iterdir())


def test_an_instance_has_nothing_to_emit(poet_command: Poet, tmp_path: Path) -> None:
    problem = poet.read_instance("instances/linear-m4.json")
    plan = poet.plan(problem, ram=4000, time_limit=1)
    done = poet_command("emit", written(plan, tmp_path), "-o", tmp_path / "fw")
    assert done.code == 2
    assert "does not say what it computes" in done.err
