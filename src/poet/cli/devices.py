"""`poet devices`: the boards POET knows."""

from typing import Annotated

import typer

from poet.cli.console import print_json, show_table
from poet.cli.options import JsonFlag
from poet.devices import device_names, find_device
from poet.values.device import Device
from poet.values.graph import printable
from poet.values.quantities import short_bytes_text


def devices(
    name: Annotated[str | None, typer.Argument(help="One board, with its sources.")] = None,
    json: JsonFlag = False,
) -> None:
    """List the boards POET knows, or show one with the source of every figure."""
    boards = [find_device(each) for each in (device_names() if name is None else [name])]
    if json:
        print_json(boards if name is None else boards[0])
    elif name is not None:
        _show_one(boards[0])
    else:
        _show_all(boards)


def _show_one(board: Device) -> None:
    print(f"{printable(board.name)}: {printable(board.title)}\n")
    show_table(
        [("figure", "left"), ("value", "right"), ("from", "left")],
        [
            [
                name,
                _figure_text(value),
                board.sources.get(field) or f"estimate: {board.estimates.get(field, 'none given')}",
            ]
            for field in board.explained
            for name, value in _values(board, field)
        ],
    )


def _values(board: Device, field: str) -> list[tuple[str, float]]:
    """A figure by its name, or those of the classes of work, each by its own."""
    value = getattr(board, field)
    if not isinstance(value, dict):
        return [(field, value)]
    return [(f"{field}.{kind}", figure) for kind, figure in value.items()]


def _show_all(boards: list[Device]) -> None:
    show_table(
        [("name", "left"), ("RAM", "right"), ("FLOP/s", "right"), ("in MB/s", "right"),
         ("out MB/s", "right"), ("board", "left")],
        [
            [
                board.name,
                short_bytes_text(board.ram_bytes),
                f"{board.flops_per_second:.2e}",
                f"{board.page_in_bytes_per_second / 1e6:,.1f}",
                f"{board.page_out_bytes_per_second / 1e6:,.1f}",
                board.title,
            ]
            for board in boards
        ],
        cut_last=True,
    )  # fmt: skip


def _figure_text(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
