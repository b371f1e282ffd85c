"""`board-costs`: plans by counted instructions beside what the emitted step counts, and plans by
FLOPs alone. `board-rates`: the class rates of a board's file, fitted to counts.

Each network is profiled in the emulator, planned with that profile in a part of its RAM, emitted,
and built with the profile on: every op of the step says what it took. Limits: total within 5 %,
rank correlation of ops at least 0.98. Joules are those of three plans, by the profile, by the
board's class rates, and by the paper's one rate of FLOPs, each replayed with the profile's costs
for the ops and tiles that it runs; the first may take at most 1 % more than the others.
"""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from pathlib import Path
from statistics import correlation

import msgspec
from rich.console import Console

import poet
from poet.calls.operands import works
from poet.calls.pieces.choices import choice_named
from poet.calls.pieces.ways import planned_way
from poet.calls.signature import signature
from poet.calls.sizes import sized_calls
from poet.costs.analytic import COPIED_BYTES_PER_FLOP, analytic
from poet.costs.classes import class_of
from poet.costs.counted import counted, times_in_tiles
from poet.costs.flops import call_flops
from poet.costs.traffic import call_bytes
from poet.devices import find_device
from poet.firmware.emulate.emulation import emulate
from poet.firmware.emulate.laps import emulated_laps
from poet.planning.problem import Problem, read_problem
from poet.profiling.counting import count
from poet.referee.replay import check
from poet.reports.tables import print_table
from poet.values.board_profile import BoardProfile
from poet.values.device import PLAIN, Costs, Device
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
        plan = _plan(problem, profile, board, ram)
        counts, ops, beside = _counted(plan, name)
        off, rank = _against(plan.costs, counts, ops, profile)
        paper = find_device(f"{name}-paper")
        rates, one = (analytic(plan.graph, each) for each in (board, paper))
        by_rates, by_one = (_plan(problem, None, each, ram) for each in (board, paper))
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
             "rank (0.98)", "by class rates: total, rank", "by the paper's one rate: total, rank",
             "mJ: plan by profile", "by class rates", "by one rate",
             "beside ops ÷ ops")  # fmt: skip
    print_table(
        Console(width=220), [(h, "right" if n else "left") for n, h in enumerate(heads)], rows
    )
    if missed:
        raise SystemExit(f"a limit is not met: {'; '.join(missed)}")


def _plan(problem: Problem, costs: BoardProfile | None, device: Device, ram: str) -> Plan:
    return poet.plan(problem, device, ram, costs=costs, work_limit=WORK, time_limit=3600, threads=1)


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
    """Prints FLOPs a second, of all work and by class, for the boards' files.

    Each network counts alike, by the seconds of its step, and each call as often as the step makes
    it. A time to start is not told apart: filling one number takes no more than an empty call.
    """
    for name, models in FITTED_TO.items():
        board = find_device(name)
        flops: dict[str, float] = defaultdict(float)
        seconds: dict[str, float] = defaultdict(float)
        for model in models:
            problem = read_problem(model, board=board)
            found = work_by_class(problem.graph, count(problem, board))
            step = sum(taken for _, taken in found.values())
            for kind, (done, taken) in found.items():
                flops[kind] += done / step
                seconds[kind] += taken / step
        print(f"# {name}\nflops_per_second = {sum(flops.values()) / sum(seconds.values()):.3g}")
        print("\n[class_flops_per_second]")
        for kind in sorted(flops):
            print(f"{kind} = {flops[kind] / seconds[kind]:.3g}", flush=True)


def work_by_class(graph: Graph, profile: BoardProfile) -> dict[str, tuple[float, float]]:
    """FLOPs and seconds of a step's calls that were counted, by class."""
    found: dict[str, tuple[float, float]] = {}
    for k in range(len(graph.ops)):
        sized = list(sized_calls(graph, k))
        for work in works(graph, k):
            known = profile.by_signature[signature(work)]
            if known.origin != "counted":
                continue
            call = sized[work.number]
            flops, seconds = found.get(class_of(call), (0.0, 0.0))
            flops += call_flops(call) or call_bytes(call) / COPIED_BYTES_PER_FLOP
            found[class_of(call)] = flops, seconds + profile.seconds(known)
    return found


BENCHMARKS = {"board-costs": costs, "board-rates": rates}
