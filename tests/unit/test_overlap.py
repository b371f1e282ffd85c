"""Transfers beside compute: schedules laid out for it, prices of time, and a bound that holds."""

import math
from pathlib import Path
from random import Random

import msgspec
import pytest

import poet
from poet import Budget, Compute, Costs, Graph, PageIn, PageOut, check, draft
from poet.planner.backends import Limits, find_backend
from poet.planner.incumbent import TimePrices
from poet.planner.model.relax import relaxation
from poet.planner.proof.floor import memory_floor
from poet.planner.search.objectives import tightest
from poet.planner.search.prefetch import beside_compute, prefetched, with_eager_page_outs
from poet.planner.search.steering import steered
from tests.unit.overlap_search import Gave, schedule_below
from tests.unit.random_problems import random_budget, random_costs, random_graph, random_schedule

INSTANCES = Path(__file__).parents[2] / "instances"
HIGHS = find_backend("highs")


def overlapped(seed: int, most_ops: int) -> tuple[Random, Graph, Costs, Budget]:
    rng = Random(seed)
    graph = random_graph(rng, ops=rng.randint(2, most_ops))
    costs = msgspec.structs.replace(
        random_costs(rng, graph), idle_watts=rng.choice((0.0, 0.5, 2.0, 5.0))
    )
    budget = msgspec.structs.replace(random_budget(rng, graph), transfers="overlap")
    return rng, graph, costs, budget


def test_schedules_are_laid_beside_compute_in_the_ram_they_had() -> None:
    moved = 0
    for seed in range(300):
        rng, graph, costs, budget = overlapped(seed, 10)
        budget = msgspec.structs.replace(budget, ram_bytes=None, deadline_seconds=None)
        schedule = random_schedule(rng, graph, costs, budget)
        in_turns = msgspec.structs.replace(budget, transfers="serial")
        known = check(draft(graph, costs, in_turns, schedule))
        if not known.valid:
            continue
        budget = msgspec.structs.replace(budget, ram_bytes=known.peak_bytes)
        before = check(draft(graph, costs, budget, schedule))
        laid, after = beside_compute(graph, costs, budget, schedule)
        assert after.violation is None, f"seed {seed}: {after.violation}"
        assert after.joules <= before.joules * (1 + 1e-9), f"seed {seed}"
        assert sorted(map(repr, laid)) == sorted(map(repr, schedule)), f"seed {seed}"
        eager = with_eager_page_outs(graph, costs, schedule)
        early = prefetched(graph, costs, budget, eager, 100.0)
        assert check(draft(graph, costs, budget, early)).violation is None, f"seed {seed}"
        moved += early != eager
    assert moved > 20


def test_a_page_in_is_issued_as_long_before_its_reader_as_it_takes() -> None:
    problem = poet.read_instance(INSTANCES / "resnet18_cifar-a72.json")
    budget = Budget(ram_bytes=600_000, transfers="serial")
    plan = poet.plan(problem, ram=600_000, transfers="serial", time_limit=60, work_limit=1)
    assert any(isinstance(step, PageIn) for step in plan.schedule)
    overlap = msgspec.structs.replace(plan.budget, transfers="overlap")
    plain = check(draft(plan.graph, plan.costs, overlap, plan.schedule))
    _, laid = beside_compute(plan.graph, plan.costs, overlap, plan.schedule)
    assert plan.seconds is not None
    assert laid.seconds < plain.seconds < plan.seconds
    assert budget.ram_bytes is not None
    assert laid.peak_bytes <= budget.ram_bytes


def test_steered_joules_are_those_of_the_prices() -> None:
    _, graph, costs, budget = overlapped(5, 6)
    priced, free = steered(costs, budget, TimePrices(3.0, 5.0, 7.0))
    assert (free.transfers, free.deadline_seconds, priced.idle_watts) == ("free", None, 0.0)
    for i in range(len(graph.tensors)):
        old, new = costs.tensors[i], priced.tensors[i]
        assert math.isclose(new.in_joules, old.in_joules + 5.0 * old.in_seconds)
        assert math.isclose(new.out_joules, old.out_joules + 7.0 * old.out_seconds)
    for old_runs, new_runs in zip(costs.ops, priced.ops, strict=True):
        for name, run in old_runs.items():
            assert math.isclose(new_runs[name].joules, run.joules + 3.0 * run.seconds)


@pytest.mark.slow
def test_no_schedule_is_below_the_bound() -> None:
    """Whole numbers in the relaxation: above every bound that it can give."""
    settled = 0
    for seed in range(60):
        rng, graph, costs, budget = overlapped(seed, 4)
        floor = memory_floor(graph, costs, budget).nbytes
        most = max(floor, sum(tensor.nbytes for tensor in graph.tensors))
        ram = rng.choice((None, floor, floor + 5, rng.randint(floor, most)))
        late = rng.choice((None, None, rng.uniform(1, 20)))
        budget = msgspec.structs.replace(budget, ram_bytes=ram, deadline_seconds=late)
        cuts = tuple(sorted(rng.sample(range(len(graph.ops) + 1), rng.randint(0, 2))))
        window = rng.choice((None, 1, 2))
        program = relaxation(graph, costs, budget, window=window, cut_stages=cuts)
        answer = HIGHS.solve_integer(program.milp, Limits(seconds=20))
        assert answer.status in ("optimal", "infeasible")
        bound = math.inf
        if answer.objective is not None:
            bound = answer.objective / program.scale * (1 - 1e-6) - 1e-7
            bound = min(bound, program.time.most_joules)
        try:
            better = schedule_below(graph, costs, budget, bound, most=1500)
        except Gave:
            continue
        assert better is None, f"seed {seed}: {better}"
        settled += 1
    assert settled > 15


def test_the_makespan_counts_compute_and_channels() -> None:
    """One op of 10 s; what it reads takes 4 s to come and what it makes 6 s to go."""
    graph = Graph(
        name="line",
        tensors=(
            poet.Tensor(name="x", nbytes=8, role="input"),
            poet.Tensor(name="y", nbytes=8),
        ),
        ops=(poet.Op(name="op", inputs=(0,), outputs=(1,)),),
    )
    costs = Costs(
        graph=graph.fingerprint,
        device="test",
        ops=({"plain": poet.Run(seconds=10.0, joules=0.0)},),
        tensors=(
            poet.Transfer(in_seconds=4.0, in_joules=0, out_seconds=0, out_joules=0),
            poet.Transfer(in_seconds=0.0, in_joules=0, out_seconds=6.0, out_joules=0),
        ),
        idle_watts=1.0,
    )
    budget = Budget(transfers="overlap", start={0: "store"}, end={1: "store"}, ram_bytes=16)
    program = relaxation(graph, costs, budget)
    answer = HIGHS.solve_linear(program.milp, Limits(seconds=20))
    assert answer.objective is not None
    schedule = (PageIn(0), Compute(0), PageOut(1))
    assert check(draft(graph, costs, budget, schedule)).seconds == 20.0
    # The arrival before the op, and the departure after it, are both in the program.
    assert math.isclose(answer.objective / program.scale, 20.0, rel_tol=1e-9)


def test_overlap_gets_close_on_a_real_instance() -> None:
    problem = poet.read_instance(INSTANCES / "resnet18_cifar-a72.json")
    plan = poet.plan(
        problem, ram=600_000, deadline="1.2x", transfers="overlap", time_limit=120, work_limit=2
    )
    assert plan.gap is not None
    assert plan.gap < 0.003
    assert poet.check(plan).valid


def test_the_least_ram_is_as_little_beside_compute_as_in_turns() -> None:
    """Beside compute a schedule takes the RAM there is, so more must not be said than it needs."""
    tighter = 0
    for seed in range(200):
        rng, graph, costs, budget = overlapped(seed, 8)
        budget = msgspec.structs.replace(budget, ram_bytes=None, deadline_seconds=None)
        schedule = random_schedule(rng, graph, costs, budget)
        before = check(draft(graph, costs, budget, schedule))
        if not before.valid:
            continue
        tight, report = tightest(graph, costs, budget, schedule)
        in_turns = msgspec.structs.replace(budget, transfers="serial")
        assert report.valid
        assert report.peak_bytes <= check(draft(graph, costs, in_turns, schedule)).peak_bytes
        assert check(draft(graph, costs, tight, schedule)) == report
        tighter += report.peak_bytes < before.peak_bytes
    assert tighter > 10


def test_ram_min_and_fewest_bytes_beside_compute() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    serial, beside = (
        poet.plan(problem, ram="min", transfers=way, work_limit=4, time_limit=60)
        for way in ("serial", "overlap")
    )
    fewest = poet.plan(problem, transfers="overlap", minimize="bytes", work_limit=4, time_limit=60)
    assert beside.peak_bytes == serial.peak_bytes == fewest.peak_bytes
    assert poet.check(fewest).claims_match
    assert fewest.budget.ram_bytes == fewest.peak_bytes
