"""`poet report`: a plan as one page to look at, or as a picture."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poet.cli.models import CHECK_FAILED
from poet.errors import PoetError
from poet.values.files import check_writable, decode_json, read_bytes, read_json, write_text
from poet.values.plan import Plan
from poet.values.quantities import bytes_text

if TYPE_CHECKING:
    from poet.planning.compare import Row


def report(
    file: Annotated[Path, typer.Argument(help="A plan .json file.", metavar="PLAN")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the page here (.html).")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Write a picture of RAM and tensors here.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Rows that poet compare --json printed, for the page.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the outputs.")] = False,
) -> None:
    """Show a plan: RAM over the step, where each tensor is, where the energy goes."""
    if output is None and png is None:
        raise PoetError("say where the report goes: -o report.html, --png picture.png, or both")
    if output is not None and png is not None and output.resolve() == png.resolve():
        raise PoetError(f"-o and --png are both {output}; give each its own name")
    for target in (output, png):
        if target is not None:
            check_writable(target, force)
    plan = read_json(file, Plan)
    rows = () if compare is None else read_rows(compare)
    from poet.reports.page.view import look_at

    view = look_at(plan, rows)
    made: list[tuple[str, Path, bytes]] = []
    if output is not None:
        from poet.reports.page.page import page

        made.append(("page", output, page(view).encode()))
    if png is not None:
        from poet.reports.page.picture import picture

        made.append(("picture", png, picture(view)))
    for _, path, data in made:
        write_text(data, path, force)
    for message in view.complaints:
        print("error:", message, file=sys.stderr)
    from rich.console import Console

    from poet.reports.tables import print_table

    print_table(
        Console(),
        [("", "left"), ("", "left")],
        [(what, f"{path}, {bytes_text(len(data))}") for what, path, data in made],
    )
    raise typer.Exit(CHECK_FAILED if view.complaints else 0)


def read_rows(path: Path) -> "tuple[Row, ...]":
    """A comparison: `{"rows": [...]}` as it is printed, or the list alone."""
    from poet.planning.compare import Row
    from poet.reports.page.view import ComparisonRows

    data = read_bytes(path)
    if data.lstrip()[:1] == b"[":
        return tuple(decode_json(data, list[Row], path))
    return decode_json(data, ComparisonRows, path).rows
