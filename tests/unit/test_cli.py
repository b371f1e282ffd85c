"""The command line: what it prints where, how it fails, and how fast it starts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poet import read_json
from poet.values.plan import Plan
from tests.conftest import INSTANCES, ROOT, Poet

LINEAR = INSTANCES / "linear-m4.json"


@pytest.fixture
def plan_file(poet_command: Poet, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    assert (
        poet_command("plan", LINEAR, "--ram=4000", "--method=paging-greedy", "-o", path).code == 0
    )
    return path


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_plan_json_has_the_promised_fields(poet_command: Poet) -> None:
    outcome = poet_command("plan", LINEAR, "--ram", "4000", "--time-limit", "1", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    answer = json.loads(outcome.out)
    assert answer["status"] in ("feasible", "optimal")
    assert answer["bound_source"] == "certified"
    assert answer["gap"] == pytest.approx(1 - answer["bound_joules"] / answer["joules"], abs=1e-9)
    assert answer["floor_bytes"] <= answer["peak_bytes"] <= 4000
    assert answer["baseline_joules"] < answer["joules"]
    assert 0 <= answer["first_seconds"] <= answer["solve_seconds"]
    assert answer["seconds"] > 0


def test_infeasible_is_exit_3_with_nulls(poet_command: Poet, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    outcome = poet_command("plan", LINEAR, "--ram", "1KB", "--json", "-o", target)
    answer = json.loads(outcome.out)
    assert outcome.code == 3
    assert answer["status"] == "infeasible"
    assert answer["joules"] is answer["peak_bytes"] is answer["gap"] is None
    assert answer["floor_bytes"] == 3256
    assert not target.exists()
    outcome = poet_command("plan", LINEAR, "--ram", "1KB")
    assert (outcome.code, outcome.out) == (3, "")
    assert "needs 3,256 bytes at once; the budget is 1,000. Try --ram 3256." in outcome.err


def test_nothing_found_is_exit_4(poet_command: Poet) -> None:
    never = ("--no-paging", "--no-remat")
    outcome = poet_command("plan", LINEAR, "--ram=4000", *never, "--time-limit=0.001")
    assert outcome.code == 4
    assert outcome.err.startswith("error: unknown: keep-all: ")


def test_check_agrees_with_the_plan(poet_command: Poet, plan_file: Path) -> None:
    outcome = poet_command("check", plan_file, "--json")
    answer = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert (answer["valid"], answer["claims_match"], answer["violation"]) == (True, True, None)
    plan = read_json(plan_file, Plan)
    for field in ("joules", "seconds", "peak_bytes"):
        assert answer[field] == getattr(plan, field)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"joules": 1e-5}, "claims joules 1e-05; its replay gives 0.00128"),
        ({"peak_bytes": 17}, "claims peak_bytes 17; its replay gives 3,"),
        ({"seconds": 0.5}, "claims seconds 0.5; its replay gives 0.0"),
        ({"status": "optimal"}, "claims status optimal; its replay gives feasible"),
        ({"gap": 0.0}, "claims gap 0; its replay gives 0."),
        ({"bound_joules": 5.0, "gap": None}, "claims bound_joules 5; its replay gives 0.0"),
        ({"baseline_joules": 5.0}, "claims baseline_joules 5; its replay gives 0.0"),
        ({"floor_bytes": 10**6}, "claims floor_bytes 1,000,000; its replay gives 3,"),
    ],
)
def test_false_claims_are_exit_5_with_both_numbers(
    poet_command: Poet, plan_file: Path, fields: dict[str, Any], message: str
) -> None:
    edit(plan_file, **fields)
    outcome = poet_command("check", plan_file)
    assert (outcome.code, outcome.out) == (5, "")
    assert message in outcome.err
    answer = json.loads(poet_command("check", plan_file, "--json").out)
    assert (answer["valid"], answer["claims_match"]) == (True, False)


def test_an_invalid_schedule_is_exit_5_with_the_rule(poet_command: Poet, plan_file: Path) -> None:
    steps = json.loads(plan_file.read_text())["schedule"]
    at = next(k for k, step in enumerate(steps) if step["do"] == "page_in")
    edit(plan_file, schedule=steps[:at] + steps[at + 1 :])
    outcome = poet_command("check", plan_file)
    assert outcome.code == 5
    assert "is not valid at instruction" in outcome.err
    answer = json.loads(poet_command("check", plan_file, "--json").out)
    assert answer["valid"] is False
    assert answer["violation"]["rule"] == "input-missing"
    assert answer["violation"]["instruction"] >= at


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan", LINEAR, "--ram", "12 bananas"], "RAM budget '12 bananas' is not a size"),
        (["plan", LINEAR, "--ram", "-1"], "'-1' is not a size"),
        (["plan", LINEAR, "--deadline", "soon"], "deadline 'soon' is not a time"),
        (["plan", LINEAR, "--device", "nrf"], "no board named 'nrf'"),
        (["plan", LINEAR, "--transfers", "teleport"], "'teleport' is not one of"),
        (["plan", LINEAR, "--method", "magic"], "no method 'magic'"),
        (["plan", LINEAR, "--time-limit", "-3"], "-3"),
        (["plan", LINEAR, "--frobnicate"], "No such option"),
        (["plan", "resnet18"], "resnet18 has no costs: give a device"),
        (["plan", "x.txt", "--device", "rpi4"], "there is no model named 'x.txt'"),
        (["plan", "nothing.json"], "cannot read nothing.json: No such file"),
        (["plan"], "Missing argument"),
        (["check", LINEAR], "has no field 'format'"),
        (["check", "nothing.json"], "cannot read nothing.json"),
        (["frob"], "No such command"),
        (["devices", "zzz"], "no board named 'zzz'"),
        (["plan", LINEAR, "-o", "/nowhere/plan.json"], "there is no folder /nowhere"),
    ],
)
def test_bad_usage_is_exit_2_with_one_clear_line(
    poet_command: Poet, args: list[str | Path], message: str
) -> None:
    outcome = poet_command(*args)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1


def test_an_existing_output_is_kept_unless_forced(poet_command: Poet, plan_file: Path) -> None:
    before = plan_file.read_bytes()
    outcome = poet_command("plan", LINEAR, "--ram", "5000", "-o", plan_file)
    assert outcome.code == 2
    assert "exists already" in outcome.err
    assert plan_file.read_bytes() == before
    assert (
        poet_command(
            "plan", LINEAR, "--ram=5000", "--time-limit=1", "-o", plan_file, "--force"
        ).code
        == 0
    )
    assert read_json(plan_file, Plan).budget.ram_bytes == 5000


def test_a_graph_is_planned_with_costs(poet_command: Poet, plan_file: Path, tmp_path: Path) -> None:
    file = json.loads(plan_file.read_text())
    graph, costs = tmp_path / "graph.json", tmp_path / "costs.json"
    graph.write_text(json.dumps(file["graph"]))
    costs.write_text(json.dumps(file["costs"]))
    outcome = poet_command(
        "plan", graph, "--costs", costs, "--ram=4000", "--time-limit=1", "--json"
    )
    assert json.loads(outcome.out)["status"] in ("feasible", "optimal")
    outcome = poet_command("plan", graph, "--ram", "4000")
    assert outcome.code == 2
    assert "--costs" in outcome.err


def test_devices_lists_all_and_shows_one(poet_command: Poet) -> None:
    table = poet_command("devices").out
    assert "nrf52840" in table
    assert "\x1b" not in table
    assert len(json.loads(poet_command("devices", "--json").out)) == table.count("\n") - 1
    one = poet_command("devices", "rpi5").out
    assert "estimate: " in one
    assert json.loads(poet_command("devices", "rpi5", "--json").out)["name"] == "rpi5"


def test_output_without_a_terminal_is_plain_text(poet_command: Poet) -> None:
    outcome = poet_command("plan", LINEAR, "--ram", "4000", "--method", "paging-greedy")
    assert "\x1b" not in outcome.out
    assert outcome.out.splitlines()[1].split() == ["status", "feasible"]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )


HEAVY = ("torch", "numpy", "scipy", "highspy", "gurobipy", "ortools", "hypothesis", "rich.table")


def test_importing_poet_imports_nothing_heavy() -> None:
    code = f"import poet, poet.cli.main, sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"


def test_a_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m poet devices nrf52840 | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("n", "")


def test_version_and_help(poet_command: Poet) -> None:
    assert poet_command("--version").out.startswith("poet ")
    for args in (("--help",), (), ("plan", "--help"), ("check", "--help"), ("devices", "--help")):
        outcome = poet_command(*args)
        assert outcome.code == 0
        assert "Usage: poet" in outcome.out


def test_a_narrow_terminal_shows_every_column() -> None:
    from io import StringIO

    from rich.console import Console

    from poet.reports.tables import print_table

    file = StringIO()
    console = Console(file=file, force_terminal=True, width=40, color_system=None)
    columns: list[Any] = [("name", "left"), ("bytes", "right"), ("title", "left")]
    print_table(
        console, columns, [["nrf52840", "262,144", "A very long title " * 5]], cut_last=True
    )
    lines = file.getvalue().splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert "nrf52840" in file.getvalue()
    assert "262,144" in file.getvalue()
    assert "A very" in file.getvalue()
    assert len([line for line in lines if line.strip()]) == 3
