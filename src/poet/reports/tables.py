"""Tables for people: drawn by rich in a terminal, plain aligned text anywhere else."""

from collections.abc import Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Align = Literal["left", "right"]


def print_table(
    console: Console,
    columns: Sequence[tuple[str, Align]],
    rows: Sequence[Sequence[str]],
    cut_last: bool = False,
) -> None:
    """Columns have a heading and a side; an empty heading row is left out.

    In a terminal too narrow for the table the last column wraps, or is cut short.
    """
    headed = any(heading for heading, _ in columns)
    lines = [[heading for heading, _ in columns], *rows] if headed else list(rows)
    widths = [max(len(line[c]) for line in lines) for c in range(len(columns))]
    if console.is_terminal:
        table = Table(box=SIMPLE_HEAD, show_header=headed, pad_edge=False)
        for c, (heading, align) in enumerate(columns):
            last = c == len(columns) - 1
            table.add_column(
                heading,
                justify=align,
                min_width=None if last else widths[c],
                no_wrap=cut_last or not last,
                overflow="ellipsis" if cut_last and last else "fold",
            )
        for row in rows:
            table.add_row(*row)
        console.print(table, highlight=False, markup=False)
        return
    for line in lines:
        cells = [
            cell.rjust(width) if align == "right" else cell.ljust(width)
            for cell, width, (_, align) in zip(line, widths, columns, strict=True)
        ]
        console.file.write("  ".join(cells).rstrip() + "\n")
