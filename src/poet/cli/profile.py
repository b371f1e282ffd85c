"""`poet profile`: what every op of a model takes on this machine."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from poet.cli.console import PAIRS, print_json, progress_bar, say, show_table
from poet.cli.options import (
    CacheFlag,
    ForceFlag,
    FuseUpdatesFlag,
    GranularityOption,
    JsonFlag,
    TrainedModelArgument,
)
from poet.errors import PoetError
from poet.planning.defaults import HERE, OPTIMIZER, SMALL_OPTIMIZER
from poet.values.files import check_writable, write_json
from poet.values.optimizers import parse_optimizer

_NOISY = 0.3
_ROWS = 12


class ProfileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints; the file has all of it."""

    graph: str
    machine: str
    ops: int
    repeats: int
    step_seconds: float
    step_low_seconds: float
    step_high_seconds: float
    analytic_seconds: float
    page_in_bytes_per_second: float
    page_out_bytes_per_second: float
    compute_watts: float
    energy: str


def profile(
    model: TrainedModelArgument,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the profile here (.json).")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="host, this machine's CPU; cuda, its GPU; or a board (see: poet emit), whose "
            "kernels are counted in the emulator."
        ),
    ] = "host",
    taken: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="What a board itself measured: the log of firmware built with -DPOET_PROFILE, or "
            "a table of op,ticks or op,microseconds. MODEL is its plan.",
        ),
    ] = None,
    ticks: Annotated[
        float | None,
        typer.Option(
            "--ticks-per-second", help="Of the board's counter. Default: its clock.", min=1.0
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="The folder for pages to measure. Default: this one; cuda: host memory."),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="none, sgd, adam, adamw?weight_decay=0.1: as for what uses it. "
            f"Default: {OPTIMIZER}; {SMALL_OPTIMIZER} for a microcontroller."
        ),
    ] = None,
    granularity: GranularityOption = "planning",
    fuse_updates: FuseUpdatesFlag = False,
    seconds: Annotated[float, typer.Option(help="About how long to repeat steps.", min=0.1)] = 20.0,
    power: Annotated[
        str | None,
        typer.Option(help=f"The board whose watts to take where no counter is. Default: {HERE}."),
    ] = None,
    cache: CacheFlag = True,
    force: ForceFlag = False,
    json: JsonFlag = False,
) -> None:
    """Measure every op of a model on this machine, or a board, for poet plan --costs."""
    if output is not None:
        check_writable(output, force)
    if device not in ("host", "cuda"):
        from poet.cli.board_profile import profile_board

        profile_board(
            model, device, taken, ticks, optimizer, cache=cache, output=output, force=force,
            json=json,
        )  # fmt: skip
        return
    if taken is not None or ticks is not None:
        raise PoetError('--from and --ticks-per-second are for a board: give device="nrf52840"')
    chosen = parse_optimizer(optimizer or OPTIMIZER)
    from poet.profiling.measuring import profile as measured
    from poet.tracer.by_name import capture_named

    program = capture_named(
        model,
        chosen,
        granularity=granularity,
        fuse_updates=fuse_updates,
        cache=cache,
        on="cuda" if device == "cuda" else "cpu",
    )
    with progress_bar() as show:

        def progress(what: str, done: int, count: int) -> None:
            show(f"measuring {what}", done, count)

        found = measured(program, store=store, seconds=seconds, power=power, progress=progress)
    if output is not None:
        write_json(found, output, force)
    if found.step.spread > _NOISY:
        say(
            f"steps took between {found.step.low_seconds:.3g} and "
            f"{found.step.high_seconds:.3g} s: something else was running, or the clock changes. "
            "Measure again on an idle machine."
        )
    from poet.costs.analytic import analytic

    if json:
        here = found.device
        summary = ProfileSummary(
            graph=program.graph.name,
            machine=found.machine,
            ops=len(found.ops),
            repeats=found.repeats,
            step_seconds=found.step.seconds,
            step_low_seconds=found.step.low_seconds,
            step_high_seconds=found.step.high_seconds,
            analytic_seconds=analytic(program.graph, here).keep_all_seconds,
            page_in_bytes_per_second=here.page_in_bytes_per_second,
            page_out_bytes_per_second=here.page_out_bytes_per_second,
            compute_watts=here.compute_watts,
            energy=found.energy,
        )
        print_json(summary)
        return
    from poet.reports import profile_tables as tables

    show_table(PAIRS, tables.profile_rows(found, program.graph))
    print()
    show_table(
        [("slowest ops", "left"), ("kind", "left"), ("ms", "right"), ("of the step", "right"),
         ("spread", "right"), ("outliers", "right"), ("workspace", "right")],
        tables.op_rows(found, program.graph, _ROWS),
    )  # fmt: skip
    print()
    show_table(
        [("kind", "left"), ("ops", "right"), ("ms", "right"), ("of the step", "right"),
         ("by rates ms", "right"), ("by rates ÷ measured", "right")],
        tables.judged_rows(tables.judged(program.graph, found.costs, found.device)),
    )  # fmt: skip
