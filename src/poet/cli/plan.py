"""`poet plan`: a schedule for a problem under a RAM budget and a deadline."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from poet.baselines import METHODS
from poet.cli.console import PAIRS, complain, planning_line, print_json, show_table, tell
from poet.cli.exit_codes import DONE, OF_STATUS
from poet.cli.options import (
    CacheFlag,
    CostsOption,
    DeadlineOption,
    DeviceOption,
    ForceFlag,
    FuseUpdatesFlag,
    GranularityOption,
    JsonFlag,
    ModelArgument,
    OptimizerOption,
    ParamsOption,
    RamOption,
    SeedOption,
    ThreadsOption,
    TransfersOption,
    as_options,
    asked_problem,
    asked_terms,
)
from poet.errors import PoetError
from poet.planning.defaults import runs_c
from poet.planning.plan import cores, plan_for
from poet.referee.replay import check
from poet.values.files import check_writable, write_json
from poet.values.graph import Graph, printable
from poet.values.plan import Plan, PlanInterrupted, summary
from poet.values.schedule import OPTIMAL_GAP, Effort

_PRINTED = (
    "status", "minimize", "joules", "seconds", "peak_bytes", "bound_joules", "bound_source",
    "bound_any_order_joules", "gap", "solve_seconds", "first_seconds", "baseline_joules",
    "floor_bytes", "solver",
)  # fmt: skip


def plan(
    model: ModelArgument,
    device: DeviceOption = None,
    ram: RamOption = None,
    deadline: DeadlineOption = None,
    costs: CostsOption = None,
    transfers: TransfersOption = None,
    optimizer: OptimizerOption = None,
    granularity: GranularityOption = "planning",
    fuse_updates: FuseUpdatesFlag = False,
    cache: CacheFlag = True,
    params: ParamsOption = "auto",
    no_paging: Annotated[bool, typer.Option("--no-paging", help="Never page.")] = False,
    no_remat: Annotated[bool, typer.Option("--no-remat", help="Never recompute.")] = False,
    minimize: Annotated[
        Literal["joules", "seconds", "bytes"],
        typer.Option(help="What to make small; of bytes, the smallest found."),
    ] = "joules",
    method: Annotated[
        str | None, typer.Option(help=f"Ask one maker alone: {', '.join(METHODS)}.")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds to plan.", min=0.0)] = 60.0,
    gap: Annotated[
        float, typer.Option(help="Stop when the gap is at most this share.", min=0.0)
    ] = OPTIMAL_GAP,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    work_limit: Annotated[
        int | None,
        typer.Option(help="Rounds of work, counted instead of timed: repeats for a seed.", min=0),
    ] = None,
    solver: Annotated[Literal["highs", "gurobi"], typer.Option(help="Of linear programs.")] = (
        "highs"
    ),
    solver_log: Annotated[
        Path | None, typer.Option(help="An existing folder for the solver's logs.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="What C is to be written for (see: poet emit): tensors get addresses."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan here (.json).")
    ] = None,
    force: ForceFlag = False,
    json: JsonFlag = False,
) -> None:
    """Find a schedule for a problem under a RAM budget and a deadline."""
    if output is not None:
        check_writable(output, force)
    if solver_log is not None and not solver_log.is_dir():
        raise PoetError(f"there is no folder {solver_log} for the solver's logs")
    asked = asked_terms(
        model,
        device,
        ram,
        deadline,
        costs,
        transfers,
        params,
        not no_paging,
        not no_remat,
        target,
    )
    problem = asked_problem(model, optimizer, asked, cache, granularity, fuse_updates)
    if asked.costs is None and problem.costs is None:
        _say_estimates(problem.graph)
    if runs_c(asked.board):
        _say_missing(problem.graph)
    with planning_line() as progress:
        effort = Effort(
            time_limit_seconds=time_limit,
            relative_gap=gap,
            threads=threads or cores(),
            seed=seed,
            work_limit=work_limit,
            solver=solver,
            solver_log=None if solver_log is None else str(solver_log),
            progress=progress,
        )
        try:
            found = plan_for(problem, asked, effort, minimize, method)
        except PlanInterrupted as stopped:
            found = stopped.plan
    code = OF_STATUS[found.status]
    if output is not None and code == DONE:
        write_json(found, output, force)
    if json:
        told = {field: getattr(found, field) for field in _PRINTED}
        print_json({**told, "reason": as_options(found.reason), **_wear(found)})
    elif code == DONE:
        from poet.reports.explain import explanation

        rows = [*summary(found), *explanation(found, check(found))]
        if output is not None:
            rows.append(("written to", str(output)))
        show_table(PAIRS, rows)
    else:
        complain(f"{found.status}: {found.reason}")
    raise typer.Exit(code)


def _wear(found: Plan) -> dict[str, Any]:
    """What a step writes to the store, by tensor, and what C needs beside it."""
    from poet.firmware.card.upkeep import known_upkeep

    return {"written_bytes": found.written_by_name, "commit": known_upkeep(found)}


def _say_estimates(graph: Graph) -> None:
    """Name the calls whose cost is a guess."""
    from poet.costs.analytic import estimated_kinds

    kinds = estimated_kinds(graph)
    if kinds:
        text = ", ".join(f"{printable(kind)} ({count} calls)" for kind, count in kinds.items())
        tell(f"note: no table has the FLOPs of {text}; estimated from their bytes")


def _say_missing(graph: Graph) -> None:
    """Name the calls that keep a plan from becoming C, all of them before time is spent on it."""
    from poet.firmware.missing import missing_kernels, missing_text

    found = missing_kernels(graph)
    if found:
        tell(f"note: {missing_text(found, 'the plan will not become C (poet emit)')}")
