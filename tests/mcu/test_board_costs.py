"""What the emulator counts of a model's calls is what the emitted step takes, op by op.

The emulator is also the board of which ticks are read back: the same firmware, built with the
profile on, logs what each op took.
"""

from math import inf
from pathlib import Path
from statistics import correlation

import msgspec
import pytest
from benchmarks.board_costs import priced_by

import poet
from poet.calls.operands import works
from poet.calls.pieces.choices import Choice
from poet.calls.pieces.ways import planned_way, streamable, way_of
from poet.calls.signature import op_signature, way_signature
from poet.cli.options import as_options
from poet.costs.analytic import analytic
from poet.costs.counted import counted, times_in_tiles
from poet.costs.tiles import SHARES, _Op, with_tiles
from poet.devices import find_device
from poet.errors import PoetError
from poet.firmware.emulate.laps import Laps, by_op, emulated_laps, read_laps
from poet.planner.proof.floor import working_set_bytes
from poet.planning.problem import read_costs, read_problem
from poet.profiling.counting import count, measured
from poet.values.board_profile import BoardProfile, TiledCost
from poet.values.device import PLAIN
from poet.values.files import write_json
from poet.values.plan import Plan
from poet.values.schedule import Compute
from tests.conftest import Poet

MODEL, BOARD = "lenet?size=16", "nrf52840"


@pytest.fixture(scope="module")
def profile() -> BoardProfile:
    return count(read_problem(MODEL, board=find_device(BOARD)), find_device(BOARD))


@pytest.fixture(scope="module")
def plan(profile: BoardProfile) -> Plan:
    return poet.plan(MODEL, costs=profile, ram="20KB", work_limit=5, threads=1)


@pytest.fixture(scope="module")
def laps(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Laps:
    folder = tmp_path_factory.mktemp("laps") / "firmware"
    poet.emit(plan, folder, BOARD, steps=1)
    return emulated_laps(folder)


def ranks(values: list[float]) -> list[float]:
    return [(sum(x < y for x in values) + sum(x <= y for x in values)) / 2 for y in values]


def test_a_plan_by_counts_takes_what_its_step_counts(
    profile: BoardProfile, plan: Plan, laps: Laps
) -> None:
    order = [step for step in plan.schedule if isinstance(step, Compute)]
    assert [op for op, _ in laps] == [step.op for step in order]
    each = profile.device.instruction_seconds()
    said = [plan.costs.ops[step.op][step.variant].seconds / each for step in order]
    took = [ticks for _, ticks in laps]
    assert sum(said) == pytest.approx(sum(took), rel=0.05)
    assert correlation(ranks(said), ranks(took)) >= 0.98


def test_tiles_take_what_they_count(profile: BoardProfile, plan: Plan, laps: Laps) -> None:
    """Also those that take far more than their ops whole."""
    order = [step for step in plan.schedule if isinstance(step, Compute)]
    tiled = [(step, ticks) for step, (_, ticks) in zip(order, laps, strict=True)
             if step.variant != PLAIN]  # fmt: skip
    each, took = profile.device.instruction_seconds(), sum(ticks for _, ticks in tiled)
    runs = [(plan.costs.ops[step.op], step.variant) for step, _ in tiled]
    whole = sum(known[PLAIN].seconds for known, _ in runs) / each
    assert whole < 0.97 * took
    assert sum(known[variant].seconds for known, variant in runs) / each == pytest.approx(
        took, rel=0.02
    )


@pytest.mark.parametrize("ram_bytes", [12_000, 20_000, 60_000])
def test_no_way_by_flops_takes_less_than_those_by_counts(
    profile: BoardProfile, ram_bytes: int
) -> None:
    """A way in tiles may compute for less time and move far more, which takes more joules."""
    board = find_device(BOARD)
    graph = read_problem(MODEL, board=board).in_pieces
    assert graph is not None
    whole = counted(graph, board, profile)
    by_counts = with_tiles(whole, graph, board, ram_bytes, profile=profile)
    by_flops = priced_by(
        profile, graph, with_tiles(analytic(graph, board), graph, board, ram_bytes)
    )
    met = 0
    for op, ours, theirs in zip(graph.ops, by_counts.ops, by_flops.ops, strict=True):
        for share in SHARES:
            least = [
                min(
                    (run.joules + run.stream_joules for run in runs.values()
                     if working_set_bytes(graph, op, run) <= share * ram_bytes),
                    default=inf,
                )
                for runs in (ours, theirs)
            ]  # fmt: skip
            met += least[1] < inf
            assert least[0] <= least[1] * (1 + 1e-9)
    assert met > 50


def test_each_tensor_alone_is_counted_in_tiles(profile: BoardProfile) -> None:
    """The smallest, too: filters beside maps, which are often the way that moves least."""
    graph = read_problem(MODEL, board=find_device(BOARD)).in_pieces
    assert graph is not None
    beyond = 0
    for k, op in enumerate(graph.ops):
        calls, groups = works(graph, k), streamable(graph, k)
        known = profile.tiled_by_op.get(op_signature(calls))
        for group in groups if known is not None else ():
            choice = Choice(group & set(op.inputs), group & set(op.outputs), 32_768)
            way = way_of(graph, k, choice)
            if known is not None and way is not None:
                assert way_signature(calls, way) in known
                beyond += len(groups) > 3
    assert beyond


def test_the_fastest_way_and_the_one_with_least_joules_are_both_offered(
    profile: BoardProfile,
) -> None:
    board = find_device(BOARD)
    graph = read_problem(MODEL, board=board).in_pieces
    assert graph is not None
    differ = 0
    for k, runs in enumerate(counted(graph, board, profile).ops):
        op = _Op(graph, k, runs[PLAIN], board, profile=profile)
        offered, possible = op.cheapest(6_000), list(op.within(6_000))
        if not offered:
            continue
        assert min(way.seconds for way in offered) == min(way.seconds for way in possible)
        assert min(way.joules for way in offered) == min(way.joules for way in possible)
        differ += len(offered) == 2
    assert differ


def test_a_plan_by_flops_is_replayed_by_what_its_tiles_count(
    profile: BoardProfile, plan: Plan, tmp_path: Path
) -> None:
    again = priced_by(profile, plan.graph, plan.costs)
    for ours, same in zip(plan.costs.ops, again.ops, strict=True):
        for name, run in ours.items():
            assert same[name].seconds == pytest.approx(run.seconds)
    by_flops = poet.plan(MODEL, f"{BOARD}-paper", ram="12KB", work_limit=1, threads=1)
    poet.emit(by_flops, tmp_path / "firmware", BOARD, steps=1)
    took = sum(ticks for _, ticks in emulated_laps(tmp_path / "firmware"))
    costs = priced_by(profile, by_flops.graph, by_flops.costs)
    steps = [step for step in by_flops.schedule if isinstance(step, Compute)]
    each = profile.device.instruction_seconds()
    said = sum(costs.ops[step.op][step.variant].seconds for step in steps) / each
    whole = sum(costs.ops[step.op][PLAIN].seconds for step in steps) / each
    assert said == pytest.approx(took, rel=0.05)
    assert whole != pytest.approx(took, rel=0.05)  # so near only by what tiles count


def test_between_counted_numbers_of_blocks_times_lie_on_a_line(
    profile: BoardProfile, plan: Plan
) -> None:
    step = max(
        (step for step in plan.schedule if isinstance(step, Compute) and step.variant != PLAIN),
        key=lambda step: plan.costs.ops[step.op][PLAIN].seconds,
    )
    k, graph = step.op, plan.graph
    way = planned_way(graph, k, step.variant, plan.costs.ops[k][step.variant])
    calls = works(graph, k)
    op, name, n = op_signature(calls), way_signature(calls, way), way.blocks

    def times(*rows: tuple[str, int, float]) -> float:
        tiled = tuple(TiledCost(op=op, way=w, blocks=b, times=t) for w, b, t in rows)
        return times_in_tiles(graph, k, way, msgspec.structs.replace(profile, tiled=tiled))

    assert times() == 1.0
    assert times((name, n - 1, 2.0), (name, n + 3, 4.0)) == pytest.approx(2.5)
    assert times((name, n + 1, 2.0), (name, n + 3, 4.0)) == 2.0
    assert times(("others", n, 2.0), ("more", n, 5.0)) == 3.5


def test_class_rates_are_nearer_to_the_counts_than_one_rate(profile: BoardProfile) -> None:
    """In total and in order of ops."""
    graph = read_problem(MODEL, board=find_device(BOARD)).graph
    counts, by_class, by_one = (
        [runs[PLAIN].seconds for runs in costs.ops]
        for costs in (
            counted(graph, profile.device, profile),
            analytic(graph, find_device(BOARD)),
            analytic(graph, find_device(f"{BOARD}-paper")),
        )
    )
    assert 0.6 < sum(by_class) / sum(counts) < 1.6
    assert sum(by_one) / sum(counts) > 2
    rank = correlation(ranks(by_class), ranks(counts))
    assert rank > max(0.95, correlation(ranks(by_one), ranks(counts)))


def test_every_graph_of_the_model_has_costs(profile: BoardProfile) -> None:
    board = find_device(BOARD)
    problem = read_problem(MODEL, board=board)
    assert problem.in_pieces is not None
    totals = [
        counted(graph, board, profile).keep_all_seconds
        for graph in (problem.graph, problem.fused, problem.in_pieces)
    ]
    assert totals == pytest.approx([totals[0]] * 3)
    assert {call.origin for call in profile.calls} == {"counted"}
    other = read_problem("lenet?size=16&batch=2", board=board)
    with pytest.raises(PoetError, match="poet profile counts this one"):
        counted(other.graph, board, profile)


def test_what_a_board_measured_takes_the_place_of_counts(
    plan: Plan, laps: Laps, profile: BoardProfile, tmp_path: Path, poet_command: Poet
) -> None:
    """The emulator as a board whose instructions take three quarters of a microsecond."""
    table, made = tmp_path / "measured.csv", tmp_path / "profile.json"
    rows = [f"{op}, {0.75 * ticks:.3f}" for op, ticks in laps]
    table.write_text("\n".join(["op,microseconds", *rows, *rows]))  # two steps
    write_json(plan, tmp_path / "plan.json")
    said = poet_command(
        "profile", tmp_path / "plan.json", "--device", BOARD, "--from", table, "-o", made
    )
    assert said.code == 0, said.err
    found = read_costs(made)
    assert isinstance(found, BoardProfile)
    assert {call.origin for call in found.calls} == {"measured"}
    costs = counted(plan.graph, find_device(BOARD), found)
    ran = dict(by_op(laps, plan))
    took = [0.75e-6 * ran[k] for k in range(len(plan.graph.ops))]
    got = [runs[PLAIN].seconds for runs in costs.ops]
    assert sum(got) == pytest.approx(sum(took), rel=0.05)
    assert correlation(ranks(got), ranks(took)) >= 0.98
    again = poet.plan(MODEL, costs=found, ram="60KB", work_limit=5, threads=1)
    assert again.schedule
    log = [line for op, ticks in laps for line in (f"op {op} ticks {ticks:.0f}", "step 1 loss 3f")]
    assert read_laps(log) == (laps, None)


def test_what_is_no_measurement_of_the_plan_is_refused(
    plan: Plan, laps: Laps, tmp_path: Path, poet_command: Poet
) -> None:
    with pytest.raises(PoetError, match="those of the plan's step"):
        by_op(laps[1:], plan)
    with pytest.raises(PoetError, match="-DPOET_PROFILE logs them"):
        read_laps(["step 1", "done"])
    with pytest.raises(PoetError, match="line 2 of x is no op and a number"):
        read_laps(["op,ticks", "rm -rf /"], "x")
    with pytest.raises(PoetError, match="no op was measured"):
        measured(plan.graph, find_device(BOARD), {})
    table = tmp_path / "measured.csv"
    table.write_text("op,ticks\n0,5\n")
    for words, why in (
        (("mlp", "--device", BOARD, "--from", table), "is no plan"),
        (("mlp", "--device", "rpi4"), "there is no firmware for rpi4"),
        (("mlp", "--from", table), "--device nrf52840"),
        (("mlp", "--device", BOARD, "--ticks-per-second", "5"), "--from"),
    ):
        said = poet_command("profile", *words)
        assert said.code == 2
        assert why in as_options(said.err)


def test_a_profile_is_of_one_board(profile: BoardProfile) -> None:
    with pytest.raises(PoetError, match="the profile is of nrf52840, not of mkr1000"):
        poet.plan(MODEL, device="mkr1000", costs=profile)
    twice = msgspec.structs.asdict(profile) | {"calls": (profile.calls[0],) * 2}
    with pytest.raises(ValueError, match="given twice"):
        BoardProfile(**twice)
