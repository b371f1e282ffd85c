"""`poet compare` and `poet frontier`: POET beside the baselines people know."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from poet.cli.models import CacheFlag, JsonFlag, progress_bar
from poet.errors import PoetError
from poet.planning.compare import COMPARED, Row, comparing, place, plans_of, row_of, surprises
from poet.planning.frontier import Frontier, frontier
from poet.planning.plan import Question, cores, question
from poet.planning.problems import read_costs, read_problem
from poet.planning.solve import PLANNER
from poet.values.files import check_writable
from poet.values.quantities import amount_text, bytes_text, short_bytes_text
from poet.values.schedule import Effort, Params

if TYPE_CHECKING:
    from rich.console import Console

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A model (see: poet models), your_file.py:function, an instance or graph .json."
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="A board (see: poet devices) or your own .toml.")
]
DeadlineOption = Annotated[
    str | None, typer.Option(help="20s, or 1.5x the unconstrained step. Default: none.")
]
CostsOption = Annotated[
    Path | None, typer.Option(help="Measured costs (poet profile), or costs of a graph (.json).")
]
TransfersOption = Annotated[
    Literal["serial", "overlap", "free"] | None,
    typer.Option(help="How transfers take time. Default: as the device; instances: free."),
]
OptimizerOption = Annotated[
    str, typer.Option(help="Of a captured model: none, sgd, adam, adamw?weight_decay=0.1.")
]
ParamsOption = Annotated[
    Params,
    typer.Option(
        help="Parameters and state between steps: in RAM, in the store, or there and read in tiles."
    ),
]
MethodOption = Annotated[
    list[str] | None, typer.Option(help=f"Only these; repeat it: {', '.join(COMPARED)}.")
]
TimeLimitOption = Annotated[float, typer.Option(help="Seconds for each plan.", min=0.0)]
ThreadsOption = Annotated[int | None, typer.Option(help="Default: all cores.", min=1)]
SeedOption = Annotated[int, typer.Option(help="Of the search.", min=0)]


def compare_command(
    model: ModelArgument,
    device: DeviceOption = None,
    ram: Annotated[
        str | None, typer.Option(help="RAM budget: 300000, 500KB, 256KiB. Default: the board's.")
    ] = None,
    deadline: DeadlineOption = None,
    costs: CostsOption = None,
    transfers: TransfersOption = None,
    optimizer: OptimizerOption = "sgd",
    params: ParamsOption = "resident",
    method: MethodOption = None,
    time_limit: TimeLimitOption = 20.0,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """POET and every baseline on one problem, in one table."""
    asked = _question(model, device, ram, deadline, costs, transfers, optimizer, params, cache)
    effort = _effort(time_limit, threads, seed)
    methods = tuple(method or COMPARED)
    with progress_bar() as show:
        done = 0

        def progress(name: str) -> None:
            nonlocal done
            show(name, done, len(methods))
            done += 1

        plans = plans_of(asked, effort, methods, progress=progress)
    rows = [row_of(name, plan) for name, plan in plans.items()]
    if json:
        print(msgspec.json.encode({"rows": rows}).decode())
    else:
        _print_rows(asked, rows)
    for text in surprises(rows):
        print(f"poet: {text}", file=sys.stderr)
    if not any(row.joules is not None for row in rows):
        raise typer.Exit(3 if any(row.status == "infeasible" for row in rows) else 4)


def frontier_command(
    model: ModelArgument,
    device: DeviceOption = None,
    points: Annotated[int, typer.Option(help="Budgets along the curve.", min=2)] = 12,
    deadline: DeadlineOption = None,
    costs: CostsOption = None,
    transfers: TransfersOption = None,
    optimizer: OptimizerOption = "sgd",
    params: ParamsOption = "resident",
    method: MethodOption = None,
    time_limit: TimeLimitOption = 5.0,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", help="Write .html, .csv, .json, .png or .svg; repeat it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the outputs.")] = False,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """Energy against memory for POET and every baseline."""
    from poet.reports.frontier_files import check_kind, write_frontier

    for path in output or []:
        check_kind(path)
        check_writable(path, force)
    asked = _question(model, device, None, deadline, costs, transfers, optimizer, params, cache)
    effort = _effort(time_limit, threads, seed)
    with progress_bar() as show:
        found = frontier(asked, effort, points, tuple(method or COMPARED), show)
    for path in output or []:
        write_frontier(found, path, force)
    if json:
        print(msgspec.json.encode(found).decode())
        return
    _print_frontier(found)


def _question(
    model: str,
    device: str | None,
    ram: str | None,
    deadline: str | None,
    costs: Path | None,
    transfers: Literal["serial", "overlap", "free"] | None,
    optimizer: str,
    params: Params,
    cache: bool,
) -> Question:
    if device is None and costs is None and not model.endswith(".json"):
        raise PoetError(f"{model} has no costs: give a device (--device rpi4; see poet devices)")
    if device is not None:
        from poet.devices import find_device

        find_device(device)  # before a capture takes its time
    fuse = params == "streamed" and costs is None
    problem = read_problem(model, optimizer, fuse_updates=fuse, cache=cache)
    return question(
        problem,
        device,
        ram,
        deadline,
        costs=None if costs is None else read_costs(costs),
        transfers=transfers,
        params=params,
    )


def _effort(time_limit: float, threads: int | None, seed: int) -> Effort:
    return comparing(time_limit, threads or cores(), seed)


def _print_rows(asked: Question, rows: list[Row]) -> None:
    from poet.reports.tables import print_table

    budget = asked.budget.ram_bytes
    text = "no limit on RAM" if budget is None else f"{bytes_text(budget)} of RAM"
    where, transfers = place(asked.graph.name, asked.costs.device), asked.budget.transfers
    print(f"{where}, {text}, {transfers} transfers\n")
    table = []
    for row in rows:
        if row.joules is None:
            why = _first_sentence(row.reason).removeprefix(f"{row.method}: ")
            table.append([row.method, row.status, *[""] * 6, why])
            continue
        share = row.joules / row.baseline_joules if row.baseline_joules else 1.0
        table.append([
            row.method, amount_text(row.joules, "J"), f"{share:.2%}",
            amount_text(row.seconds or 0.0, "s"), _short(row.peak_bytes), str(row.recomputed),
            _short(row.paged_bytes), f"{row.solve_seconds or 0.0:.2f} s", _note(row),
        ])  # fmt: skip
    print_table(
        _console(),
        [("method", "left"), ("energy", "right"), ("of keep-all", "right"), ("time", "right"),
         ("RAM peak", "right"), ("recomputed", "right"), ("paged", "right"), ("solved in", "right"),
         ("", "left")],
        table,
    )  # fmt: skip


def _note(row: Row) -> str:
    if row.method == PLANNER and row.gap is not None:
        return f"within {row.gap:.2%} of the best possible ({row.bound_source})"
    return ""


def _print_frontier(found: Frontier) -> None:
    from poet.reports.tables import print_table

    table = []
    knee = found.knee
    for point in found.points:
        cells = [
            "" if row.joules is None else f"{row.joules / found.keep_all_joules:.2%}"
            for row in point.rows
        ]
        here = "knee" if knee is not None and point is knee else ""
        share = point.ram_bytes / found.keep_all_bytes
        table.append([f"{point.ram_bytes:,}", f"{share:.1%}", *cells, here])
    print(f"{found.place}: energy of a step, as a share of keep-all's\n")
    print_table(
        _console(),
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


def _short(nbytes: int | None) -> str:
    return "" if nbytes is None else short_bytes_text(nbytes)


def _first_sentence(reason: str) -> str:
    return reason.partition(". ")[0]


def _console() -> "Console":
    from rich.console import Console

    return Console()
