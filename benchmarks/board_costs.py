"""`board-costs`: plans by counted instructions beside what the emitted step counts, and plans by
FLOPs alone. `board-rates`: the class rates of a board's file, fitted to counts.

Each network is profiled in the emulator, planned with that profile in a part of its RAM, emitted,
and built with the profile on: every op of the step says what it took. Limits: total within 5 %,
rank correlation of ops at least 0.98. Joules are those of three plans, by the profile, by the
board's class rates, and by its one rate of FLOPs, each replayed with the profile's costs for the
ops and tiles that it runs; the first may take at most 1 % more than the others.
"""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import correlation, median

import msgspec
from rich.console import Console

import poet
from poet.calls.pieces.choices import choice_named
from poet.calls.pieces.ways import planned_way
from poet.costs.analytic import COPIED_BYTES_PER_FLOP, analytic
from poet.costs.classes import class_of
from poet.costs.counted import counted, times_in_tiles
from poet.costs.flops import call_flops
from poet.costs.traffic import call_bytes
from poet.devices import find_device
from poet.firmware.emulate.emulation import emulate
from poet.firmware.emulate.laps import emulated_laps
from poet.planning.problem import Problem, read_problem
from poet.profiling.counting import alike_calls, count, graphs_of
from poet.referee.replay import check
from poet.reports.tables import print_table
from poet.values.board_profile import BoardProfile
from poet.values.device import CLASS_FIGURES, PLAIN, Costs, Device
from poet.values.graph import Graph
from poet.values.plan import Plan, draft
from poet.values.schedule import Compute

CASES = (
    ("lenet?size=16", "nrf52840", "60KB"),
    ("mlp?size=8&hidden=16&layers=1", "mkr1000", "9KB"),
    ("tests/mcu/nets.py:resnet8", "nrf52840", "100KB"),
    ("tests/mcu/nets.py:separable", "nrf52840", "60KB"),
)
FITTED_TO = {
    "nrf52840": (
        "lenet?size=16", "tests/mcu/nets.py:resnet8", "tests/mcu/nets.py:separable",
        "mobilenetv2-cifar", "bert-tiny?seq=32",
    ),
    "mkr1000": (
        "lenet?size=16", "mlp?size=8&hidden=16&layers=1", "tests/mcu/nets.py:separable",
    ),
}  # fmt: skip
MOST_OFF, LEAST_RANK = 0.05, 0.98
MOST_JOULES = 1.01
"""Times what the better of the plans by rates takes: searches end a little above the best."""
WORK = 4
"""Rounds of search, which are the same on a busy machine."""


def costs() -> None:
    rows, missed = [], []
    for model, name, ram in CASES:
        board = find_device(name)
        problem = read_problem(model, board=board)
        profile = count(problem, board)
        plan = _plan(problem, profile, name, ram)
        counts, ops, beside = _counted(plan, name)
        off, rank = _against(plan.costs, counts, ops, profile)
        rates = analytic(plan.graph, board)
        one = analytic(plan.graph, one_rate(board))
        by_rates, by_one = (
            _plan(problem, None, name, ram),
            _plan(problem, one_rate(board), name, ram),
        )
        again = [_joules(each, profile) for each in (plan, by_rates, by_one)]
        rows.append([
            model, name, ram, str(len(ops)), _tiled(plan.costs, ops),
            f"{1 + off:.4f}", f"{rank:.4f}",
            *(f"{1 + o:.2f}, {r:.3f}" for o, r in (
                _against(each, counts, ops, profile) for each in (rates, one)
            )),
            *("" if j is None else f"{1e3 * j:.3f}" for j in again),
            f"{beside / sum(counts):.2f}",
        ])  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
        by_counts, *others = (joules or inf for joules in again)
        if abs(off) > MOST_OFF or rank < LEAST_RANK or by_counts > MOST_JOULES * min(others):
            missed.append(model)
    heads = ("model", "board", "RAM", "ops", "in tiles", "total ÷ counted (0.95 to 1.05)",
             "rank (0.98)", "by class rates: total, rank", "by one rate: total, rank",
             "mJ: plan by profile", "by class rates", "by one rate",
             "beside ops ÷ ops")  # fmt: skip
    print_table(
        Console(width=220), [(h, "right" if n else "left") for n, h in enumerate(heads)], rows
    )
    if missed:
        raise SystemExit(f"a limit is not met: {'; '.join(missed)}")


def one_rate(board: Device) -> Device:
    """The board as its FLOPs alone have it."""
    return msgspec.structs.replace(
        board, memory_bytes_per_second=None, op_overhead_seconds=None,
        **{field: {} for field in CLASS_FIGURES},
    )  # fmt: skip


def _plan(problem: Problem, by: BoardProfile | Device | None, name: str, ram: str) -> Plan:
    costs = by if isinstance(by, BoardProfile) else None
    device = by if isinstance(by, Device) else name
    return poet.plan(problem, device=device, costs=costs, ram=ram, work_limit=WORK, time_limit=3600, threads=1)


def _tiled(costs: Costs, ops: list[Compute]) -> str:
    """How many run in tiles, and at the most how many times what they take whole."""
    runs = [(costs.ops[step.op][step.variant], costs.ops[step.op][PLAIN])
            for step in ops if step.variant != PLAIN]  # fmt: skip
    most = max((run.seconds / plain.seconds for run, plain in runs), default=0)
    return f"{len(runs)}, × {most:.2f}" if runs else "0"


def _counted(plan: Plan, name: str) -> tuple[list[float], list[Compute], float]:
    """What ops took, which they were, and the rest of the step: transfers, the commit."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "firmware"
        poet.emit(plan, folder, name, steps=1)
        laps = emulated_laps(folder)
        (step,) = emulate(folder, steps=1).steps
    ops = [step for step in plan.schedule if isinstance(step, Compute)]
    counts = [ticks for _, ticks in laps]
    return counts, ops, step.instructions - sum(counts)


def _against(
    costs: Costs, counts: list[float], ops: list[Compute], profile: BoardProfile
) -> tuple[float, float]:
    """How far the total is from what was counted, as a share; the rank correlation of ops."""
    each = profile.device.instruction_seconds()
    said = [costs.ops[step.op].get(step.variant, costs.ops[step.op][PLAIN]).seconds / each
            for step in ops]  # fmt: skip
    return sum(said) / sum(counts) - 1, correlation(_ranks(said), _ranks(counts))


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in order of size; those that are equal share theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    places: dict[float, list[int]] = defaultdict(list)
    for place, n in enumerate(order):
        places[values[n]].append(place)
    return [sum(places[value]) / len(places[value]) for value in values]


def priced_by(profile: BoardProfile, graph: Graph, costs: Costs) -> Costs:
    """The costs of a graph by a profile, with the variants that other costs of it offer, so that
    whatever plan was made by those can be replayed by what was counted."""
    ops = []
    for k, (runs, known) in enumerate(
        zip(costs.ops, counted(graph, profile.device, profile).ops, strict=True)
    ):
        whole = known[PLAIN]
        priced = {PLAIN: whole}
        for name, run in runs.items():
            if name == PLAIN:
                continue
            times = 1.0
            if choice_named(name) is not None:
                times = times_in_tiles(graph, k, planned_way(graph, k, name, run), profile)
            priced[name] = msgspec.structs.replace(
                run, seconds=whole.seconds * times, joules=whole.joules * times
            )
        ops.append(priced)
    return msgspec.structs.replace(costs, ops=tuple(ops))


def _joules(plan: Plan, profile: BoardProfile) -> float | None:
    """A plan's schedule by the counts of its calls and tiles, whatever it was made by."""
    if not plan.schedule:
        return None
    costs = priced_by(profile, plan.graph, plan.costs)
    return check(draft(plan.graph, costs, plan.budget, plan.schedule)).joules


def rates() -> None:
    """Prints FLOPs a second by class and the time to start a call, for the boards' files."""
    for name, models in FITTED_TO.items():
        board = find_device(name)
        points: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for model in models:
            problem = read_problem(model, board=board)
            profile = count(problem, board)
            for key, call in alike_calls(graphs_of(problem)).items():
                known = profile.by_signature[key]
                if known.origin == "counted":
                    flops = call_flops(call) or call_bytes(call) / COPIED_BYTES_PER_FLOP
                    points[class_of(call)].append((flops, profile.seconds(known)))
        start = min(seconds for found in points.values() for _, seconds in found)
        print(f"# {name}\nop_overhead_seconds = {start:.2g}\n\n[class_flops_per_second]")
        for kind, found in sorted(points.items()):
            print(f"{kind} = {_rate(found, start):.3g}", flush=True)


def _rate(points: list[tuple[float, float]], start: float) -> float:
    """FLOPs a second beyond the time to start, by the calls that take most."""
    taken = sorted(points, key=lambda point: -point[1])
    larger = [(flops, seconds - start) for flops, seconds in taken if seconds > 2 * start] or [
        (flops, seconds) for flops, seconds in taken
    ]
    return median(flops / seconds for flops, seconds in larger[: max(5, len(larger) // 2)])


BENCHMARKS = {"board-costs": costs, "board-rates": rates}
