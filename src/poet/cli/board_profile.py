"""`poet profile --device BOARD`: what each call of a model takes on a microcontroller."""

from collections import Counter
from pathlib import Path

import msgspec

from poet.cli.console import PAIRS, print_json, progress_bar, show_table
from poet.cli.ctrl_c import ending_well
from poet.devices import find_device
from poet.errors import PoetError
from poet.planning.problem import read_problem
from poet.values.board_profile import BoardProfile
from poet.values.device import Device
from poet.values.files import read_json, write_json
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.quantities import amount_text

_ROWS = 12


class BoardSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints; the file has all of it."""

    model: str
    device: str
    compiler: str
    calls: int
    counted: int
    measured: int
    fitted: int
    tiled: int
    """Ways of ops to run in tiles, each in some number of blocks."""


def profile_board(
    model: str,
    device: str,
    measured: Path | None,
    ticks: float | None,
    optimizer: str | None,
    *,
    cache: bool,
    output: Path | None,
    force: bool,
    json: bool,
) -> None:
    board = find_device(device)
    if measured is not None:
        found = _measured(model, board, measured, ticks)
    else:
        if ticks is not None:
            raise PoetError("--ticks-per-second is of what --from gives")
        from poet.profiling.counting import count, counting_board

        counting_board(board)  # refused before a capture takes its time
        problem = read_problem(model, optimizer, board=board, cache=cache)
        with ending_well(), progress_bar() as show:

            def progress(what: str, done: int, count: int) -> None:
                show(f"counting {what}", done, count)

            found = count(problem, board, progress)
    if output is not None:
        write_json(found, output, force)
    origins = Counter[str](call.origin for call in found.calls)
    if json:
        summary = BoardSummary(
            model=found.model, device=found.device.name, compiler=found.compiler,
            calls=len(found.calls), counted=origins["counted"], measured=origins["measured"],
            fitted=origins["fitted"], tiled=len(found.tiled),
        )  # fmt: skip
        print_json(summary)
        return
    _show(found, origins)


def _measured(model: str, board: Device, file: Path, ticks: float | None) -> BoardProfile:
    from poet.firmware.emulate.laps import by_op, read_laps
    from poet.profiling.counting import measured

    if not model.endswith(".json"):
        raise PoetError(
            f"{model} is no plan: --from needs the plan.json that the firmware was emitted from, "
            "whose ops the numbers are of"
        )
    plan = read_json(model, Plan)
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError as error:
        raise PoetError(f"cannot read {file}: {error.strerror or error}") from error
    laps, unit = read_laps(lines, str(file))
    per_second = ticks or board.clock_hz
    if unit is None:
        if per_second is None:
            raise PoetError(f"{board.title} does not say its clock_hz: give --ticks-per-second")
        unit = 1 / per_second
    seconds = {op: taken * unit for op, taken in by_op(laps, plan).items()}
    return measured(plan.graph, board, seconds)


def _show(found: BoardProfile, origins: Counter[str]) -> None:
    said = ", ".join(f"{count} {origin}" for origin, count in sorted(origins.items()))
    show_table(PAIRS, [
        ("model", printable(found.model)),
        ("board", found.device.title),
        ("compiler", found.compiler),
        ("calls", f"{len(found.calls)} that differ: {said}"),
        *([("in tiles", f"{len(found.tiled)} ways to run ops, counted")] if found.tiled else []),
    ])  # fmt: skip
    slowest = sorted(found.calls, key=found.seconds, reverse=True)[:_ROWS]
    print()
    show_table(
        [("slowest calls", "left"), ("shapes", "left"), ("instructions", "right"),
         ("time", "right"), ("", "left")],
        [
            [
                printable(call.kind), printable(call.shapes),
                "" if call.instructions is None else f"{call.instructions:,.0f}",
                amount_text(found.seconds(call), "s"), call.origin,
            ]
            for call in slowest
        ],
    )  # fmt: skip
