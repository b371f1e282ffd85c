"""What crosses a few ops: bounds below every schedule, and checkpoints on graphs of thousands."""

from math import inf
from random import Random

import msgspec
import numpy as np
import pytest

from poet import Budget, Costs, Graph
from poet.planner.backends import Limits, find_backend
from poet.planner.model.crossing import crossing
from poet.planner.proof.branching import Tree
from poet.planner.proof.certificate import safe_bound
from poet.planner.proof.floor import least_joules, memory_floor
from poet.planner.proof.scarce import MOST_CHOSEN, excess_bytes, peaks, scarce_ops
from poet.planner.proof.turns import FIRST_STEPS, OTHERS_EVERY, Turns
from poet.planner.search import checkpoints as trials
from poet.planner.search import opening
from poet.planner.search.checkpoints import checkpoints, first_checkpoints
from poet.planning.solve import solve
from poet.referee.replay import check
from poet.values.plan import draft
from poet.values.schedule import Compute, Effort, Schedule, places
from tests.unit.brute_force import StateSpaceTooLarge, best_joules_unrestricted
from tests.unit.random_problems import random_budget, random_costs, random_graph
from tests.unit.training_graphs import chain, deep

HIGHS = find_backend("highs")
UNLIMITED = Limits(seconds=60.0)
LAYERS = 105


def random_problem(rng: Random) -> tuple[Graph, Costs, Budget] | None:
    """Little RAM, mostly, and every other time nothing is paged."""
    graph = random_graph(rng, ops=rng.randint(2, 6))
    costs = random_costs(rng, graph)
    budget = msgspec.structs.replace(
        random_budget(rng, graph), transfers=rng.choice(("serial", "free"))
    )
    floor = memory_floor(graph, costs, budget).nbytes
    if rng.random() < 0.8:
        more = rng.choice((0, 0, 1, 7, 64, 100, 200))
        budget = msgspec.structs.replace(budget, ram_bytes=floor + more)
    if rng.random() < 0.5:
        budget = msgspec.structs.replace(budget, paging=False)
    below = budget.ram_bytes is not None and floor > budget.ram_bytes
    stored = sum(graph.tensors[i].nbytes for i, place in budget.start.items() if place != "ram")
    below |= budget.store_bytes is not None and stored > budget.store_bytes
    return None if below or len(graph.ops) > 8 else (graph, costs, budget)


@pytest.mark.parametrize("block", [*range(4), 52])
def test_no_schedule_is_below_the_program(block: int) -> None:
    """In whole numbers, which is above every bound that it can give. Block 52 has a problem where a
    tensor matters at a later op and not at an earlier one."""
    compared = raised = 0
    for seed in range(25 * block, 25 * block + 25):
        rng = Random(seed)
        problem = random_problem(rng)
        if problem is None:
            continue
        graph, costs, budget = problem
        try:
            best = best_joules_unrestricted(graph, costs, budget, in_order=True)
        except StateSpaceTooLarge:
            continue
        count = len(graph.ops)
        chosen = sorted(rng.sample(range(count), rng.randint(1, min(count, 4))))
        unit, gathered = rng.choice((1, 1, 7, 50)), rng.random() < 0.8
        model = crossing(
            graph, costs, budget, chosen, unit_bytes=unit, gathered=gathered
        ).relaxation
        answer = HIGHS.solve_integer(model.milp, UNLIMITED)
        compared += 1
        if answer.objective is None:
            assert best is None, (seed, chosen)
        elif best is not None:
            joules = answer.objective / model.scale
            raised += joules > least_joules(costs) + 1e-9
            assert joules <= best * (1 + 1e-6) + 1e-6, (seed, chosen)
    assert compared > 12
    assert raised > 0


def tight_chain() -> tuple[Graph, Costs, Budget]:
    """Eight equal steps, room for five of the nine tensors beside two gradients."""
    graph, costs = chain([10] * 9, [1.0, 2.0] * 4)
    start, end = places(graph)
    return graph, costs, Budget(ram_bytes=52, start=start, end=end, paging=False)


def test_a_tree_on_a_few_ops_proves_the_optimum() -> None:
    graph, costs, budget = tight_chain()
    best = solve(graph, costs, budget, Effort(work_limit=6, time_limit_seconds=60)).joules
    assert best is not None
    assert best > least_joules(costs)
    chosen = peaks(excess_bytes(graph, costs, budget), 1)
    model = crossing(graph, costs, budget, chosen).relaxation
    tree = Tree(model, HIGHS, UNLIMITED)
    while not tree.done:
        tree.step(inf, 10.0)
    assert tree.bound / model.scale <= best * (1 + 1e-9)
    assert tree.bound / model.scale > 0.9 * best
    assert tree.bound / model.scale > least_joules(costs) + 1.0


def test_peaks_are_the_fullest_of_their_neighbours() -> None:
    excess = np.array([-5, 1, 4, 4, 2, 9, 3, 0, 8])
    assert peaks(excess, 9) == (5,)
    assert peaks(excess, 2) == (2, 5, 8)
    assert peaks(excess, 3) == (5,)
    assert peaks(np.array([-1, -2]), 1) == ()


def test_choices_of_ops_grow() -> None:
    graph, costs = deep(20)
    start, end = places(graph)
    budget = Budget(ram_bytes=8_000, start=start, end=end)
    excess = excess_bytes(graph, costs, budget)
    sizes = [len(chosen) for chosen in scarce_ops(excess)]
    assert sizes[0] == 1
    assert sizes == sorted(set(sizes))
    assert sizes[-1] <= MOST_CHOSEN


def test_trees_have_turns_by_where_they_will_be() -> None:
    turns, bounds = Turns(3), [10.0, 5.0, 1.0]
    made = []
    for _ in range(40):
        at = turns.next([0, 1, 2])
        made.append(at)
        before = bounds[at]
        bounds[at] += (0.0, 0.5, 0.0)[at]
        turns.note(at, before, bounds[at])
    assert all(made.count(at) >= FIRST_STEPS for at in range(3))
    assert made.count(1) > 40 * (1 - 1 / OTHERS_EVERY) - 3 * FIRST_STEPS
    assert turns.next([2]) == 2


def thousands(share: float) -> tuple[Graph, Costs, Budget]:
    """1,471 ops in a share of keep-all's peak, without paging."""
    graph, costs = deep(LAYERS)
    start, end = places(graph)
    roomy = Budget(start=start, end=end, paging=False)
    every = tuple(map(Compute, range(len(graph.ops))))
    peak = 1_400 * LAYERS  # what a layer leaves, and its parameters
    assert len(graph.ops) > 1_400
    assert not check(draft(graph, costs, roomy, every)).violation
    return graph, costs, msgspec.structs.replace(roomy, ram_bytes=int(share * peak))


@pytest.mark.parametrize("share", [0.6, 0.4, 0.25])
def test_a_first_schedule_of_a_large_graph_takes_a_few_trials(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    graph, costs, budget = thousands(share)
    tried = []
    attempt = trials._Trials.attempt

    def counted(
        self: trials._Trials, of_ram: float, states: frozenset[int]
    ) -> tuple[float, Schedule]:
        tried.append(of_ram)
        return attempt(self, of_ram, states)

    monkeypatch.setattr(trials._Trials, "attempt", counted)
    found = first_checkpoints(graph, costs, budget, Effort())
    assert found.status == "feasible"
    assert len(tried) <= 3
    assert check(draft(graph, costs, budget, found.schedule)).valid


def test_checkpoints_are_near_the_bound() -> None:
    graph, costs, budget = thousands(0.25)
    found = checkpoints(graph, costs, budget, Effort())
    joules = check(draft(graph, costs, budget, found.schedule)).joules
    fullest = int(np.argmax(excess_bytes(graph, costs, budget)))
    model = crossing(graph, costs, budget, (fullest,)).relaxation
    answer = HIGHS.solve_linear(model.milp, UNLIMITED)
    assert answer.duals is not None
    bound = safe_bound(model.milp, answer.duals) / model.scale
    assert least_joules(costs) * 1.01 < bound <= joules < 1.02 * bound


def test_checkpoints_come_before_the_annealer_on_large_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(opening, "opening", never)
    graph, costs, budget = thousands(0.4)
    plan = solve(graph, costs, budget, Effort(time_limit_seconds=0.0))
    assert plan.status == "feasible"
    assert plan.first_seconds is not None


def test_nothing_is_forgotten_where_nothing_must_be() -> None:
    graph, costs = chain([10] * 5)
    start, end = places(graph)
    roomy = Budget(ram_bytes=1_000, start=start, end=end)
    assert checkpoints(graph, costs, roomy, Effort()).status == "unknown"
    never = Budget(ram_bytes=30, start=start, end=end, recompute=False)
    assert checkpoints(graph, costs, never, Effort()).status == "unknown"
