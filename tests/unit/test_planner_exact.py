"""The model and the relaxation against the oracles.

The exact model's optimum is that of brute force over stages. The relaxation, whole numbers or not,
is never above the best of all schedules in the given order, whatever they do between first runs.
"""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import msgspec
import numpy as np
import pytest

import poet
from poet import Budget, Costs, Graph, InPlace, Op, Run, Tensor, Transfer
from poet.baselines import STARTS
from poet.planner.backends import Limits, find_backend
from poet.planner.incumbent import Incumbent
from poet.planner.model.build import Model, build_model
from poet.planner.model.points import decode, encode
from poet.planner.model.relax import relaxation
from poet.planner.model.staged import from_schedule, to_schedule
from poet.planner.proof.any_order import any_order_bound
from poet.planner.proof.certificate import safe_bound
from poet.planner.proof.floor import least_joules, memory_floor
from poet.planner.search.anneal import Annealer
from poet.planning.solve import solve
from poet.values.instances import Instance
from poet.values.plan import draft
from poet.values.schedule import Effort
from tests.unit.brute_force import (
    StateSpaceTooLarge,
    best_joules_unrestricted,
    best_schedule,
)
from tests.unit.random_problems import random_budget, random_costs, random_graph

Problem = tuple[Graph, Costs, Budget]
HIGHS = find_backend("highs")
UNLIMITED = Limits(seconds=60.0)


def random_problem(seed: int) -> Problem | None:
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


def random_problems(seeds: range) -> Iterator[tuple[int, Problem]]:
    """Those of them that brute force can do, with their seeds."""
    for seed in seeds:
        problem = random_problem(seed)
        if problem is not None:
            yield seed, problem


def joules_of(model: Model, objective: float) -> float:
    return objective / model.blocks.scale


@pytest.mark.parametrize("block", range(10))
def test_the_optimum_is_brute_forces(block: int) -> None:
    compared = pinned = 0
    for seed, (graph, costs, budget) in random_problems(range(60 * block, 60 * block + 60)):
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


def hard_problem(seed: int) -> Problem | None:
    """The same, mostly with hardly more RAM than some op takes."""
    problem, rng = random_problem(seed), Random(seed)
    if problem is None or rng.random() < 0.2:
        return problem
    graph, costs, budget = problem
    floor = memory_floor(graph, costs, budget).nbytes
    ram = floor + rng.choice((0, 0, 1, 7, 64, 100, 200))
    return graph, costs, msgspec.structs.replace(budget, ram_bytes=ram)


def best_in_order(problem: Problem) -> float | None:
    return best_joules_unrestricted(*problem, in_order=True)


@pytest.mark.parametrize("block", range(8))
def test_nothing_in_the_given_order_is_below_the_relaxation(block: int) -> None:
    """Solved in whole numbers, it is above every bound that it can give."""
    compared = none = 0
    for seed in range(50 * block, 50 * block + 50):
        problem = hard_problem(seed)
        if problem is None:
            continue
        try:
            best = best_in_order(problem)
        except StateSpaceTooLarge:
            continue
        for window, unit, stages in ((None, 1, ()), (1, 7, (1, 2))):
            made = relaxation(*problem, window=window, unit_bytes=unit, cut_stages=stages)
            answer = HIGHS.solve_integer(made.milp, UNLIMITED)
            if best is None:
                none += answer.values is None
                continue
            assert answer.objective is not None, seed
            assert answer.objective / made.scale <= best * (1 + 1e-6) + 1e-6, (seed, window)
            compared += 1
    assert compared > 40
    assert none > 2


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_certified_bounds_hold_for_any_window_unit_and_cut(block: int) -> None:
    bounded = 0
    for seed in range(40 * block, 40 * block + 40):
        problem = hard_problem(seed)
        try:
            best = problem and best_in_order(problem)
        except StateSpaceTooLarge:
            continue
        if problem is None or best is None:
            continue
        bounded += 1
        for window in (None, 0, 1, 2):
            for unit, stages in ((1, ()), (7, (1,)), (50, (1, 2)), (1, (2,))):
                made = relaxation(*problem, window=window, unit_bytes=unit, cut_stages=stages)
                answer = HIGHS.solve_linear(made.milp, UNLIMITED)
                assert answer.duals is not None, seed
                bound = safe_bound(made.milp, answer.duals) / made.scale
                assert bound <= best * (1 + 1e-9) + 1e-9, (seed, window, unit, stages)
    assert bounded > 15


@pytest.mark.parametrize("block", range(4))
def test_nothing_in_any_order_is_below_the_bound_for_all_orders(block: int) -> None:
    compared = says_more = 0
    for seed in range(30 * block, 30 * block + 30):
        problem = hard_problem(seed)
        if problem is None or len(problem[0].ops) > 6:
            continue
        try:
            best = best_joules_unrestricted(*problem)
        except StateSpaceTooLarge:
            continue
        if best is None:
            continue
        compared += 1
        bound = any_order_bound(*problem, HIGHS).joules
        assert bound <= best * (1 + 1e-9) + 1e-9, seed
        says_more += bound > least_joules(problem[1]) + 1e-9
    assert compared > 10
    assert says_more > 0


def test_any_multipliers_give_a_bound() -> None:
    """Not only optimal ones: that is what makes a certificate of them."""
    rng = np.random.default_rng(0)
    bounded = 0
    for seed in range(60):
        problem = random_problem(seed)
        best = problem and best_in_order(problem)
        if problem is None or best is None:
            continue
        bounded += 1
        made = relaxation(*problem)
        answer = HIGHS.solve_linear(made.milp, UNLIMITED)
        assert answer.duals is not None
        for spread in (0.0, 0.01, 1.0):
            wrong = answer.duals + spread * rng.normal(size=answer.duals.size)
            assert safe_bound(made.milp, wrong) / made.scale <= best * (1 + 1e-9) + 1e-9
    assert bounded > 30


def test_wider_windows_never_lower_the_bound() -> None:
    problem = poet.read_instance("instances/linear-m4.json")
    budget = Budget(ram_bytes=3600, transfers="free")
    bounds = []
    for window in (0, 2, 5, 10, None):
        made = relaxation(problem.graph, problem.costs, budget, window=window)
        answer = HIGHS.solve_linear(made.milp, UNLIMITED)
        assert answer.duals is not None
        bounds.append(safe_bound(made.milp, answer.duals))
    assert all(a <= b + 1e-6 for a, b in pairwise(bounds))
    assert bounds[-1] > 100.0


def chain_in_place() -> tuple[Graph, Costs]:
    """conv, then ReLU in place, and two readers of what they make, far apart."""
    sizes = (8, 64, 64, 8, 60, 8, 4)
    names = ("x", "conv", "relu", "small", "large", "end", "loss")
    tensors = tuple(
        Tensor(name=name, nbytes=size, role="input" if n == 0 else "activation")
        for n, (name, size) in enumerate(zip(names, sizes, strict=True))
    )
    ops = (
        Op(name="conv", inputs=(0,), outputs=(1,)),
        Op(name="relu", inputs=(1,), outputs=(2,), in_place=(InPlace(output=2, input=1),)),
        Op(name="shrink", inputs=(2,), outputs=(3,)),
        Op(name="grow", inputs=(3,), outputs=(4,)),
        Op(name="fold", inputs=(4,), outputs=(5,)),
        Op(name="join", inputs=(2, 5), outputs=(6,)),
    )
    graph = Graph(name="chain", tensors=tensors, ops=ops)
    costs = Costs(
        graph=graph.fingerprint,
        device="test",
        ops=tuple({"plain": Run(seconds=1.0, joules=1.0)} for _ in graph.ops),
        tensors=tuple(
            Transfer(in_seconds=1.0, in_joules=5.0, out_seconds=1.0, out_joules=5.0)
            for _ in tensors
        ),
        idle_watts=0.0,
    )
    return graph, costs


@pytest.mark.parametrize("paging", [True, False])
def test_what_an_op_consumed_is_made_again(paging: bool) -> None:
    """Two more runs, of conv and ReLU, where a model without them asks for dear page-outs."""
    graph, costs = chain_in_place()
    budget = Budget(ram_bytes=84, start={0: "ram"}, paging=paging)
    best = best_joules_unrestricted(graph, costs, budget, in_order=True)
    assert best is not None
    assert best == pytest.approx(8.0)
    plan = poet.plan(Instance(graph=graph, costs=costs), ram=84, paging=paging, time_limit=5)
    assert plan.status == "optimal"
    assert plan.joules == pytest.approx(best)
    assert plan.bound_joules is not None
    assert plan.bound_joules <= best * (1 + 1e-9)


def test_the_best_may_be_outside_of_the_model_and_windows_go_on_inside() -> None:
    graph, costs = chain_in_place()
    budget = Budget(ram_bytes=84, start={0: "ram"})
    incumbent = Incumbent(graph, costs, budget, Effort())
    assert incumbent.offer(STARTS["paging-greedy"](graph, costs, budget, Effort()).schedule)
    assert incumbent.best_is_in_model
    core = incumbent.core
    assert core is not None
    better = Annealer(graph, costs, budget).run(None, seconds=60.0, moves=2000, seed=0)
    assert incumbent.offer(better)
    assert incumbent.best is not None
    assert incumbent.best.joules == pytest.approx(8.0)
    assert not incumbent.best_is_in_model
    assert incumbent.core is core
    problem = Instance(graph=graph, costs=costs)
    plan = poet.plan(problem, ram=84, gap=0.0, work_limit=12, time_limit=600)
    assert plan.joules == pytest.approx(8.0)


@pytest.mark.parametrize("block", range(4))
def test_what_is_said_of_the_fewest_bytes_is_true(block: int) -> None:
    """The bound is never above what a schedule in the given order needs; optimal is optimal."""
    compared = proven = 0
    for seed, problem in random_problems(range(15 * block, 15 * block + 15)):
        graph, costs, budget = problem
        plan = solve(*problem, Effort(work_limit=2, time_limit_seconds=600.0), minimize="bytes")
        if plan.peak_bytes is None:
            continue
        assert plan.bound_bytes is not None
        least = msgspec.structs.replace(budget, ram_bytes=plan.peak_bytes - 1)
        below = msgspec.structs.replace(budget, ram_bytes=plan.bound_bytes - 1)
        try:
            is_best = best_joules_unrestricted(graph, costs, least, in_order=True) is None
            is_bound = best_joules_unrestricted(graph, costs, below, in_order=True) is None
        except StateSpaceTooLarge:
            continue
        compared += 1
        proven += plan.status == "optimal"
        assert is_bound, seed
        assert (plan.status == "optimal") == (plan.peak_bytes == plan.bound_bytes), seed
        assert is_best or plan.status != "optimal", seed
        assert ("the smallest found" in str(plan)) == (plan.status != "optimal")
    assert compared > 5
    assert proven > compared / 2


def test_large_models_build_quickly_enough_to_matter() -> None:
    """Size, not seconds: how long it takes is for benchmarks/planner to say."""
    problem = poet.read_instance("instances/bert-m4.json")
    budget = Budget(ram_bytes=60_000_000, transfers="free")
    whole = build_model(problem.graph, problem.costs, budget).milp
    small = build_model(problem.graph, problem.costs, budget, window=8).milp
    assert whole.integer.sum() < 100_000
    assert small.integer.sum() < whole.integer.sum() / 5
