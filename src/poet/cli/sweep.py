"""`poet sweep`: a grid of plans, on this machine or a Ray cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poet.cli.console import print_json, progress_bar, say, show_table, tell
from poet.cli.exit_codes import INFEASIBLE, NOTHING_FOUND
from poet.cli.options import CacheFlag, JsonFlag
from poet.errors import MissingPackage
from poet.planning.executor import Executor, Limits
from poet.planning.plan import cores
from poet.planning.rows import Shared, found_row
from poet.planning.solve import PLANNER
from poet.values.files import write_text
from poet.values.quantities import parse_bytes, short_bytes_text

if TYPE_CHECKING:
    from poet.sweeps.grid import Questions
    from poet.sweeps.results import CurveResults, Outcome, Results
    from poet.sweeps.running import Teams


def sweep(
    grid: Annotated[Path, typer.Argument(help="A grid .toml: docs/sweeps.md says what is in it.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A folder for the results. Default: the grid's name."),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Ask the Ray cluster that RAY_ADDRESS names.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the grid and count its cells.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Ask again what was lost.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Cells at once. Default: one a core.", min=1)
    ] = None,
    cell_seconds: Annotated[
        float | None, typer.Option(help="A cell that takes longer is lost.", min=0.0)
    ] = None,
    cell_memory: Annotated[
        str | None, typer.Option(help="A cell that takes more memory is lost: 4GiB.")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds for each plan. Default: the grid's.", min=0.0)
    ] = None,
    work_limit: Annotated[
        int | None,
        typer.Option(help="Rounds of work, counted instead of timed: repeats for a seed.", min=0),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the searches.", min=0)] = None,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """Models × devices × budgets × methods: every cell of a grid, in tables and on a page."""
    from poet.sweeps.grid import read_grid
    from poet.sweeps.results import OUTCOMES
    from poet.sweeps.running import sweep as swept

    questions = read_grid(grid, time_limit, work_limit, seed)
    if dry_run:
        _show_questions(questions, json)
        return
    folder = output or Path(grid.stem)
    limits = Limits(
        workers=workers or max(1, cores() // questions.effort.threads),
        seconds=cell_seconds,
        ram_bytes=None if cell_memory is None else parse_bytes(cell_memory, "cell_memory"),
    )
    with progress_bar() as show:
        team = _cluster(limits, questions) if ray else _workers(limits)
        found = swept(questions, folder, team, show, cache, retry)
    written = _write(found, folder, grid.stem)
    counts = {outcome: found.count(outcome) for outcome in OUTCOMES}
    if json:
        figures = {outcome.replace(" ", "_"): count for outcome, count in counts.items()}
        print_json({"cells": len(found.cells), **figures, "files": written})
    else:
        _show(found, counts)
    for path in written:
        tell(f"wrote {path}")
    if found.interrupted:
        count, done = len(found.cells), len(found.cells) - counts["not asked yet"]
        say(f"interrupted: {done:,} of {count:,} cells are kept; the same command goes on")
    for text in found.surprises:
        say(text)
    if not counts["found"]:
        raise typer.Exit(INFEASIBLE if counts["infeasible"] else NOTHING_FOUND)


def _workers(limits: Limits) -> "Teams":
    return lambda shared: Executor(found_row, shared, limits)


def _cluster(limits: Limits, questions: "Questions") -> "Teams":
    from poet.sweeps.on_ray import RayTeam

    def team(shared: Shared) -> RayTeam:
        return RayTeam(shared, limits, questions.effort.threads)

    return team


def _show_questions(questions: "Questions", json: bool) -> None:
    if json:
        curves = [
            {"model": each.model, "device": each.device, "budgets": each.budgets,
             "methods": each.methods, "cells": each.cells}
            for each in questions.curves
        ]  # fmt: skip
        print_json({"cells": questions.cells, "curves": curves})
        return
    show_table(
        [("model", "left"), ("device", "left"), ("budgets", "right"), ("methods", "right"),
         ("cells", "right")],
        [
            [each.model, each.device or "its own costs", _budgets_text(each.points, each.budgets),
             str(len(each.methods)), f"{each.cells:,}"]
            for each in questions.curves
        ],
    )  # fmt: skip
    effort = questions.effort
    each = (
        f"{effort.time_limit_seconds:g} s for each plan"
        if effort.work_limit is None
        else f"a work limit of {effort.work_limit:,} for each plan"
    )
    print(f"\n{questions.cells:,} cells, {each}")


def _budgets_text(points: int | None, budgets: int) -> str:
    return f"{budgets} listed" if points is None else f"{points} points"


def _write(found: "Results", folder: Path, name: str) -> list[str]:
    """The tables and the page, whichever can be written here."""
    from poet.sweeps.page import page
    from poet.sweeps.tables import as_csv, as_parquet

    written = []
    for file, made in (
        ("results.csv", lambda: as_csv(found)),
        ("results.parquet", lambda: as_parquet(found)),
        ("index.html", lambda: page(found, name)),
    ):
        try:
            write_text(made(), folder / file, force=True)
        except MissingPackage as error:
            say(str(error))
            continue
        written.append(str(folder / file))
    return written


def _show(found: "Results", counts: "dict[Outcome, int]") -> None:
    shown = [outcome for outcome, count in counts.items() if count]
    show_table(
        [("model", "left"), ("device", "left"), ("budgets", "right"), ("POET there", "right"),
         *((outcome, "right") for outcome in shown), ("", "left")],
        [
            [curve.model, curve.device or "its own costs", *_at_least(curve),
             *(str(curve.count(outcome)) for outcome in shown), curve.trouble]
            for curve in found.curves
        ],
    )  # fmt: skip


def _at_least(curve: "CurveResults") -> list[str]:
    """The budgets, and what POET takes at the smallest with a schedule of it."""
    if not curve.points:
        return ["", ""]
    points = sorted(curve.points, key=lambda each: each.ram_bytes)
    sizes = [short_bytes_text(points[at].ram_bytes) for at in (0, -1)]
    text = sizes[0] if sizes[0] == sizes[1] else f"{sizes[0]} to {sizes[1]}"
    for point in points:
        cell = point.cell(PLANNER)
        if cell is not None and cell.row.joules is not None and curve.keep_all_joules:
            return [text, f"{cell.row.joules / curve.keep_all_joules:.2%}"]
    return [text, ""]
