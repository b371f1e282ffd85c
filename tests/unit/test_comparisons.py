"""Comparisons and frontiers: what the tables and files say is what the referee said."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import poet
from poet.planning.compare import COMPARED, surprises
from poet.planning.frontier import Frontier, Point, frontier
from poet.planning.plan import answer
from poet.planning.problem import read_problem
from poet.planning.question import Terms
from poet.planning.residency import questions
from poet.planning.rows import Row, row_of
from poet.reports.frontier_files import STYLES, TITLES, curves, write_frontier
from poet.values.schedule import Effort
from tests.conftest import INSTANCES, Poet

LINEAR = INSTANCES / "linear-m4.json"
PATIENT = Effort(time_limit_seconds=60.0)
"""All of these questions are answered sooner; a slow machine gets there, too."""
DESIGNED = {
    "poet", "keep-all", "paging", "chen-sqrt", "chen-greedy", "revolve", "checkmate", "dtr",
    "capuchin", "pofo", "torch-budget",
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Frontier:
    return frontier(read_problem(str(LINEAR)), Terms(), PATIENT, points=4)


def test_every_method_has_a_name_a_style_and_a_title() -> None:
    assert set(COMPARED) == set(STYLES) == set(TITLES) == DESIGNED
    assert COMPARED[0] == "poet"


def test_poet_goes_on_from_its_own_narrowed_searches() -> None:
    names = ["keep-all", "poet", "paging", "checkmate"]
    rows = poet.compare(str(INSTANCES / "bert-m4.json"), ram="156MB", methods=names, time_limit=0.4)
    assert [row.method for row in rows] == names
    _, ours, *narrowed = rows
    assert ours.joules is not None
    assert all(row.joules is not None and row.joules >= ours.joules for row in narrowed)
    seconds = [row.solve_seconds or 0.0 for row in narrowed]
    assert (ours.solve_seconds or 0.0) > sum(seconds) > 0.8


def test_rows_are_the_referees_numbers() -> None:
    (asked,) = questions(read_problem(str(LINEAR)), Terms(ram=4000))
    planned = set()
    for name in COMPARED:
        plan = answer(asked, PATIENT, name)
        row = row_of(name, plan)
        if not plan.schedule:
            assert row.joules is None
            assert row.reason
            continue
        planned.add(name)
        report = poet.check(plan)
        assert report.valid
        assert (row.joules, row.seconds, row.peak_bytes) == (
            report.joules, report.seconds, report.peak_bytes,
        )  # fmt: skip
        assert row.recomputed == report.recomputed_ops
        assert row.paged_bytes == report.page_in_bytes + report.page_out_bytes
        assert (row.gap is not None) == (name == "poet")
    assert DESIGNED - planned == {"keep-all", "chen-greedy", "revolve"}


def test_poet_plans_from_a_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("asked for a start")

    monkeypatch.setattr("poet.planning.solve.STARTS", {"keep-all": refuse})
    (asked,) = questions(read_problem(str(LINEAR)), Terms(ram=4000))
    assert answer(asked, PATIENT, "poet").schedule


def test_a_baseline_ahead_of_poet_is_named() -> None:
    def row(method: str, joules: float | None, **more: Any) -> Row:
        return Row(method=method, status="feasible", joules=joules, **more)

    ours = row("poet", 100.0, bound_joules=90.0, gap=0.1)
    assert surprises([ours, row("dtr", 100.0), row("pofo", 120.0), row("revolve", None)]) == []
    (within,) = surprises([ours, row("dtr", 95.0)])
    assert "dtr is 5.000% ahead of POET, within POET's gap of 10.00%" in within
    (below,) = surprises([ours, row("dtr", 89.0)])
    assert "below POET's bound" in below
    (alone,) = surprises([row("poet", None), row("dtr", 89.0)])
    assert "POET found none" in alone


@pytest.mark.slow
def test_curves_never_rise_and_start_at_the_smallest_budget(found: Frontier) -> None:
    assert found.smallest_bytes == found.points[0].ram_bytes >= found.floor_bytes
    assert found.points[-1].ram_bytes == found.keep_all_bytes
    budgets = [point.ram_bytes for point in found.points]
    assert budgets == sorted(set(budgets))
    for name, points in curves(found).items():
        joules = [each for _, each in points]
        assert joules == sorted(joules, reverse=True), name
        if joules:
            assert joules[-1] == pytest.approx(found.keep_all_joules), name
    for point in found.points:
        for row in point.rows:
            assert row.peak_bytes is None or row.peak_bytes <= point.ram_bytes


def test_the_knee_is_where_more_ram_buys_little() -> None:
    def points(*joules: float) -> tuple[Point, ...]:
        return tuple(
            Point(ram_bytes=10 * at, rows=(Row(method="poet", status="feasible", joules=each),))
            for at, each in enumerate(joules, start=1)
        )

    def knee(*joules: float) -> int | None:
        made = Frontier(
            graph="g", device="d", transfers="free", methods=("poet",), points=points(*joules),
            floor_bytes=1, keep_all_bytes=100, keep_all_joules=1.0,
        )  # fmt: skip
        return None if made.knee is None else made.knee.ram_bytes

    assert knee(10.0, 3.0, 2.0, 1.0) == 20
    assert knee(10.0, 9.0, 2.0, 1.0) == 30
    assert knee(10.0, 1.0) is None
    assert knee(1.0, 1.0, 1.0) is None


@pytest.mark.slow
def test_files_hold_the_same_points(found: Frontier, tmp_path: Path) -> None:
    for name in ("f.csv", "f.json", "f.html", "f.png", "f.svg"):
        write_frontier(found, tmp_path / name)
    table = list(csv.DictReader((tmp_path / "f.csv").read_text().splitlines()))
    assert len(table) == len(found.points) * len(found.methods)
    ours = [float(line["joules"]) for line in table if line["method"] == "poet"]
    assert ours == [joules for _, joules in curves(found)["poet"]]
    assert msgspec.json.decode((tmp_path / "f.json").read_bytes(), type=Frontier) == found
    page = (tmp_path / "f.html").read_text()
    assert "<title>linear-m4: energy against memory</title>" in page
    assert "plotly" in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)  # it works offline
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "f.svg").read_text()
    with pytest.raises(poet.PoetError, match="exists already"):
        write_frontier(found, tmp_path / "f.csv")


@pytest.mark.slow
def test_the_commands(poet_command: Poet, tmp_path: Path) -> None:
    done = poet_command(
        "compare", LINEAR, "--ram", "4000", "--time-limit", "120", "--method", "poet", "--method",
        "keep-all", "--json",
    )  # fmt: skip
    rows = json.loads(done.out)["rows"]
    assert [row["method"] for row in rows] == ["poet", "keep-all"]
    assert rows[0]["status"] == "optimal"
    assert rows[1]["joules"] is None
    assert "4,000" in rows[1]["reason"]
    shown = poet_command("compare", LINEAR, "--ram", "4000", "--time-limit", "1")
    assert all(name in shown.out for name in DESIGNED)
    drawn = poet_command(
        "frontier", LINEAR, "--points", "3", "--time-limit", "0.5", "--method", "poet", "-o",
        tmp_path / "a.csv",
    )  # fmt: skip
    assert "smallest budget with a schedule" in drawn.out
    assert (tmp_path / "a.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compare", LINEAR, "--method", "magic"), "there is no method 'magic'"),
        (("compare", "resnet18-cifar"), "has no costs"),
        (("frontier", LINEAR, "-o", "a.pdf"), "must end in one of"),
        (("frontier", LINEAR, "--points", "500"), "from 2 to 200"),
    ],
)
def test_wrong_questions(poet_command: Poet, arguments: tuple[Any, ...], said: str) -> None:
    done = poet_command(*arguments)
    assert done.code == 2
    assert said in done.err
