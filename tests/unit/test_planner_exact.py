"""The model against the oracles: its optimum is brute force's, its bounds are never above it."""

from itertools import pairwise
from random import Random

import msgspec
import numpy as np
import pytest

import poet
from poet import Budget, Costs, Graph
from poet.planner.backends import Limits, find_backend
from poet.planner.model.build import Model, build_model
from poet.planner.model.points import decode, encode
from poet.planner.model.staged import from_schedule, to_schedule
from poet.planner.proof.certificate import safe_bound
from poet.planner.proof.floor import memory_floor
from poet.values.plan import draft
from tests.unit.brute_force import best_schedule
from tests.unit.random_problems import random_budget, random_costs, random_graph

HIGHS = find_backend("highs")
UNLIMITED = Limits(seconds=60.0)


def random_problem(seed: int) -> tuple[Graph, Costs, Budget] | None:
    """All features; None if it is too large for brute force or below the floor."""
    rng = Random(seed)
    graph = random_graph(rng, ops=rng.randint(2, 6))
    costs = random_costs(rng, graph)
    budget = msgspec.structs.replace(
        random_budget(rng, graph), transfers=rng.choice(("serial", "free"))
    )
    floor = memory_floor(graph, costs, budget).nbytes
    if budget.pinned and rng.random() < 0.7:  # close to where pinned bytes are missed
        budget = msgspec.structs.replace(budget, ram_bytes=floor + rng.choice((0, 1, 7, 64)))
    below = budget.ram_bytes is not None and floor > budget.ram_bytes
    stored = sum(graph.tensors[i].nbytes for i, place in budget.start.items() if place != "ram")
    below |= budget.store_bytes is not None and stored > budget.store_bytes
    return None if below or len(graph.ops) > 8 else (graph, costs, budget)


def joules_of(model: Model, objective: float) -> float:
    return objective / model.blocks.scale


@pytest.mark.parametrize("block", range(10))
def test_the_optimum_is_brute_forces(block: int) -> None:
    compared = pinned = 0
    for seed in range(60 * block, 60 * block + 60):
        problem = random_problem(seed)
        if problem is None:
            continue
        graph, costs, budget = problem
        best = best_schedule(graph, costs, budget, end_loads=True)
        model = build_model(graph, costs, budget)
        answer = HIGHS.solve_integer(model.milp, UNLIMITED)
        if best is None:
            assert answer.values is None, seed
            continue
        compared += 1
        pinned += any(graph.tensors[i].nbytes for i in budget.pinned)
        assert answer.values is not None, seed
        assert answer.objective is not None
        assert joules_of(model, answer.objective) == pytest.approx(best[0], rel=1e-5, abs=1e-5)
        # What the model says is what a real schedule does …
        schedule = to_schedule(graph, costs, budget, decode(model, answer.values))
        report = poet.check(draft(graph, costs, budget, schedule))
        assert report.valid, (seed, report.violation)
        assert report.joules == pytest.approx(best[0], rel=1e-5, abs=1e-5)
        # … and brute force's own schedule is a point of it, at the same cost.
        staged = from_schedule(graph, costs, best[1])
        assert staged is not None
        point = encode(model, graph, costs, budget, staged)
        cost = joules_of(model, float(model.milp.cost @ point))
        assert cost == pytest.approx(best[0], rel=1e-6, abs=1e-6), seed
    assert compared > 20
    assert pinned > 2


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_certified_bounds_hold_for_any_window_unit_and_cut(block: int) -> None:
    bounded = 0
    for seed in range(40 * block, 40 * block + 40):
        problem = random_problem(seed)
        best = problem and best_schedule(*problem, end_loads=True)
        if problem is None or best is None:
            continue
        bounded += 1
        for window in (None, 0, 1, 2):
            for unit, stages in ((1, ()), (7, (1,)), (50, (1, 2)), (1, (2,))):
                model = build_model(
                    *problem, window=window, unit_bytes=unit, whole_units=True, cut_stages=stages
                )
                answer = HIGHS.solve_linear(model.milp, UNLIMITED)
                assert answer.duals is not None, seed
                bound = joules_of(model, safe_bound(model.milp, answer.duals))
                assert bound <= best[0] * (1 + 1e-9) + 1e-9, (seed, window, unit, stages)
    assert bounded > 15


def test_any_multipliers_give_a_bound() -> None:
    """Not only optimal ones: that is what makes a certificate of them."""
    rng = np.random.default_rng(0)
    bounded = 0
    for seed in range(60):
        problem = random_problem(seed)
        best = problem and best_schedule(*problem, end_loads=True)
        if problem is None or best is None:
            continue
        bounded += 1
        model = build_model(*problem)
        answer = HIGHS.solve_linear(model.milp, UNLIMITED)
        assert answer.duals is not None
        for spread in (0.0, 0.01, 1.0):
            wrong = answer.duals + spread * rng.normal(size=answer.duals.size)
            bound = joules_of(model, safe_bound(model.milp, wrong))
            assert bound <= best[0] * (1 + 1e-9) + 1e-9
    assert bounded > 30


def test_wider_windows_never_lower_the_bound() -> None:
    problem = poet.read_instance("instances/linear-m4.json")
    budget = Budget(ram_bytes=3600, transfers="free")
    bounds = []
    for window in (0, 2, 5, 10, None):
        model = build_model(problem.graph, problem.costs, budget, window=window)
        answer = HIGHS.solve_linear(model.milp, UNLIMITED)
        assert answer.duals is not None
        bounds.append(safe_bound(model.milp, answer.duals))
    assert all(a <= b + 1e-6 for a, b in pairwise(bounds))
    assert bounds[-1] > 100.0


def test_large_models_build_quickly_enough_to_matter() -> None:
    """Size, not seconds: how long it takes is for benchmarks/planner to say."""
    problem = poet.read_instance("instances/bert-m4.json")
    budget = Budget(ram_bytes=60_000_000, transfers="free")
    whole = build_model(problem.graph, problem.costs, budget).milp
    small = build_model(problem.graph, problem.costs, budget, window=8).milp
    assert whole.integer.sum() < 100_000
    assert small.integer.sum() < whole.integer.sum() / 5
