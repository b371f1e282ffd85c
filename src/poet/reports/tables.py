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
        for (heading, align), width in zip(columns[:-1], widths, strict=False):
            table.add_column(heading, justify=align, no_wrap=True, min_width=width)
        table.add_column(columns[-1][0], justify=columns[-1][1], overflow="fold")
        if cut_last:
            room = max(8, console.width - sum(widths[:-1]) - 3 * len(widths) - 2)
            rows = [[*row[:-1], _cut(row[-1], room)] for row in rows]
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


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
