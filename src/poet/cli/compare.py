"""`poet compare`: POET beside the baselines people know, on one problem."""

import msgspec
import typer

from poet.cli.console import print_json, progress_bar, say, show_table
from poet.cli.exit_codes import INFEASIBLE, NOTHING_FOUND
from poet.cli.options import (
    CacheFlag,
    CostsOption,
    DeadlineOption,
    DeviceOption,
    JsonFlag,
    MethodsOption,
    ModelArgument,
    OptimizerOption,
    ParamsOption,
    RamOption,
    SeedOption,
    ThreadsOption,
    TimeLimitOption,
    TransfersOption,
    as_options,
    asked_problem,
    asked_terms,
)
from poet.planning.compare import (
    COMPARED,
    Comparison,
    compared,
    comparing,
    place,
    surprises,
)
from poet.planning.plan import cores
from poet.planning.rows import Row
from poet.planning.solve import PLANNER
from poet.values.quantities import amount_text, bytes_text, short_bytes_text


def compare(
    model: ModelArgument,
    device: DeviceOption = None,
    ram: RamOption = None,
    deadline: DeadlineOption = None,
    costs: CostsOption = None,
    transfers: TransfersOption = None,
    optimizer: OptimizerOption = None,
    params: ParamsOption = "auto",
    method: MethodsOption = None,
    time_limit: TimeLimitOption = 20.0,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """POET and every baseline on one problem, in one table."""
    asked = asked_terms(model, device, ram, deadline, costs, transfers, params)
    problem = asked_problem(model, optimizer, asked, cache)
    effort = comparing(time_limit, threads or cores(), seed)
    with progress_bar() as show:
        found = compared(problem, asked, effort, method or COMPARED, show)
    if json:
        told = [msgspec.structs.replace(r, reason=as_options(r.reason)) for r in found.rows]
        print_json({"rows": told})
    else:
        _show(found)
    if found.interrupted:
        say(f"interrupted: {len(found.rows)} of {len(method or COMPARED)} methods were done")
    for text in surprises(found.rows):
        say(text)
    if not any(row.joules is not None for row in found.rows):
        proven = any(row.status == "infeasible" for row in found.rows)
        raise typer.Exit(INFEASIBLE if proven else NOTHING_FOUND)


def _show(found: Comparison) -> None:
    graph, costs, budget = found.asked[:3]
    limit = budget.ram_bytes
    text = "no limit on RAM" if limit is None else f"{bytes_text(limit)} of RAM"
    print(f"{place(graph.name, costs.device)}, {text}, {budget.transfers} transfers\n")
    show_table(
        [("method", "left"), ("energy", "right"), ("of keep-all", "right"), ("time", "right"),
         ("RAM peak", "right"), ("recomputed", "right"), ("paged", "right"), ("solved in", "right"),
         ("", "left")],
        [_cells(row) for row in found.rows],
    )  # fmt: skip


def _cells(row: Row) -> list[str]:
    if row.joules is None:
        why = as_options(row.reason.partition(". ")[0]).removeprefix(f"{row.method}: ")
        return [row.method, row.status, *[""] * 6, why]
    share = row.joules / row.baseline_joules if row.baseline_joules else 1.0
    note = ""
    if row.method == PLANNER and row.gap is not None:
        note = f"within {row.gap:.2%} of the best in this op order ({row.bound_source})"
    return [
        row.method, amount_text(row.joules, "J"), f"{share:.2%}",
        amount_text(row.seconds or 0.0, "s"), short_bytes_text(row.peak_bytes or 0),
        str(row.recomputed), short_bytes_text(row.paged_bytes or 0),
        f"{row.solve_seconds or 0.0:.2f} s", note,
    ]  # fmt: skip
