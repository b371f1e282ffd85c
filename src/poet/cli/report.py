"""`poet report`: a plan as one page to look at, or as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poet.cli.console import PAIRS, complain, show_table
from poet.cli.exit_codes import CHECK_FAILED, DONE
from poet.cli.options import ForceFlag, PlanArgument
from poet.errors import PoetError
from poet.values.files import check_writable, decode_json, read_bytes, read_json, write_text
from poet.values.plan import Plan
from poet.values.quantities import bytes_text

if TYPE_CHECKING:
    from poet.planning.rows import Row


def report(
    file: PlanArgument,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the page here (.html).")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", help="Write a picture of RAM and tensors here.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Rows that poet compare --json printed, for the page.")
    ] = None,
    force: ForceFlag = False,
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
        complain(message)
    show_table(PAIRS, [(what, f"{path}, {bytes_text(len(data))}") for what, path, data in made])
    raise typer.Exit(CHECK_FAILED if view.complaints else DONE)


def read_rows(path: Path) -> "tuple[Row, ...]":
    """A comparison: `{"rows": [...]}` as it is printed, or the list alone."""
    from poet.planning.rows import Row
    from poet.reports.page.view import ComparisonRows

    data = read_bytes(path)
    if data.lstrip()[:1] == b"[":
        return tuple(decode_json(data, list[Row], path))
    return decode_json(data, ComparisonRows, path).rows
