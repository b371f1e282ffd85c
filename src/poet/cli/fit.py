"""`poet fit`: what a model's training step takes, the least it can take, and at which price."""

from typing import Annotated

import typer

from poet.cli.console import print_json, progress_bar
from poet.cli.exit_codes import INFEASIBLE
from poet.cli.options import (
    CacheFlag,
    JsonFlag,
    OptimizerOption,
    ParamsOption,
    TrainedModelArgument,
)
from poet.devices import find_device
from poet.values.quantities import parse_bytes, parse_share


def fit(
    model: TrainedModelArgument,
    device: Annotated[
        str | None,
        typer.Option(help="A board (see: poet devices) or your own .toml. Default: this machine."),
    ] = None,
    ram: Annotated[
        str | None,
        typer.Option(
            help="RAM budget: 300000, 500KB, 256KiB, or 60% of keep-all's. Asks for the largest "
            "batch in it, too. Default: what the device has."
        ),
    ] = None,
    optimizer: OptimizerOption = None,
    params: ParamsOption = "auto",
    largest_batch: Annotated[
        bool | None,
        typer.Option("--largest-batch/--no-largest-batch", help="Default: where --ram is given."),
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for prices.", min=0.0)] = 2.0,
    cache: CacheFlag = True,
    json: JsonFlag = False,
) -> None:
    """What a training step takes, the least it can take, the largest batch. Nothing is trained."""
    board = None if device is None else find_device(device)
    if ram is not None and ram != "min" and parse_share(ram) is None:
        parse_bytes(ram, "RAM budget")  # refused before a capture takes its time
    from poet.training.foreseen import fit as foreseen

    with progress_bar() as show:
        found = foreseen(
            model,
            optimizer=optimizer,
            device=board,
            ram=ram,
            params=params,
            largest_batch=largest_batch,
            time_limit=time_limit,
            cache=cache,
            progress=show,
        )
    if json:
        print_json(found)
    else:
        print(found)
    if found.ram_bytes is not None and found.floor_bytes > found.ram_bytes:
        raise typer.Exit(INFEASIBLE)
