"""`poet models`: the models POET knows by name, in numbers."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer

CHECK_FAILED = 5
"""The exit code of a check that failed."""
CacheFlag = Annotated[
    bool, typer.Option(" /--no-cache", help="Capture anew, and do not keep the capture.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def models(
    name: Annotated[
        list[str] | None, typer.Argument(help="Models by name. Default: all.", metavar="[MODEL]...")
    ] = None,
    options: Annotated[
        bool,
        typer.Option("--options", help="What may follow a name, as in resnet18?size=64."),
    ] = False,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """List the models POET knows by name: parameters, planning tensors, bytes of a step."""
    from poet.zoo import MODELS, parse

    asked = [parse(each).text for each in name or MODELS]
    if options:
        rows = [
            [each, option, str(about.default), about.help]
            for each in asked
            for option, about in MODELS[parse(each).name].options.items()
        ]
        from rich.console import Console

        from poet.reports.tables import print_table

        heads = [("model", "left"), ("option", "left"), ("default", "right"), ("", "left")]
        print_table(Console(), heads, rows)  # type: ignore[arg-type]
        return
    from poet.planning.models import figures

    found = []
    with progress_bar() as show:
        for done, each in enumerate(asked):
            show(f"capturing {each}", done, len(asked))
            found.append(figures(each, cache=cache))
    if json:
        print(msgspec.json.encode(found).decode())
        return
    from rich.console import Console

    from poet.reports.tables import print_table

    print_table(
        Console(),
        [("name", "left"), ("parameters", "right"), ("ops", "right"), ("tensors", "right"),
         ("parameter MB", "right"), ("step MB", "right"), ("model", "left")],
        [
            [
                each.name,
                f"{each.parameters:,}",
                f"{each.ops:,}",
                f"{each.planning_tensors:,}",
                f"{each.parameter_bytes / 1e6:,.1f}",
                f"{each.keep_all_bytes / 1e6:,.1f}",
                MODELS[parse(each.name).name].title,
            ]
            for each in found
        ],
        cut_last=True,
    )  # fmt: skip


Show = Callable[[str, int, int], None]
"""Told what is being done, and how many parts are done, of how many."""


@contextmanager
def progress_bar() -> Iterator[Show]:
    """A progress bar on a terminal's stderr, and nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda what, done, count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, count: int) -> None:
            bar.update(task, description=what, completed=done, total=count)

        yield show
