"""Uses: all that a person can do with a file, kind by kind.

Each reads the file where it lies, and writes what it makes into `out`. It either ends, or raises.
The dear ones (planning, C, steps in PyTorch) come to a share of the mutants, by the generator's
word.
"""

import contextlib
import io
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import torch

import poet
from benchmarks.fuzz.good import (
    KEY,
    PAGE,
    ROOT,
    Surroundings,
    asked_of_instance,
    batch,
    step,
    written_page,
)
from benchmarks.fuzz.mutations import MARK
from poet.baselines import METHODS
from poet.cli.card import export
from poet.cli.report import read_rows
from poet.devices import find_device
from poet.errors import PoetError
from poet.firmware.card.initial import samples_from, weights_from
from poet.firmware.emit import emit
from poet.firmware.emulate.comparison import compare_card
from poet.firmware.emulate.emulation import _ask_for
from poet.firmware.write.folder import read_firmware, write_again
from poet.planning.problem import read_costs
from poet.planning.rows import found_row
from poet.referee.replay import check
from poet.reports import profile_tables
from poet.reports.explain import complaints, explanation, report_rows
from poet.reports.frontier_files import STYLES
from poet.reports.page.page import page
from poet.reports.page.view import look_at
from poet.runtime.session import Session
from poet.runtime.state.checkpoints import Origin
from poet.runtime.state.generations import Generations
from poet.runtime.stores.memory_store import MemoryStore
from poet.sweeps.curves import curves_of
from poet.sweeps.folder import Kept
from poet.sweeps.grid import read_grid
from poet.sweeps.page import page as sweep_page
from poet.sweeps.results import CurveResults, Point, Results, cell_of
from poet.sweeps.tables import as_csv
from poet.tracer import cache
from poet.tracer.fitting import misfit
from poet.tracer.layout import Layout
from poet.tracer.private_folder import private_folder
from poet.tracer.program import Program
from poet.training.resuming import check_rates, go_on_from, kept_plan
from poet.values.board_profile import BoardProfile
from poet.values.device import Costs, Device
from poet.values.files import read_json, write_json, write_text
from poet.values.graph import Graph
from poet.values.plan import Plan
from poet.values.profile import Profile


class Here(NamedTuple):
    """Where a mutant is used: its file or folder, a place for what is made, and with whom."""

    path: Path
    out: Path
    chance: Random
    with_: Surroundings
    is_mutant: bool
    deep: list[str]
    """The dear things that were done, by name."""
    made: set[str]
    """What was written, whole."""

    def dear(self, name: str, share: float) -> bool:
        """Whether to do one of them: with a good file always."""
        if not self.is_mutant or self.chance.random() < share:
            self.deep.append(name)
            return True
        return False

    def write(self, name: str, content: str | msgspec.Struct) -> None:
        if isinstance(content, str):
            write_text(content, self.out / name)
        else:
            write_json(content, self.out / name)
        self.made.add(name)


def plan_file(here: Here) -> None:
    plan = read_json(here.path, Plan)
    report = check(plan)
    str(plan)
    complaints(here.path, plan, report)
    explanation(plan, report)
    report_rows(plan, report)
    here.write("again.json", plan)
    if here.dear("report", 0.3):
        text = page(look_at(plan))
        _check_page(text)
        here.write("report.html", text)


def captured_plan(here: Here) -> None:
    plan_file(here)
    if here.dear("train", 0.8):
        _train(here.with_.fresh_program(), read_json(here.path, Plan))


def plan_for_c(here: Here) -> None:
    plan_file(here)
    if here.dear("emit", 0.5):
        emit(read_json(here.path, Plan), here.out / "firmware", samples=1, steps=1)
        _check_c(here.out / "firmware")
        shutil.rmtree(here.out / "firmware")


def problem(here: Here) -> None:
    """A graph or an instance: planned by one method, a good one by all there are."""
    methods = [here.chance.choice(list(METHODS))] if here.is_mutant else METHODS
    device = here.with_.board if here.chance.random() < 0.9 or not here.is_mutant else None
    ram = here.chance.choice(["60%", "min", 4000, 10**6, None])
    for method in methods:
        plan = poet.plan(str(here.path), device, ram, method=method, time_limit=0.2, threads=1)
        here.write(f"{method}.json", plan)
    if here.dear("search", 0.05):
        poet.plan(str(here.path), device, ram, time_limit=0.2, threads=1)


def device_file(here: Here) -> None:
    board = find_device(str(here.path))
    plan = poet.plan(here.with_.small, board, "80%", method="paging-greedy")
    here.write("plan.json", plan)


def costs_file(here: Here) -> None:
    costs, graph = read_costs(here.path), here.with_.plan.graph
    if not isinstance(costs, Profile):
        here.write("plan.json", _planned(graph, here.with_.board, costs))
        return
    plan = _planned(graph, None, costs)
    profile_tables.profile_rows(costs, graph)
    profile_tables.op_rows(costs, graph, 5)
    profile_tables.judged_rows(profile_tables.judged(graph, costs.costs, costs.device))
    here.write("plan.json", plan)


def _planned(graph: Graph, board: Device | None, costs: Costs | Profile | BoardProfile) -> Plan:
    return poet.plan(graph, board, "80%", costs=costs, method="paging-greedy")


def comparison(here: Here) -> None:
    text = page(look_at(here.with_.plan, read_rows(here.path)))
    _check_page(text)
    here.write("report.html", text)


def grid(here: Here) -> None:
    """A grid's questions, as they would be asked."""
    questions = read_grid(here.path)
    if here.dear("questions", 0.3):
        _, curves = curves_of(questions)
        for curve in curves[:3]:
            if not curve.has_ends:
                curve.tasks(curve.budgets(None), None)
            else:
                curve.least()


def cell(here: Here) -> None:
    """An answer that was kept: in tables, on a page, and for others to go on from."""
    kept = read_json(here.path, Kept)
    shared, asked = asked_of_instance(ROOT / "instances/linear-m4.json", 5000)
    row = cell_of(asked, kept)
    point = Point(budget="5000", ram_bytes=5000, cells=(row,))
    curve = CurveResults(
        model="m", device="d", graph="g", costs="c", transfers="free", methods=(row.row.method,),
        keep_all_bytes=7416, keep_all_joules=4.5e-4, points=(point,),
    )  # fmt: skip
    results = Results(curves=(curve,))
    here.write("results.csv", as_csv(results))
    if row.row.method in STYLES:
        text = sweep_page(results, "a sweep")
        _check_page(text)
        here.write("index.html", text)
    if kept.found is not None and here.dear("go on from it", 0.6):
        found_row(shared, asked, [kept.found], lambda value: None)
        beginning = msgspec.structs.replace(asked, method="poet", starts=(kept.found,))
        found_row(shared, beginning, [], lambda value: None)


def weights(here: Here) -> None:
    """A file may be good as weights or as samples."""
    graph = here.with_.small
    _one_of(
        lambda: weights_from(graph, here.path, 0),
        lambda: samples_from(graph, here.path),
    )


def _one_of(*uses: Callable[[], object], every: bool = False) -> None:
    """Do all of them, and raise the first refusal if all refuse, or, where `every` is to, one."""
    refusals = []
    for use in uses:
        try:
            use()
        except PoetError as error:
            refusals.append(error)
    if refusals and (every or len(refusals) == len(uses)):
        raise refusals[0]


def checkpoint(here: Here) -> None:
    trainer = here.with_.trainer
    trainer.load(here.path)
    if here.dear("train", 0.2):
        _step(lambda: trainer.step(*batch()))


def checkpoint_folder(here: Here) -> None:
    trainer = here.with_.trainer
    with Generations(here.path) as folder:
        found = go_on_from(folder, True, Origin(), lambda text: None)
        if found is None:
            return
        plan = kept_plan(found, Origin())
        trainer.check_fits(found)
        check_rates(found, trainer.learning_rates)
        trainer.load(found)
        if plan is not None and here.dear("train", 0.2):
            _train(here.with_.fresh_program(), plan)


def capture(here: Here) -> None:
    """A layout in the cache, under a good HMAC or none."""
    name, content = KEY + cache.SUFFIX, here.path.read_bytes()
    with private_folder(cache.folder(), make=True) as kept:
        kept.write(name, content)
    if here.is_mutant and here.chance.random() < 0.1:
        (cache.folder() / name).write_bytes(content)
    found = cache.find(KEY)
    if found is None:
        raise PoetError("traced anew")
    rows = found.rewritten("planning", fuse_updates=here.chance.random() < 0.3).graph
    poet.plan(rows, here.with_.board, method="keep-all")
    why = misfit(found, step(), 1)
    if why is not None:
        raise PoetError(why)
    if here.dear("train", 1):
        _step(lambda: _run_kept(here, found))


def _run_kept(here: Here, found: Layout) -> None:
    program = here.with_.fresh_program(found)
    _train(program, poet.plan(program, here.with_.board, method="keep-all"))


def firmware_folder(here: Here) -> None:
    folder = here.path
    str(read_firmware(folder).fragmentation)
    _one_of(
        lambda: compare_card(folder),
        lambda: _export(here),
        lambda: _ask_for(folder / "card.img", 3),
        every=True,
    )
    if here.dear("emit again", 0.4):
        with tempfile.TemporaryDirectory() as home:
            write_again(folder, Path(home))
            _check_c(Path(home))


def page_file(here: Here) -> None:
    """A page that changed on disk: it comes back as it was, or not at all."""
    with written_page(Path("pages")) as store:
        with open(store.path, "r+b") as file:
            file.truncate()
            file.write(here.path.read_bytes())
        back = torch.zeros(len(PAGE), dtype=torch.uint8)
        store.read(0, back.untyped_storage()).wait()
        if bytes(back.tolist()) != PAGE:
            raise AssertionError("a damaged page came back")


def _export(here: Here) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        export(here.path, here.out / "weights.safetensors")
    here.made.add("weights.safetensors")


def _train(program: Program, plan: Plan) -> None:
    """A step under a plan, as a trainer takes it."""
    with contextlib.closing(MemoryStore(2**28)) as store:
        session = Session(program, plan, store)
        executor = session.executor()
        assert executor is not None
        session.run(executor, batch())


def _step(take: Callable[[], Any]) -> None:
    """As `poet train` has it: whatever a step raises becomes one message."""
    try:
        take()
    except (PoetError, MemoryError):
        raise
    except Exception as error:
        raise PoetError(f"the step failed: {type(error).__name__}: {error}") from error


def _check_page(text: str) -> None:
    if f"<script>{MARK}" in text:
        raise AssertionError("a name became a script of the page")


def _check_c(folder: Path) -> None:
    """Names of the graph may stand in comments of C, and nowhere else."""
    for file in folder.glob("*.[ch]"):
        first, *rest = file.read_text().split("/*")
        for part in (first, *(each.partition("*/")[2] for each in rest)):
            if MARK in part:
                raise AssertionError(f"a name stands outside of comments in {file.name}")


KINDS: dict[str, tuple[int, Callable[[Here], None]]] = {
    "plan of an instance": (10, plan_file),
    "captured plan": (14, captured_plan),
    "plan for C": (14, plan_for_c),
    "graph": (12, problem),
    "instance": (8, problem),
    "device": (6, device_file),
    "costs": (4, costs_file),
    "profile": (5, costs_file),
    "comparison": (3, comparison),
    "grid": (6, grid),
    "cell": (6, cell),
    "weights": (5, weights),
    "checkpoint": (7, checkpoint),
    "checkpoint folder": (4, checkpoint_folder),
    "capture": (10, capture),
    "page file": (3, page_file),
    "firmware folder": (8, firmware_folder),
}
"""How many of a hundred mutants or so are of each kind, and what is done with them."""
