"""`poet emit`, `poet emulate` and `poet card`: C from a plan, run on an emulated board."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from poet.cli.console import progress_bar
from poet.cli.exit_codes import CHECK_FAILED
from poet.cli.options import JsonFlag
from poet.errors import PoetError
from poet.values.files import check_writable, read_json
from poet.values.plan import Plan
from poet.values.quantities import amount_text, bytes_text


class EmulationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `poet emulate --json` prints."""

    target: str
    steps: int
    losses: tuple[float, ...]
    instructions: int
    page_ins: int
    page_in_bytes: int
    page_outs: int
    page_out_bytes: int
    streamed_bytes: int
    peak_bytes: int
    arena_bytes: int
    stack_bytes: int
    ram_bytes: int | None
    ram_limit_bytes: int | None
    seconds: float
    joules: float
    as_planned: bool
    difference: float | None
    error_ratio: float | None


def emit(
    plan: Annotated[Path, typer.Argument(help="A plan (.json), made by poet plan -o.")],
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
    learning_rate: Annotated[float, typer.Option("--lr", help="Learning rate.", min=0.0)] = 0.01,
    force: Annotated[bool, typer.Option("--force", help="Write over a folder.")] = False,
) -> None:
    """Write C that performs a planned training step on a microcontroller."""
    from poet.firmware.emit import emit as emitted

    made = emitted(
        read_json(plan, Plan), output, target, weights=weights, data=data, seed=seed,
        samples=samples, steps=steps, learning_rate=learning_rate, force=force,
    )  # fmt: skip
    print(
        f"{output}: C for {target}; an arena of {bytes_text(made.arena_bytes)} for a planned peak "
        f"of {bytes_text(made.planned_bytes)} ({made.fragmentation:.4f}), a card of "
        f"{bytes_text(made.card.image_bytes)}. Next: poet emulate {output}",
        file=sys.stderr,
    )


def emulate(
    folder: Annotated[Path, typer.Argument(help="A folder that poet emit wrote.")],
    steps: Annotated[
        int | None, typer.Option(help="Steps to take. Default: what emit was told.", min=1)
    ] = None,
    seconds: Annotated[
        float, typer.Option("--time-limit", help="Give up after so many seconds.", min=0.1)
    ] = 600.0,
    json: JsonFlag = False,
) -> None:
    """Build a firmware folder, train on the emulated board, and compare with PyTorch."""
    from poet.firmware.emulate.comparing import compare_card
    from poet.firmware.emulate.emulation import emulate as emulated
    from poet.firmware.write.folder import read_firmware

    made = read_firmware(folder)
    with progress_bar() as show:
        show(f"training on {made.target}", 0, steps or made.steps)
        run = emulated(
            folder, steps, seconds,
            lambda step, done, count: show(f"loss {step.loss:.5f}", done, count),
        )  # fmt: skip
    comparison = compare_card(folder)
    last = run.steps[-1]
    outcome = EmulationSummary(
        target=made.target, steps=len(run.steps), losses=tuple(s.loss for s in run.steps),
        instructions=last.instructions, page_ins=last.page_ins, page_in_bytes=last.page_in_bytes,
        page_outs=last.page_outs, page_out_bytes=last.page_out_bytes,
        streamed_bytes=last.streamed_bytes, peak_bytes=last.peak_bytes,
        arena_bytes=made.arena_bytes, stack_bytes=max(s.stack_bytes for s in run.steps),
        ram_bytes=None if run.ram is None else run.ram.used_bytes,
        ram_limit_bytes=None if run.ram is None else run.ram.limit_bytes,
        seconds=made.seconds, joules=made.joules, as_planned=not run.differences,
        difference=None if comparison is None else comparison.difference,
        error_ratio=None if comparison is None else comparison.error_ratio,
    )  # fmt: skip
    if json:
        print(msgspec.json.encode(outcome).decode())
    else:
        _show(outcome)
    for text in run.differences:
        print(f"poet: {text}", file=sys.stderr)
    if comparison is None and not json:
        print("not compared with PyTorch: no reference for this number of steps", file=sys.stderr)
    if run.differences or (comparison is not None and not comparison.is_close):
        raise typer.Exit(CHECK_FAILED)


def _show(outcome: EmulationSummary) -> None:
    from rich.console import Console

    from poet.reports.tables import print_table

    rows = [["target", outcome.target]]
    rows += [[f"loss of step {n + 1}", f"{loss:.6f}"] for n, loss in enumerate(outcome.losses)]
    if outcome.instructions:
        rows.append(["instructions a step", f"{outcome.instructions:,}"])
    rows += [
        ["paged in", f"{outcome.page_ins} times, {bytes_text(outcome.page_in_bytes)}"],
        ["paged out", f"{outcome.page_outs} times, {bytes_text(outcome.page_out_bytes)}"],
    ]
    if outcome.streamed_bytes:
        rows.append(["parameters in tiles", bytes_text(outcome.streamed_bytes)])
    rows += [
        ["tensors at the peak", bytes_text(outcome.peak_bytes)],
        ["arena", bytes_text(outcome.arena_bytes)],
    ]
    if outcome.ram_bytes is not None and outcome.ram_limit_bytes is not None:
        rows.append([
            "RAM of the image",
            f"{bytes_text(outcome.ram_bytes)} of {bytes_text(outcome.ram_limit_bytes)}, "
            f"{outcome.stack_bytes:,} bytes of stack used",
        ])  # fmt: skip
    rows += [
        ["time a step, predicted", amount_text(outcome.seconds, "s")],
        ["energy a step, predicted", amount_text(outcome.joules, "J")],
    ]
    rows.append(["transfers and peak", "as planned" if outcome.as_planned else "NOT as planned"])
    if outcome.difference is not None and outcome.error_ratio is not None:
        rows.append(["weights against PyTorch", f"{outcome.difference:.1e} of their change apart"])
        rows.append(["error against float64", f"{outcome.error_ratio:.2f} times PyTorch's"])
    print_table(Console(), [("", "left"), ("", "left")], rows)


card = typer.Typer(help="Cards of firmware folders.", no_args_is_help=True)


@card.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="A folder that poet emit wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write here (.safetensors).")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
) -> None:
    """Take the weights off a card, for PyTorch."""
    from poet.firmware.card.contents import write_safetensors
    from poet.firmware.card.image import read_tensors
    from poet.firmware.write.folder import read_folder

    check_writable(output, force)
    made, plan = read_folder(folder)
    found = read_tensors(folder / "card.img", plan.graph, made.card)
    if not found:
        raise PoetError(f"{folder} has a card without parameters")
    tensors = {i: plan.graph.tensors[i] for i in found}
    weights = {t.name: found[i] for i, t in tensors.items() if t.role != "optimizer_state"}
    write_safetensors(weights, output)
    print(f"{output}: {len(weights)} tensors", file=sys.stderr)
