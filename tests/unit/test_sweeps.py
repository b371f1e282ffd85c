"""Sweeps: every cell is answered as elsewhere, kept at once, found again, and told."""

import csv
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType, TracebackType
from typing import Any

import msgspec
import pytest

import poet
from poet.planning.compare import compared, in_turn
from poet.planning.executor import ONE_BY_ONE, Executor, Limits
from poet.planning.frontier import frontier
from poet.planning.problem import problem_of
from poet.planning.question import terms
from poet.planning.rows import Ask, Found, Row, Shared, effort_fields, found_row
from poet.planning.turns import Outcome, Task, Turns
from poet.sweeps.grid import Questions, read_grid
from poet.sweeps.on_ray import Reply, answer_here, end_workers
from poet.sweeps.page import page
from poet.sweeps.results import Results
from poet.sweeps.running import Teams, sweep
from poet.sweeps.tables import TYPES, as_csv, as_parquet
from poet.values.schedule import Compute, Effort
from tests.conftest import INSTANCES, ROOT, Poet

LINEAR, TRANSFORMER = INSTANCES / "linear-m4.json", INSTANCES / "transformer-m4.json"
QUICK = ("poet", "paging", "keep-all", "chen-greedy")
SHOWN = ROOT / "docs/sweeps.md"
PATIENT = 60.0


def grid(tmp_path: Path, **said: Any) -> Path:
    """A grid file of the linear instance, counted, and whatever is said else."""
    values = {"models": [str(LINEAR)], "methods": list(QUICK), "work_limit": 1, **said}
    path = tmp_path / "grid.toml"
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in values.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def swept(path: Path, folder: Path, limits: Limits = ONE_BY_ONE, **how: Any) -> Results:
    return sweep(read_grid(path), folder, team(limits), **how)


def team(limits: Limits = ONE_BY_ONE) -> Teams:
    return lambda shared: Executor(found_row, shared, limits)


class Stopped:
    """A team that is interrupted after so many answers; it says what it was asked."""

    def __init__(self, shared: Shared, answers: int) -> None:
        self.executor, self.left = Executor(found_row, shared), answers
        self.asked: list[str] = []

    def __enter__(self) -> "Stopped":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.executor.end()

    def run(
        self,
        tasks: Iterable[Task],
        known: Mapping[Any, Any] = MappingProxyType({}),
        *,
        began: Callable[[Task], None] = lambda task: None,
    ) -> Iterator[Outcome]:
        tasks = list(tasks)
        self.asked += [task.what for task in tasks]
        for outcome in self.executor.run(tasks, known, began=began):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield outcome


def untimed(row: Row) -> Row:
    return msgspec.structs.replace(row, solve_seconds=None, first_seconds=None)


def rows(results: Results) -> list[list[Row]]:
    """By curve and budget, without what the clock said."""
    return [
        [untimed(cell.row) for cell in point.cells]
        for curve in results.curves
        for point in curve.points
    ]


def test_points_are_those_of_a_frontier(tmp_path: Path) -> None:
    found = swept(grid(tmp_path, budgets="4 points"), tmp_path / "out", Limits(workers=2))
    questions = read_grid(grid(tmp_path, budgets="4 points"))
    effort = questions.effort
    told = frontier(problem_of(str(LINEAR)), terms(), effort, 4, QUICK)
    assert rows(found) == [[untimed(row) for row in point.rows] for point in told.points]
    assert [p.ram_bytes for p in found.curves[0].points] == [p.ram_bytes for p in told.points]
    assert found.count("found") > found.count("none found") > 0
    assert len(found.cells) == 4 * len(QUICK)
    assert found.surprises == []


def test_listed_budgets_are_those_of_comparisons(tmp_path: Path) -> None:
    budgets = ["1KB", 4000, "80%", "min"]
    path = grid(tmp_path, budgets=budgets, models=[str(LINEAR), str(TRANSFORMER)])
    found = swept(path, tmp_path / "out", Limits(workers=2))
    effort = read_grid(path).effort
    for curve, model in zip(found.curves, (LINEAR, TRANSFORMER), strict=True):
        for point in curve.points[:3]:
            asked = terms(None, point.ram_bytes)
            (told, *_) = [compared(problem_of(str(model)), asked, effort, QUICK)]
            assert [untimed(cell.row) for cell in point.cells] == [untimed(r) for r in told.rows]
        least = curve.points[3].cell("poet")
        assert least is not None
        assert least.row.peak_bytes == curve.points[3].ram_bytes
    assert [cell.outcome for cell in found.curves[0].points[0].cells] == ["infeasible"] * 4
    assert found.curves[0].points[2].ram_bytes == int(0.8 * found.curves[0].keep_all_bytes)


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    path = grid(tmp_path, budgets="3 points")
    whole = swept(path, tmp_path / "whole")
    teams: list[Stopped] = []

    def stopping(answers: int) -> Teams:
        def made(shared: Shared) -> Stopped:
            teams.append(Stopped(shared, answers))
            return teams[-1]

        return made

    total = 1 + 3 * len(QUICK)
    first = sweep(read_grid(path), tmp_path / "out", stopping(9))
    assert first.interrupted
    assert first.count("not asked yet") == total - 9
    assert "interrupted" in page(first, "grid")
    with pytest.raises(KeyboardInterrupt):
        sweep(read_grid(path), tmp_path / "nothing", stopping(0))
    second = sweep(read_grid(path), tmp_path / "out", stopping(total))
    assert not second.interrupted
    assert len(teams[-1].asked) == total - 9
    assert rows(second) == rows(whole)
    again = sweep(read_grid(path), tmp_path / "out", stopping(0))
    assert teams[-1].asked == []
    assert rows(again) == rows(whole)


def test_a_changed_grid_keeps_what_is_the_same_question(tmp_path: Path) -> None:
    asked: list[str] = []

    def told(what: str, done: int, count: int) -> None:
        asked.append(what)

    def new(**said: Any) -> list[str]:
        asked.clear()
        swept(grid(tmp_path, **said), tmp_path / "out", progress=told)
        return [what for what in asked if ": " in what]

    first = {"budgets": ["80%", 5000]}
    assert len(new(**first)) == 2 * len(QUICK)
    assert new(**first) == []
    more = new(budgets=[5000, 6000, "80%"])
    assert len(more) == len(QUICK)
    assert all("5.9 KiB" in what for what in more)
    assert len(new(**first, seed=1)) == 2 * len(QUICK)  # other questions
    assert len(new(**first, deadline="3x")) == 2 * len(QUICK)
    alone = new(**first, methods=["poet", "keep-all"])  # POET without paging to go on from
    assert [what.rpartition(": ")[2] for what in alone] == ["poet", "poet"]
    renamed = tmp_path / "other.json"
    renamed.write_bytes(LINEAR.read_bytes())
    assert new(**first, models=[str(renamed)]) == []


def test_what_is_lost_is_told_and_asked_again_on_request(tmp_path: Path) -> None:
    large = str(INSTANCES / "bert-m4.json")
    said = {"models": [large], "budgets": ["20%"], "methods": ["poet", "keep-all"]}
    path = grid(tmp_path, **said, work_limit=9999)
    limits = Limits(seconds=2.0)
    found = swept(path, tmp_path / "out", limits)
    outcomes = {cell.row.method: cell for cell in found.cells}
    assert outcomes["poet"].outcome == "lost"
    assert "it took more than 2 s, its limit" in outcomes["poet"].row.reason
    assert outcomes["keep-all"].outcome == "none found"
    assert "it took more than 2 s" in as_csv(found)
    assert "it took more than 2 s" in page(found, "grid")
    same = swept(path, tmp_path / "out", Limits(seconds=0.1))
    assert [cell.outcome for cell in same.cells] == [cell.outcome for cell in found.cells]
    again = swept(path, tmp_path / "out", Limits(seconds=0.1), retry=True)
    assert "more than 0.1 s" in again.cells[0].row.reason


def test_tables_have_every_cell(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")

    found = swept(grid(tmp_path, budgets=["1KB", "60%"]), tmp_path / "out")
    told = list(csv.DictReader(io.StringIO(as_csv(found))))
    table = parquet.read_table(io.BytesIO(as_parquet(found)))
    assert table.column_names == list(TYPES) == list(told[0])
    assert len(told) == table.num_rows == 2 * len(QUICK)
    for text, values in zip(told, table.to_pylist(), strict=True):
        for name, value in values.items():
            assert text[name] == ("" if value is None else str(value)), name
        assert text["outcome"] != "found" or float(text["joules"]) > 0
    assert {row["outcome"] for row in told} == {"infeasible", "found", "none found"}


def test_the_command(tmp_path: Path, poet_command: Poet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = grid(tmp_path, budgets=["60%", "1KB"])
    dry = poet_command("sweep", path, "--dry-run")
    assert (dry.code, dry.out.splitlines()[-1]) == (0, "8 cells, a work limit of 1 for each plan")
    assert not (tmp_path / "grid").exists()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = poet_command("sweep", path, "--json")
    assert done.code == 0
    assert "a .parquet needs pyarrow, which is not installed" in done.err
    told = msgspec.json.decode(done.out)
    assert (told["cells"], told["infeasible"], told["lost"]) == (8, 4, 0)
    assert told["files"] == ["grid/results.csv", "grid/index.html"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    done = poet_command("sweep", path)
    assert done.code == 0
    assert (tmp_path / "grid/results.parquet").exists()
    assert done.out.splitlines()[0].split() == [
        "model", "device", "budgets", "POET", "there", "found", "infeasible", "none", "found",
    ]  # fmt: skip
    none = poet_command("sweep", grid(tmp_path, budgets=["1KB"]), "-o", "none")
    assert none.code == 3


def test_a_node_answers_as_this_machine_does() -> None:
    """What a node of a cluster does with a question, done here: it needs no Ray."""
    shared = Shared.of(problem_of(str(LINEAR)), terms())
    asked = Ask(method="dtr", ram_bytes=4000, effort=effort_fields(Effort(work_limit=1)))
    part, question = msgspec.msgpack.encode(shared), msgspec.msgpack.encode(asked)

    def answered(*before: bytes, version: str = poet.__version__) -> Reply:
        data = answer_here(version, "a digest", part, question, list(before), PATIENT, None)
        return msgspec.msgpack.decode(data, type=Reply)

    told = found_row(shared, asked, [], lambda value: None)
    found = msgspec.msgpack.decode(answered().found, type=Found)
    assert untimed(found.row) == untimed(told.row)
    assert found.schedule == told.schedule
    other = msgspec.structs.replace(found, schedule=(*found.schedule, Compute(99)))
    refused = answered(msgspec.msgpack.encode(other)).refused
    assert "does not fit this question" in refused
    with pytest.raises(poet.PoetError, match=r"has POET .*, and 0\.0 asks: install one version"):
        answered(version="0.0")
    end_workers()


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    path = grid(tmp_path, budgets=["60%"])

    def while_it_runs(what: str, done: int, count: int) -> None:
        with pytest.raises(poet.PoetError, match="another sweep writes to"):
            swept(path, tmp_path / "out")

    swept(path, tmp_path / "out", progress=while_it_runs)


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(tmp_path: Path) -> None:
    path = grid(tmp_path, budgets="5 points")
    cells, random = tmp_path / "out/cells", Random(7)
    command = [sys.executable, "-m", "poet", "sweep", str(path), "-o", str(tmp_path / "out")]
    for _ in range(3):
        before = len(list(cells.glob("*.json")))
        running = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENT
        wanted = before + random.randint(1, 4)
        while len(list(cells.glob("*.json"))) < wanted and running.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.002)
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        assert before < len(list(cells.glob("*.json"))) < 1 + 5 * len(QUICK)
    kept = {file: file.stat().st_mtime_ns for file in cells.glob("*.json")}
    found = swept(path, tmp_path / "out")
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert rows(found) == rows(swept(path, tmp_path / "whole"))


WRONG = {
    'models = ["lenett"]': "line 1: models: there is no model named 'lenett'. Did you mean lenet",
    'models = ["lenet"]\ndevices = ["rpi5x"]': "line 2: devices: there is no board named 'rpi5x'",
    'models = ["lenet"': "is not valid TOML",
    'modles = ["lenet"]': "line 1: Object contains unknown field `modles`",
    'models = [{name = "lenet", budget = 1}]': "line 1: models[0]: Object contains unknown field",
    'models = ["lenet"]': "line 1: models: lenet has no costs: give devices",
    "models = []": "line 1: models: there is none; a sweep has at least one model",
    'models = ["none.json"]': "none.json: No such file or directory",
    'models = ["none.py:make"]': "models: there is no file ",
    'models = ["lenet", "lenet"]\ndevices = ["rpi4"]': "models: lenet on rpi4 is asked for twice",
    'models = ["lenet"]\ndevices = ["rpi4", "rpi4"]': "models: lenet on rpi4 is asked for twice",
}
"""What is wrong with a grid, and what is said."""
OF_LINEAR = {
    'budgets = "1 points"': "line 2: budgets: a frontier of 1 points",
    'budgets = ["60%", "12 points"]': "line 2: budgets: '12 points' stands in a list",
    'budgets = ["60%", "12 pots"]': "line 2: budgets: RAM budget '12 pots' is not a size",
    'budgets = ["60%", "60%"]': "line 2: budgets: 60% is asked for twice",
    "budgets = []": "line 2: budgets: there is none",
    "budgets = -5": "line 2: budgets: RAM budget '-5' is not a size",
    'methods = ["poet", "magic"]': "line 2: methods: there is no method 'magic'",
    'methods = ["poet", "poet"]': "line 2: methods: one of them is there twice",
    "methods = []": "line 2: methods: there is none",
    'deadline = "soon"': "line 2: deadline: deadline 'soon' is not a time",
    'optimizer = "sgdd"': "line 2: optimizer: ",
    'transfers = "fast"': "line 2: transfers: Invalid enum value 'fast'",
    'params = "gone"': "line 2: params: Invalid enum value 'gone'",
    "time_limit = -1": "line 2: time_limit: -1.0 is no time",
    "time_limit = nan": "line 2: time_limit: nan is no time",
    "work_limit = -1": "line 2: work_limit: Expected `int` >= 0",
    "seed = 'one'": "line 2: seed: Expected `int`, got `str`; the value is 'one'",
    "threads = 0": "line 2: threads: Expected `int` >= 1",
    "format = 'poet-grid/2'": "line 2: format: Invalid enum value 'poet-grid/2'",
}


@pytest.mark.parametrize("text", [*WRONG, *OF_LINEAR])
def test_a_grid_that_is_wrong_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text if text in WRONG else f"models = ['{LINEAR}']\n{text}\n")
    with pytest.raises(poet.PoetError) as refused:
        read_grid(path)
    message = str(refused.value)
    assert message.startswith(str(path))
    assert {**WRONG, **OF_LINEAR}[text] in message


def test_a_model_has_what_it_says_and_else_what_all_have(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    (tmp_path / "linear.json").write_bytes(LINEAR.read_bytes())
    path.write_text(
        'models = ["lenet", {name = "unet", devices = ["nrf52840"], budgets = [1000], '
        'methods = ["poet"], deadline = "2x", params = "paged"}, "linear.json",\n'
        '{name = "linear.json", devices = ["rpi4"]}]\n'
        'devices = ["rpi4", "rpi5"]\nbudgets = ["50%", "min"]\nmethods = ["poet", "dtr"]\n'
    )
    found = read_grid(path, work_limit=3)
    assert found.effort.work_limit == 3
    assert [(each.model, each.device, each.cells) for each in found.curves] == [
        ("lenet", "rpi4", 4), ("lenet", "rpi5", 4), ("unet", "nrf52840", 1),
        ("linear.json", None, 4), ("linear.json", "rpi4", 4),
    ]  # fmt: skip
    unet = found.curves[2]
    assert (unet.terms.deadline, unet.terms.params) == ("2x", "paged")
    assert (found.curves[0].terms.deadline, found.curves[0].terms.params) == (None, "auto")
    assert isinstance(found, Questions)
    assert found.cells == 17


def test_the_grids_that_are_shown_are_grids(tmp_path: Path) -> None:
    (tmp_path / "instances").symlink_to(INSTANCES)
    (tmp_path / "docs").mkdir()
    (text,) = re.findall(r"^```toml\n(.*?)^```$", SHOWN.read_text(), re.MULTILINE | re.DOTALL)
    shown = tmp_path / "docs/grid.toml"
    shown.write_text(text)
    assert read_grid(shown).cells == (2 * 3 * 12 + 5) * 4
    papers = read_grid(ROOT / "benchmarks/paper.toml")
    captured = [each.cells for each in papers.curves if each.device]
    assert (len(captured), sum(captured)) == (3 * 4, 3 * 4 * 12 * 11)


def test_turns_come_when_answers_are_there() -> None:
    """Against the definition, with random questions, of which some end without an answer."""
    random, met = Random(3), 0
    for _ in range(300):
        count = random.randint(1, 9)
        tasks = [
            Task(k, None, tuple(random.sample([-1, *range(k)], random.randint(0, min(2, k)))))
            for k in range(count)
        ]
        turns = Turns(tasks, {-1: "known"})
        answers: dict[int, str] = {-1: "known"}
        ended = {-1}
        under_way: list[int] = []
        asked: list[int] = []
        while True:
            able = [t for t in tasks if t.key not in asked and ended.issuperset(t.needs)]
            if able and (not under_way or random.random() < 0.5):
                turn = turns.next()
                assert turn is not None
                task, before = turn
                assert task == able[0]
                assert before == [answers[key] for key in task.needs if key in answers]
                met += bool(before)
                asked.append(task.key)
                under_way.append(task.key)
                continue
            if not able:
                assert turns.next() is None
            if not under_way:
                break
            key = under_way.pop(random.randrange(len(under_way)))
            found = None if random.random() < 0.2 else f"answer {key}"
            ended.add(key)
            if found is not None:
                answers[key] = found
            turns.ended(Outcome(key, found, lost="" if found else "gone"))
        assert len(asked) == count
    assert met > 300
    assert in_turn(QUICK)[0] == "paging"
