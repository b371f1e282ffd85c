"""`poet emulate`: C from `poet emit`, run on an emulated board."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from poet.cli.console import PAIRS, print_json, progress_bar, say, show_table, tell
from poet.cli.ctrl_c import ending_well
from poet.cli.exit_codes import CHECK_FAILED
from poet.cli.options import FolderArgument, JsonFlag
from poet.values.device import SECTOR_BYTES
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.quantities import amount_text, bytes_text

if TYPE_CHECKING:
    from poet.firmware.card.upkeep import Upkeep


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
    streamed_in_bytes: int
    streamed_out_bytes: int
    peak_bytes: int
    arena_bytes: int
    stack_bytes: int
    sectors_written: int
    """The most in a step, commits included."""
    written_bytes: dict[str, int]
    """Of that what is planned, by tensor."""
    save_every: int
    commit: "Upkeep"
    """What is beside the plan's transfers, and its seconds and joules."""
    ram_bytes: int | None
    ram_limit_bytes: int | None
    seconds: float | None
    joules: float | None
    as_planned: bool
    difference: float | None
    error_ratio: float | None
    worst_ratio: float | None


def emulate(
    folder: FolderArgument,
    steps: Annotated[
        int | None, typer.Option(help="Steps to take. Default: what emit was told.", min=1)
    ] = None,
    seconds: Annotated[
        float, typer.Option("--time-limit", help="Give up after so many seconds.", min=0.1)
    ] = 600.0,
    edited: Annotated[
        bool,
        typer.Option(
            "--edited", help="Run the folder's own C and Makefile, which may do anything."
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Build a firmware folder, train on the emulated board, and compare with PyTorch."""
    from poet.firmware.card.upkeep import upkeep
    from poet.firmware.emulate.comparison import MOST_ERROR, compare_card
    from poet.firmware.emulate.emulation import emulate as emulated
    from poet.firmware.write.folder import read_folder

    made, plan = read_folder(folder)
    with ending_well(), progress_bar() as show:
        show(f"training on {made.target}", 0, steps or made.steps)
        run = emulated(
            folder, steps, seconds,
            lambda step, done, count: show(f"loss {step.loss:.5f}", done, count), edited,
        )  # fmt: skip
    comparison = compare_card(folder)
    last = run.steps[-1]
    summary = EmulationSummary(
        target=made.target, steps=len(run.steps), losses=tuple(s.loss for s in run.steps),
        instructions=last.instructions, page_ins=last.page_ins, page_in_bytes=last.page_in_bytes,
        page_outs=last.page_outs, page_out_bytes=last.page_out_bytes,
        streamed_bytes=last.streamed_bytes, streamed_in_bytes=last.streamed_in_bytes,
        streamed_out_bytes=last.streamed_out_bytes, peak_bytes=last.peak_bytes,
        arena_bytes=made.arena_bytes, stack_bytes=max(s.stack_bytes for s in run.steps),
        sectors_written=max(s.sectors_written for s in run.steps),
        written_bytes=plan.written_by_name, save_every=made.save_every, commit=upkeep(plan),
        ram_bytes=None if run.ram is None else run.ram.used_bytes,
        ram_limit_bytes=None if run.ram is None else run.ram.limit_bytes,
        seconds=made.seconds, joules=made.joules, as_planned=not run.differences,
        difference=None if comparison is None else comparison.difference,
        error_ratio=None if comparison is None else comparison.error_ratio,
        worst_ratio=None if comparison is None else comparison.worst_ratio,
    )  # fmt: skip
    if json:
        print_json(summary)
    else:
        _show(summary, plan)
    for text in run.differences:
        say(text)
    if comparison is None and not json:
        tell("not compared with PyTorch: no reference for this number of steps")
    if comparison is not None and not comparison.is_close:
        say(
            f"{printable(comparison.worst)} is {comparison.worst_ratio:.1f} times as far from a "
            f"float64 run as rounding explains; the limit is {MOST_ERROR:g}"
        )
    if run.differences or (comparison is not None and not comparison.is_close):
        raise typer.Exit(CHECK_FAILED)


def _show(summary: EmulationSummary, plan: Plan) -> None:
    from poet.reports.explain import commit_text, written_text

    rows = [["target", summary.target]]
    rows += [[f"loss of step {n + 1}", f"{loss:.6f}"] for n, loss in enumerate(summary.losses)]
    if summary.instructions:
        rows.append(["instructions a step", f"{summary.instructions:,}"])
    rows += [
        ["paged in", f"{summary.page_ins} times, {bytes_text(summary.page_in_bytes)}"],
        ["paged out", f"{summary.page_outs} times, {bytes_text(summary.page_out_bytes)}"],
    ]
    if summary.streamed_bytes:
        read, written = summary.streamed_in_bytes, summary.streamed_out_bytes
        rows.append(["in tiles", f"{bytes_text(read)} read, {bytes_text(written)} written"])
    if summary.sectors_written:
        worn = bytes_text(SECTOR_BYTES * summary.sectors_written)
        rows.append(["card's wear", f"up to {summary.sectors_written:,} sectors a step, {worn}"])
    if summary.written_bytes:
        rows.append(["written as planned", written_text(plan)])
    rows += [
        ["tensors at the peak", bytes_text(summary.peak_bytes)],
        ["arena", bytes_text(summary.arena_bytes)],
    ]
    if summary.ram_bytes is not None and summary.ram_limit_bytes is not None:
        rows.append([
            "RAM of the image",
            f"{bytes_text(summary.ram_bytes)} of {bytes_text(summary.ram_limit_bytes)}, "
            f"{summary.stack_bytes:,} bytes of stack used",
        ])  # fmt: skip
    if summary.seconds is not None:
        rows.append(["time a step, predicted", amount_text(summary.seconds, "s")])
    if summary.joules is not None:
        rows.append(["energy a step, predicted", amount_text(summary.joules, "J")])
    rows.append(["commit, predicted", commit_text(summary.commit, summary.save_every)])
    rows.append(["transfers and peak", "as planned" if summary.as_planned else "NOT as planned"])
    if summary.difference is not None and summary.error_ratio is not None:
        rows.append(["weights against PyTorch", f"{summary.difference:.1e} of their change apart"])
        rows.append(["error against float64", f"{summary.error_ratio:.2f} times PyTorch's"])
    show_table(PAIRS, rows)
