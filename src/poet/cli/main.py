"""The command line: parses, calls one function, prints.

With `--json` stdout gets one object and nothing else; errors and talk go to stderr. Exit codes: 0
done, 2 wrong usage or bad input, 3 proven infeasible, 4 nothing found in the time given, 5 a check
failed, 130 interrupted with nothing.
"""

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import msgspec
import typer

import poet
from poet.baselines import METHODS
from poet.cli.card import card
from poet.cli.compare import compare_command, frontier_command
from poet.cli.emit import emit
from poet.cli.emulate import emulate
from poet.cli.models import CHECK_FAILED, CacheFlag, JsonFlag, models
from poet.cli.profile import profile
from poet.cli.report import report
from poet.cli.train import train
from poet.devices import device_names, find_device
from poet.errors import PoetError
from poet.planning.problems import read_costs, read_problem
from poet.referee.replay import check
from poet.values.files import check_writable, read_json, write_json
from poet.values.graph import Graph, printable
from poet.values.instances import Instance
from poet.values.plan import Plan, summary
from poet.values.quantities import amount_text, bytes_text
from poet.values.schedule import OPTIMAL_GAP, Params, Progress, Status

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="poet",
    add_completion=False,
    rich_markup_mode="rich" if sys.stdout and sys.stdout.isatty() else None,
    help="Plan neural-network training in little memory, at the least energy.",
)


_PLAN_EXIT: dict[Status, int] = {"optimal": 0, "feasible": 0, "infeasible": 3, "unknown": 4}
_PLAN_FIELDS = (
    "status", "minimize", "joules", "seconds", "peak_bytes", "bound_joules", "bound_source", "gap",
    "solve_seconds", "first_seconds", "baseline_joules", "floor_bytes", "solver", "reason",
)  # fmt: skip
_INTERRUPTED = 130


def main() -> None:
    """The `poet` command.

    typer's own main would turn a closed pipe and Ctrl-C into exits of its choice, so the command is
    invoked beneath it.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    command = typer.main.get_command(app)
    try:
        with command.make_context("poet", sys.argv[1:]) as context:
            command.invoke(context)
        sys.stdout.flush()
        code = 0
    except click.exceptions.Exit as done:
        code = done.exit_code
    except PoetError as error:
        code = _complain(str(error), error.exit_code)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "poet"
        code = _complain(f"{error.format_message()} See: {where} --help", 2)
    except KeyboardInterrupt:
        code = _complain("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        code = _leave_stdout(0)  # whoever read our output has left
    except OSError as error:
        code = _leave_stdout(_complain(f"cannot write the output: {error.strerror}", 2))
    if any(thread.name.startswith("poet planner") for thread in threading.enumerate()):
        # A worker is deep inside a solver that cannot be called off; its library would abort the
        # process when Python takes it down at exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _leave_stdout(code: int) -> int:
    """So that Python does not try, and fail, to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"poet {poet.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def devices(
    name: Annotated[str | None, typer.Argument(help="One board, with its sources.")] = None,
    json: JsonFlag = False,
) -> None:
    """List the boards POET knows, or show one with the source of every figure."""
    boards = [find_device(each) for each in (device_names() if name is None else [name])]
    if json:
        _print_json(boards if name is None else boards[0])
        return
    from poet.reports.tables import print_table

    if name:
        board = boards[0]
        print(f"{printable(board.name)}: {printable(board.title)}\n")
        rows = [
            [
                field,
                _figure_text(value),
                board.sources.get(field) or f"estimate: {board.estimates.get(field, 'none given')}",
            ]
            for field, value in board.figures.items()
        ]
        print_table(_console(), [("figure", "left"), ("value", "right"), ("from", "left")], rows)
        return
    print_table(
        _console(),
        [("name", "left"), ("RAM", "right"), ("FLOP/s", "right"), ("in MB/s", "right"),
         ("out MB/s", "right"), ("board", "left")],
        [
            [
                board.name,
                bytes_text(board.ram_bytes).rpartition("(")[2].rstrip(")"),
                f"{board.flops_per_second:.2e}",
                f"{board.page_in_bytes_per_second / 1e6:,.1f}",
                f"{board.page_out_bytes_per_second / 1e6:,.1f}",
                board.title,
            ]
            for board in boards
        ],
        cut_last=True,
    )  # fmt: skip


app.command()(models)
app.command()(profile)
app.command("compare")(compare_command)
app.command("frontier")(frontier_command)
app.command()(report)


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A model (see: poet models), your_file.py:function, an instance or graph .json."
        ),
    ],
    device: Annotated[
        str | None, typer.Option(help="A board (see: poet devices) or your own .toml.")
    ] = None,
    ram: Annotated[
        str | None,
        typer.Option(help="RAM budget: 300000, 500KB, 256KiB, or min. Default: the board's."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="20s, or 1.5x the unconstrained step. Default: none.")
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="Measured costs (poet profile), or costs of a graph (.json)."),
    ] = None,
    transfers: Annotated[
        Literal["serial", "overlap", "free"] | None,
        typer.Option(help="How transfers take time. Default: as the device; instances: free."),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="Of a captured model: none, sgd, adam, adamw?weight_decay=0.1.")
    ] = "sgd",
    granularity: Annotated[
        Literal["planning", "op"], typer.Option(help="Of a captured model: merged ops, or each.")
    ] = "planning",
    fuse_updates: Annotated[
        bool, typer.Option("--fuse-updates", help="One op for a weight gradient and its update.")
    ] = False,
    cache: CacheFlag = True,
    params: Annotated[
        Params | None,
        typer.Option(
            help="Parameters and state between steps: in RAM, in the store, or there and read in "
            "tiles. Default: in RAM if that fits, else in tiles."
        ),
    ] = None,
    no_paging: Annotated[bool, typer.Option("--no-paging", help="Never page.")] = False,
    no_remat: Annotated[bool, typer.Option("--no-remat", help="Never recompute.")] = False,
    minimize: Annotated[
        Literal["joules", "seconds", "bytes"], typer.Option(help="What to make small.")
    ] = "joules",
    method: Annotated[
        str | None, typer.Option(help=f"Ask one maker alone: {', '.join(METHODS)}.")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds to plan.", min=0.0)] = 60.0,
    gap: Annotated[
        float, typer.Option(help="Stop when the gap is at most this share.", min=0.0)
    ] = OPTIMAL_GAP,
    threads: Annotated[int | None, typer.Option(help="Default: all cores.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the search.", min=0)] = 0,
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
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan here (.json).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
    json: JsonFlag = False,
) -> None:
    """Find a schedule for a problem under a RAM budget and a deadline."""
    if output is not None:
        check_writable(output, force)
    if solver_log is not None and not solver_log.is_dir():
        raise PoetError(f"there is no folder {solver_log} for the solver's logs")
    if device is not None:
        find_device(device)  # before a capture takes its time
    elif costs is None and not model.endswith(".json"):
        raise PoetError(f"{model} has no costs: give a device (--device rpi4; see poet devices)")

    def captured(fuse: bool) -> Instance | Graph:
        return read_problem(
            model, optimizer, granularity=granularity, fuse_updates=fuse, cache=cache
        )

    is_model = not model.endswith(".json") and costs is None
    problem = captured(fuse_updates or (params == "streamed" and is_model))
    if costs is None and device is not None and not isinstance(problem, Instance):
        _say_estimates(problem)
    with _live_line() as progress:
        result = poet.plan(
            problem,
            device,
            ram,
            deadline,
            costs=read_costs(costs) if costs else None,
            transfers=transfers,
            params=params,
            fused=(lambda: captured(True)) if is_model else None,
            paging=not no_paging,
            recompute=not no_remat,
            minimize=minimize,
            method=method,
            time_limit=time_limit,
            gap=gap,
            threads=threads,
            seed=seed,
            work_limit=work_limit,
            solver=solver,
            solver_log=None if solver_log is None else str(solver_log),
            progress=progress,
        )
    code = _PLAN_EXIT[result.status]
    if output is not None and code == 0:
        write_json(result, output, force)
    if json:
        _print_json({field: getattr(result, field) for field in _PLAN_FIELDS})
    elif code == 0:
        from poet.reports.explain import explanation
        from poet.reports.tables import print_table

        rows = [*summary(result), *explanation(result, check(result))]
        if output is not None:
            rows.append(("written to", str(output)))
        print_table(_console(), [("", "left"), ("", "left")], rows)
    else:
        _complain(f"{result.status}: {result.reason}", code)
    raise typer.Exit(code)


app.command()(train)
app.command()(emit)
app.command()(emulate)
app.add_typer(card, name="card")


@app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="A plan .json file.", metavar="PLAN")],
    json: JsonFlag = False,
) -> None:
    """Replay a plan and compare what it does with what it claims."""
    checked = read_json(file, Plan)
    report = check(checked)
    if json:
        _print_json(
            {
                "valid": report.valid,
                "violation": report.violation,
                "joules": report.joules,
                "seconds": report.seconds,
                "peak_bytes": report.peak_bytes,
                "claims_match": report.claims_match,
                "mismatches": report.mismatches,
            }
        )
    else:
        from poet.reports.explain import complaints, report_rows
        from poet.reports.tables import print_table

        for message in complaints(file, checked, report):
            _complain(message)
        if report.valid and report.claims_match:
            print_table(_console(), [("", "left"), ("", "left")], report_rows(checked, report))
    raise typer.Exit(0 if report.valid and report.claims_match else CHECK_FAILED)


@contextmanager
def _live_line() -> Iterator[Callable[[Progress], None] | None]:
    """A line on a terminal's stderr that says how far the planner has come."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("planning …") as status:

        def show(progress: Progress) -> None:
            text = f"planning {progress.seconds:.0f} s: no schedule yet"
            if progress.joules:
                gap = max(0.0, 1 - progress.bound_joules / progress.joules)
                text = (
                    f"planning {progress.seconds:.0f} s: {amount_text(progress.joules, 'J')}, "
                    f"at least {amount_text(progress.bound_joules, 'J')}, gap {gap:.2%} "
                    "(Ctrl-C: the best so far)"
                )
            status.update(text)

        yield show


def _say_estimates(problem: Graph) -> None:
    """Name the calls whose cost is a guess."""
    from poet.costs.analytic import estimated_kinds

    kinds = estimated_kinds(problem)
    if kinds:
        text = ", ".join(f"{printable(kind)} ({count} calls)" for kind, count in kinds.items())
        print(
            f"note: no table has the FLOPs of {text}; estimated from their bytes", file=sys.stderr
        )


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode())


def _figure_text(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _complain(message: str, code: int = 0) -> int:
    color = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print("\033[1;31merror:\033[0m" if color else "error:", message, file=sys.stderr)
    return code
