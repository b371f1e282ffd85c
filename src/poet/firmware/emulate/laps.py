"""Laps: what each op of a planned step took, as firmware built with `-DPOET_PROFILE` logs it.

The log of a board has lines `op NUMBER ticks TICKS` among others; a table of commas with the
columns `op` and `ticks`, or `op` and `microseconds`, does as well. Numbers are of the plan's graph.
"""

import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from statistics import median

from poet.errors import PoetError
from poet.firmware.emulate.emulation import _ask_for, _output, build
from poet.firmware.write.folder import write_again
from poet.values.device import PLAIN
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.schedule import Compute

_LOGGED = re.compile(r"op (\d{1,9}) ticks (\d{1,19})")
_ROW = re.compile(r"(\d{1,9}) ?, ?(\d{1,19}(?:\.\d{1,9})?)")
_COLUMNS = {"op,ticks": None, "op,microseconds": 1e-6}

Laps = list[tuple[int, float]]
"""Ops in the order in which they ran, and what each took."""


def emulated_laps(folder: Path, seconds: float = 600.0) -> Laps:
    """One step of a folder, built with the profile on, on a copy of its card: instructions."""
    with tempfile.TemporaryDirectory(prefix="poet-laps-") as name:
        home, beside = Path(name) / "built", Path(name) / "card"
        home.mkdir()
        beside.mkdir()
        made = write_again(folder, home)
        build(home, made, "EXTRA=-DPOET_PROFILE")
        shutil.copyfile(folder / "card.img", beside / "card.img")
        _ask_for(beside / "card.img", 1)
        with closing(_output(beside, home, made, seconds)) as lines:
            return read_laps(lines)[0]


def read_laps(lines: Iterable[str], where: str = "the log") -> tuple[Laps, float | None]:
    """What was measured, and the seconds of its unit, where that is known."""
    laps: Laps = []
    unit, in_table = None, False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.replace(" ", "") in _COLUMNS:
            unit, in_table = _COLUMNS[text.replace(" ", "")], True
            continue
        found = (_ROW if in_table else _LOGGED).fullmatch(text)
        if found is not None:
            laps.append((int(found[1]), float(found[2])))
        elif in_table and text:
            raise PoetError(
                f"line {number} of {where} is no op and a number: {printable(text[:60])}"
            )
    if not laps:
        raise PoetError(
            f"{where} has no line `op NUMBER ticks TICKS`, and no columns `op,ticks` or "
            "`op,microseconds`: firmware built with -DPOET_PROFILE logs them"
        )
    return laps, unit


def by_op(laps: Laps, plan: Plan) -> Mapping[int, float]:
    """What ops took, transfers apart: the median of their plain runs, or else of those in tiles.

    Laps are of whole steps, each in the plan's order.
    """
    order = [step for step in plan.schedule if isinstance(step, Compute)]
    if len(laps) % len(order) or any(
        op != order[n % len(order)].op for n, (op, _) in enumerate(laps)
    ):
        raise PoetError(
            f"{len(laps)} ops were measured; they are not those of the plan's step, {len(order)} "
            "in its order. Measure whole steps of the firmware that was emitted from this plan"
        )
    taken: dict[bool, dict[int, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    for n, (op, ticks) in enumerate(laps):
        taken[order[n % len(order)].variant == PLAIN][op].append(ticks)
    chosen = {**taken[False], **taken[True]}
    return {op: median(repeats) for op, repeats in chosen.items()}
