"""`poet emit`: C from a plan."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from poet.cli.console import progress_bar, tell
from poet.cli.ctrl_c import ending_well
from poet.cli.options import ForceFlag, PlanArgument
from poet.values.files import read_json
from poet.values.plan import Plan
from poet.values.quantities import bytes_text


def emit(
    plan: PlanArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")],
    target: Annotated[
        str,
        typer.Option(
            help="host, or a board: microbit, netduinoplus2, nrf52840, mps2-an505, mps3-an547."
        ),
    ] = "host",
    weights: Annotated[
        Path | None, typer.Option(help="Weights to start from (.safetensors). Default: a seed's.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Samples, stacked (.safetensors), or: real, held-out data of the zoo's models. "
            "Default: a seed's."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="For weights and samples.", min=0, max=2**32 - 1)] = 0,
    samples: Annotated[int, typer.Option(help="How many, where there is no file.", min=1)] = 4,
    steps: Annotated[int, typer.Option(help="Steps that the card asks for.", min=1)] = 5,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate.", min=0.0)] = 0.01,
    save_every: Annotated[
        int,
        typer.Option(help="Steps after which parameters in RAM are saved; 0: at the end.", min=0),
    ] = 10,
    package: Annotated[
        str | None,
        typer.Option(
            help="As a package: arduino, cmake, cmsis-pack, esp-idf, platformio, zephyr. Default: "
            "a folder with a Makefile."
        ),
    ] = None,
    flash: Annotated[
        Literal["none", "frozen", "all"],
        typer.Option(
            help="Weights as constant data of the image: frozen, those that no step changes; all, "
            "the others as they begin, too."
        ),
    ] = "none",
    force: ForceFlag = False,
) -> None:
    """Write C that performs a planned training step on a microcontroller."""
    from poet.firmware.card.upkeep import upkeep
    from poet.firmware.emit import emit as emitted
    from poet.reports.explain import commit_text

    wanted = read_json(plan, Plan)
    with ending_well(), progress_bar() as show:
        made = emitted(
            wanted, output, target, weights=weights, data=data, seed=seed,
            samples=samples, steps=steps, lr=lr, save_every=save_every,
            package=package, flash=flash, force=force, progress=show,
        )  # fmt: skip
    kind = "C" if package is None else f"a package for {package}"
    constant = f", {bytes_text(made.flash_bytes)} of constant weights" if made.flash_bytes else ""
    tell(
        f"{output}: {kind} for {target}; an arena of {bytes_text(made.arena_bytes)} for a planned "
        f"peak of {bytes_text(made.planned_bytes)} ({made.fragmentation:.4f}), a card of "
        f"{bytes_text(made.card.image_bytes)}{constant}. A commit: "
        f"{commit_text(upkeep(wanted), made.save_every)}. Next: poet emulate {output}"
    )
