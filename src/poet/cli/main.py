"""The `poet` command: one file a command, each parses, calls one function and prints.

With `--json` stdout gets one object and nothing else; errors and talk go to stderr. What the exit
codes mean is in `exit_codes`.
"""

import atexit
import gc
import io
import os
import sys
from typing import Annotated

import click
import typer

import poet
from poet.cli import exit_codes
from poet.cli.card import card
from poet.cli.check import check
from poet.cli.compare import compare
from poet.cli.console import complain, listening
from poet.cli.ctrl_c import hearing_ctrl_c
from poet.cli.devices import devices
from poet.cli.emit import emit
from poet.cli.emulate import emulate
from poet.cli.fit import fit
from poet.cli.frontier import frontier
from poet.cli.models import models
from poet.cli.plan import plan
from poet.cli.profile import profile
from poet.cli.report import report
from poet.cli.serve import serve
from poet.cli.sweep import sweep
from poet.cli.train import train
from poet.errors import PoetError

app = typer.Typer(
    name="poet",
    add_completion=False,
    rich_markup_mode="rich" if sys.stdout and sys.stdout.isatty() else None,
    help="Plan neural-network training in little memory, at the least energy.",
)
for command in (
    devices, models, fit, plan, check, compare, frontier, profile, train, emit, emulate, report,
    sweep, serve,
):  # fmt: skip
    app.command()(command)
app.add_typer(card, name="card")


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


def main() -> None:
    """The `poet` command.

    typer's own main would turn a closed pipe and Ctrl-C into exits of its choice, so the command is
    invoked beneath it.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    atexit.register(
        gc.freeze
    )  # else Python ends with a search for cycles in all of torch: a second
    with hearing_ctrl_c(), listening():
        code = _run(typer.main.get_command(app))
    sys.exit(code)


def _run(command: click.Command) -> int:
    try:
        with command.make_context("poet", sys.argv[1:]) as context:
            command.invoke(context)
        sys.stdout.flush()
        return exit_codes.DONE
    except click.exceptions.Exit as done:
        return done.exit_code
    except PoetError as error:
        complain(str(error))
        return exit_codes.of_error(error)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "poet"
        complain(f"{error.format_message()} See: {where} --help")
        return exit_codes.WRONG_USAGE
    except KeyboardInterrupt:
        complain("interrupted")
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        return _without_stdout(exit_codes.DONE)  # whoever read our output has left
    except OSError as error:
        complain(f"cannot write the output: {error.strerror}")
        return _without_stdout(exit_codes.WRONG_USAGE)


def _without_stdout(code: int) -> int:
    """So that Python does not try, and fail, to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
