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
) -> None:
    """Columns have a heading and a side; an empty heading row is left out."""
    headed = any(heading for heading, _ in columns)
    if console.is_terminal:
        table = Table(box=SIMPLE_HEAD, show_header=headed, pad_edge=False)
        for heading, align in columns:
            table.add_column(heading, justify=align, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table, highlight=False, markup=False)
        return
    lines = [[heading for heading, _ in columns], *rows] if headed else list(rows)
    widths = [max(len(line[c]) for line in lines) for c in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if align == "right" else cell.ljust(width)
            for cell, width, (_, align) in zip(line, widths, columns, strict=True)
        ]
        console.file.write("  ".join(cells).rstrip() + "\n")
