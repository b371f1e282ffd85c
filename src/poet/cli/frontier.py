"""`poet frontier`: energy against memory, from the smallest budget to keep-all."""

from pathlib import Path
from typing import Annotated

import typer

from poet.cli.console import print_json, progress_bar, say, show_table
from poet.cli.options import (
    CacheFlag,
    CostsOption,
    DeadlineOption,
    DeviceOption,
    ForceFlag,
    JsonFlag,
    MethodsOption,
    ModelArgument,
    OptimizerOption,
    ParamsOption,
    SeedOption,
    ThreadsOption,
    TimeLimitOption,
    TransfersOption,
    asked_problem,
    asked_terms,
)
from poet.planning.compare import COMPARED, comparing
from poet.planning.frontier import Frontier
from poet.planning.frontier import frontier as found_along
from poet.planning.plan import cores
from poet.values.files import check_writable
from poet.values.quantities import bytes_text


def frontier(
    model: ModelArgument,
    device: DeviceOption = None,
    points: Annotated[int, typer.Option(help="Budgets along the curve.", min=2)] = 12,
    deadline: DeadlineOption = None,
    costs: CostsOption = None,
    transfers: TransfersOption = None,
    optimizer: OptimizerOption = None,
    params: ParamsOption = "auto",
    method: MethodsOption = None,
    time_limit: TimeLimitOption = 5.0,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", help="Write .html, .csv, .json, .png or .svg; repeat it."),
    ] = None,
    force: ForceFlag = False,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """Energy against memory for POET and every baseline."""
    from poet.reports.frontier_files import check_kind, write_frontier

    for path in output or []:
        check_kind(path)
        check_writable(path, force)
    asked = asked_terms(model, device, None, deadline, costs, transfers, params)
    problem = asked_problem(model, optimizer, asked, cache)
    effort = comparing(time_limit, threads or cores(), seed)
    with progress_bar() as show:
        found = found_along(problem, asked, effort, points, method or COMPARED, show)
    if found.interrupted:
        say(f"interrupted: {len(found.points)} of {points} budgets were done")
    for path in output or []:
        write_frontier(found, path, force)
    if json:
        print_json(found)
    else:
        _show(found)


def _show(found: Frontier) -> None:
    table = []
    for point in found.points:
        cells = [
            "" if row.joules is None else f"{row.joules / found.keep_all_joules:.2%}"
            for row in point.rows
        ]
        here = "knee" if point is found.knee else ""
        share = point.ram_bytes / found.keep_all_bytes
        table.append([f"{point.ram_bytes:,}", f"{share:.1%}", *cells, here])
    print(f"{found.place}: energy of a step, as a share of keep-all's\n")
    show_table(
        [("RAM bytes", "right"), ("of keep-all", "right"),
         *((name, "right") for name in found.methods), ("", "left")],
        table,
    )  # fmt: skip
    smallest = found.smallest_bytes
    if smallest is not None:
        print(
            f"\nsmallest budget with a schedule: {bytes_text(smallest)}; no schedule can use less "
            f"than {bytes_text(found.floor_bytes)}; keep-all takes "
            f"{bytes_text(found.keep_all_bytes)}"
        )
