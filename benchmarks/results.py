"""Every method on the networks and boards of the paper: docs/results.md and its figures.

`results`: the sweep of `paper.toml`: VGG-16, ResNet-18 and BERT, captured from PyTorch on MKR1000,
nRF52840, Raspberry Pi 4 and Jetson TX2, and the released code's instances. Peers: the baselines.
Limit: none of them uses less energy than POET. Cells are kept in build/results and not made again:
what was interrupted goes on. Remove that folder to start anew.
"""

import sys
from pathlib import Path

from rich.console import Console

import poet
from poet.cli.console import progress_bar
from poet.errors import PoetError
from poet.planning.executor import Executor, Limits
from poet.planning.frontier import Frontier, Point
from poet.planning.plan import cores
from poet.planning.rows import Row, found_row
from poet.planning.solve import PLANNER
from poet.reports.frontier_files import TITLES, write_frontier
from poet.reports.tables import print_table
from poet.sweeps.grid import read_grid
from poet.sweeps.results import CurveResults, Results
from poet.sweeps.running import sweep
from poet.values.quantities import bytes_text
from poet.values.schedule import Effort

ROOT = Path(__file__).parents[1]
GRID = ROOT / "benchmarks/paper.toml"
KEPT, PAGES = ROOT / "build/results", ROOT / "docs/results"
SAME = 1e-6
"""Differences below this share are those of floating-point sums."""


def main() -> None:
    PAGES.mkdir(parents=True, exist_ok=True)
    questions = read_grid(GRID)
    with progress_bar() as show:
        results = sweep(
            questions, KEPT, lambda shared: Executor(found_row, shared, Limits(cores())), show
        )
    found = {_name(curve): curve.frontier() for curve in results.curves}
    if results.interrupted or any(curve.trouble for curve in results.curves):
        sys.exit("not all cells are there; the page is as it was")
    for name, each in found.items():
        write_frontier(each, PAGES / f"{name}.svg", force=True)
    lost = {name: _lost(each) for name, each in found.items()}
    (ROOT / "docs/results.md").write_text(_page(results, found, lost, questions.effort))
    rows = [[name, str(len(found[name].points)), *_margins(found[name])] for name in found]
    print_table(
        Console(),
        [("problem", "left"), ("budgets", "right"), ("POET at the least RAM", "right"),
         ("best other there", "right"), ("others ahead (0)", "right")],
        rows,
    )  # fmt: skip
    for name, texts in lost.items():
        for text in texts:
            print(f"{name}: {text}")


def _name(curve: CurveResults) -> str:
    """`vgg16-m4`, an instance, or `vgg16-cifar-rpi4`, a model on a board."""
    if not curve.device:
        return Path(curve.model).stem
    return f"{curve.model.partition('?')[0]}-{curve.device}"


def _margins(found: Frontier) -> list[str]:
    first = next((p for p in found.points if _joules(p, PLANNER) is not None), None)
    if first is None:
        return ["", "", ""]
    ours = _joules(first, PLANNER)
    assert ours is not None
    others = {
        row.method: row.joules
        for row in first.rows
        if row.method != PLANNER and row.joules is not None
    }
    best = min(others, key=lambda each: others[each], default=None)
    text = "none fits" if best is None else f"{best} {others[best] / found.keep_all_joules:.2%}"
    return [f"{ours / found.keep_all_joules:.2%}", text, str(len(_lost(found)))]


def _joules(point: Point, method: str) -> float | None:
    row = point.row(method)
    return None if row is None else row.joules


def _lost(found: Frontier) -> list[str]:
    """Budgets at which a baseline uses less energy than POET."""
    texts = []
    for point in found.points:
        ours = point.row(PLANNER)
        for row in point.rows:
            if row.method == PLANNER or row.joules is None:
                continue
            if ours is None or ours.joules is None:
                texts.append(f"{row.method} has a schedule at {point.ram_bytes:,} bytes, POET none")
            elif row.joules < ours.joules * (1 - SAME):
                ahead = 1 - row.joules / ours.joules
                texts.append(f"at {point.ram_bytes:,} bytes {row.method} uses {ahead:.3%} less, "
                             f"POET's gap {ours.gap or 0.0:.3%}")  # fmt: skip
    return texts


def _page(
    results: Results, found: dict[str, Frontier], lost: dict[str, list[str]], effort: Effort
) -> str:
    points = sum(len(each.points) for each in found.values())
    instances = {_name(curve) for curve in results.curves if not curve.device}
    ahead = [f"- {name}: {text}" for name, texts in lost.items() for text in texts]
    pairs = sum(
        row.joules is not None and row.method != PLANNER
        for each in found.values() for point in each.points for row in point.rows
    )  # fmt: skip
    verdict = f"In none of {pairs:,} comparisons does a baseline use less energy."
    if ahead:
        verdict = (
            f"In {len(ahead)} of {pairs:,} comparisons a baseline comes out ahead in this time, by "
            "no more than POET's own gap says is possible:\n\n" + "\n".join(ahead)
        )
    parts = [
        "# Results\n",
        "Energy of one training step against RAM, for POET and the baselines people know "
        "([baselines.md](baselines.md)), on the networks and boards of the ICML 2022 paper. All "
        "numbers are the referee's; every plan is valid under its budget. Made by one `poet sweep "
        f"benchmarks/paper.toml` ([sweeps.md](sweeps.md)): {len(found)} problems, {points} "
        f"budgets, {len(results.cells):,} cells, {_effort(effort)}. Checkmate "
        "and paging are POET's own search with a freedom taken away; POET goes on from what they "
        "found.\n",
        f"Of all cells, {_outcomes(results)}. Where a method has no schedule, the tables say –.\n",
        f"**POET beside the baselines.** {verdict}\n",
        _statements(found),
        "## The released code's instances\n",
        "Costs, sizes and dependencies as the paper's released code has them; transfers take no "
        "time there, only energy.\n",
        *(_section(name, found[name]) for name in found if name in instances),
        "## Captured from PyTorch\n",
        "The same families of networks as they really are: captured training steps with "
        "parameters, weight gradients and SGD updates in RAM, costs by the boards' rates as the "
        "paper's released code has them. "
        "Their parameters alone are beyond the RAM of the two microcontrollers, so the budgets "
        "begin above it.\n",
        *(_section(name, found[name]) for name in found if name not in instances),
    ]
    return "\n".join(parts)


def _effort(effort: Effort) -> str:
    if effort.work_limit is None:
        return f"{effort.time_limit_seconds:g} s for each plan"
    limit = f"a work limit of {effort.work_limit} for each plan"
    return f"{limit}, so that the answers are the same on any machine, idle or busy"


def _outcomes(results: Results) -> str:
    count = results.count
    return (
        f"{count('found'):,} have a schedule, {count('infeasible'):,} are proven infeasible, in "
        f"{count('none found'):,} the method found none, and {count('lost'):,} were lost"
    )


def _section(name: str, found: Frontier) -> str:
    heads = ["RAM", *(TITLES[method] for method in found.methods)]
    lines = [f"### {name}\n", f"![energy against memory](results/{name}.svg)\n"]
    lines.append(
        f"Keep-all takes {bytes_text(found.keep_all_bytes)} and {found.keep_all_joules:.4g} J; the "
        f"floor is {bytes_text(found.floor_bytes)}. Energy as a share of keep-all's:\n"
    )
    lines.append("| " + " | ".join(heads) + " |")
    lines.append("|" + "---:|" * len(heads))
    knee = found.knee
    for point in found.points:
        cells = [f"{point.ram_bytes:,}" + (" (knee)" if point is knee else "")]
        for method in found.methods:
            row = point.row(method)
            cells.append(_cell(row, found))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row | None, found: Frontier) -> str:
    if row is None or row.joules is None:
        return "–"
    text = f"{row.joules / found.keep_all_joules:.2%}"
    if row.method == PLANNER and row.gap is not None:
        text = f"**{text}** (gap {row.gap:.2%})"
    return text


def _statements(found: dict[str, Frontier]) -> str:
    lines = [
        "## The paper's statements beside ours\n",
        "| the paper | here | |",
        "|---|---|---|",
    ]
    a72 = found["resnet18_cifar-a72"]
    pairs = [
        (ours.joules / a72.keep_all_joules - 1, theirs.joules / a72.keep_all_joules - 1)
        for point in a72.points[:-1]
        if (ours := point.row(PLANNER)) and (theirs := point.row("capuchin"))
        and ours.joules is not None and theirs.joules is not None
    ]  # fmt: skip
    said = (
        "ResNet-18 on A72: Capuchin uses 73–141 % more energy than full memory, POET less than 1 %"
    )
    if pairs:
        low, high = min(t for _, t in pairs), max(t for _, t in pairs)
        mine = max(o for o, _ in pairs)
        here = (
            f"resnet18_cifar-a72 (the released code's network and costs), {len(pairs)} budgets "
            f"from {a72.points[0].ram_bytes:,} bytes on: Capuchin {low:+.1%} to {high:+.1%}, "
            f"POET up to {mine:+.1%}"
        )
        verdict = "reproduced" if mine < 0.01 and high > 0.73 else (
            "not reproduced: the paper's costs come from measurements on the board, and its "
            "Capuchin is theirs; the order is the same"
            if all(o <= t for o, t in pairs) else "not reproduced"
        )  # fmt: skip
    else:
        here, verdict = "Capuchin finds no schedule at these budgets", "not comparable"
    lines.append(f"| {said} | {here} | {verdict} |")
    lines.append(_pofo(found["resnet18-cifar-jetson-tx2"]))
    return "\n".join(lines) + "\n"


def _pofo(tx2: Frontier) -> str:
    said = "ResNet-18 on TX2: POET has 8.3 % less peak memory and 13 % more throughput than POFO"
    faster, smaller = [], []
    for point in tx2.points[:-1]:
        ours, theirs = point.row(PLANNER), point.row("pofo")
        if not (ours and theirs and ours.seconds and theirs.seconds):
            continue
        faster.append(theirs.seconds / ours.seconds - 1)
        enough = next(
            (p.ram_bytes for p in tx2.points
             if (row := p.row(PLANNER)) and row.joules is not None
             and theirs.joules is not None and row.joules <= theirs.joules * (1 + SAME)),
            point.ram_bytes,
        )  # fmt: skip
        smaller.append(1 - enough / point.ram_bytes)
    if not faster:
        return f"| {said} | POFO finds no schedule at these budgets | not comparable |"
    here = (
        f"resnet18-cifar captured, by the board's rates, {len(faster)} budgets: at the same budget "
        f"POET has {min(faster):+.1%} to {max(faster):+.1%} throughput; for no more energy than "
        f"POFO's it needs {min(smaller):.1%} to {max(smaller):.1%} less RAM"
    )
    verdict = "reproduced in kind" if max(faster) > 0 and max(smaller) > 0 else "not reproduced"
    why = "another size of the network, and costs by rates instead of measured ones"
    return f"| {said} | {here} | {verdict}: {why} |"


BENCHMARKS = {"results": main}

if __name__ == "__main__":
    try:
        main()
    except PoetError as error:
        sys.exit(f"error: {error}; poet {poet.__version__}")
