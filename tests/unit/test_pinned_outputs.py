"""Pinned tensors that the step makes: from then on somebody else holds them in RAM."""

import os
from collections import Counter
from random import Random

import msgspec
import pytest

from poet import Budget, Compute, Costs, Free, Graph
from poet.baselines import METHODS
from poet.planner.backends import Limits, find_backend
from poet.planner.model.build import build_model
from poet.planner.model.points import decode, encode
from poet.planner.model.staged import from_schedule, to_schedule
from poet.planner.proof.floor import memory_floor, pinned_beside
from poet.planner.search import compiled
from poet.planner.search.anneal import Annealer
from poet.referee.replay import check
from poet.values.plan import draft
from poet.values.schedule import Effort
from tests.unit.brute_force import best_joules_unrestricted, best_schedule
from tests.unit.random_problems import random_budget, random_costs, random_graph
from tests.unit.test_pinned import RUNS, START, replay, step

Problem = tuple[Graph, Costs, Budget]


def with_outputs(seed: int, most_ops: int) -> Problem | None:
    """A random problem in which somebody holds some of what is made; None if it has none such.

    What is held is not written straight to the store. RAM is close to where it is missed.
    """
    rng = Random(seed)
    graph = random_graph(rng, rng.randint(2, most_ops))
    costs, budget = random_costs(rng, graph), random_budget(rng, graph)
    consumed = {i for op in graph.ops for i in op.consumed}
    made = [i for i, maker in enumerate(graph.producer) if maker is not None]
    held = {
        i for i in made if rng.random() < 0.4 and (i in consumed or budget.end.get(i) != "store")
    }
    ops = tuple(
        {
            name: run
            for name, run in variants.items()
            if held.isdisjoint(stream.tensor for stream in run.writes)
        }
        for variants in costs.ops
    )
    costs = msgspec.structs.replace(costs, ops=ops)
    budget = msgspec.structs.replace(
        budget,
        pinned=tuple({*budget.pinned, *held}),
        transfers=rng.choice(("serial", "free")),
    )
    floor = memory_floor(graph, costs, budget).nbytes
    budget = msgspec.structs.replace(
        budget, ram_bytes=floor + rng.choice((0, 1, 7, 64, 200)), deadline_seconds=None
    )
    stored = sum(graph.tensors[i].nbytes for i, place in budget.start.items() if place != "ram")
    if budget.store_bytes is not None and stored > budget.store_bytes:
        return None
    return (graph, costs, budget) if any(graph.tensors[i].nbytes for i in held) else None


def test_it_comes_and_stays() -> None:
    assert replay((2,), *RUNS).valid
    freed = replay((2,), Compute(0), Compute(1), Free(2), *RUNS[2:]).violation
    assert freed is not None
    assert (freed.instruction, freed.rule, freed.tensor) == (2, "pinned", 2)


def test_the_floor_counts_it_from_its_making() -> None:
    graph, costs = step()
    beside = pinned_beside(graph, Budget(start=START, pinned=(2,)))
    assert list(map(sorted, beside)) == [[], [2], [2], [2]]
    assert memory_floor(graph, costs, Budget(start=START, pinned=(2,))).nbytes == 85  # y beside e


def test_no_order_of_ops_gets_below_the_floor() -> None:
    met = reached = 0
    for seed in range(600):
        problem = with_outputs(seed, 4)
        if problem is None or len(problem[0].ops) > 5:
            continue
        graph, costs, budget = problem
        floor = memory_floor(graph, costs, budget).nbytes
        at, below = (
            msgspec.structs.replace(budget, transfers="free", store_bytes=None, ram_bytes=ram_bytes)
            for ram_bytes in (floor, floor - 1)
        )
        met += 1
        reached += best_joules_unrestricted(graph, costs, at) is not None
        assert best_joules_unrestricted(graph, costs, below) is None, seed
    assert min(met, 2 * reached) > 50


def test_the_optimum_is_brute_forces() -> None:
    compared = recomputed = 0
    backend = find_backend("highs")
    for seed in range(200):
        problem = with_outputs(seed, 6)
        if problem is None or len(problem[0].ops) > 8:
            continue
        best = best_schedule(*problem, end_loads=True)
        model = build_model(*problem)
        answer = backend.solve_integer(model.milp, Limits(seconds=60.0))
        assert (best is None) == (answer.values is None), seed
        if best is None or answer.values is None:
            continue
        compared += 1
        schedule = to_schedule(*problem, decode(model, answer.values))
        report = check(draft(*problem, schedule))
        assert report.valid, (seed, report.violation)
        assert report.joules == pytest.approx(best[0], rel=1e-5, abs=1e-5), seed
        recomputed += report.recomputed_ops > 0
        staged = from_schedule(*problem[:2], best[1])
        assert staged is not None
        point = encode(model, *problem, staged)
        cost = float(model.milp.cost @ point) / model.blocks.scale
        assert cost == pytest.approx(best[0], rel=1e-6, abs=1e-6), seed
    assert compared > 60
    assert recomputed > 2


@pytest.mark.skipif(
    compiled.load() is None and "CI" not in os.environ, reason="there is no C compiler"
)
def test_the_search_keeps_it() -> None:
    found = 0
    for seed in range(200):
        problem = with_outputs(seed, 14)
        if problem is None:
            continue
        annealer = Annealer(*problem)
        start = annealer.greedy()
        if start is None:
            continue
        found += 1
        assert check(draft(*problem, start)).valid, seed
        result = annealer.run(start, seconds=5.0, moves=800, seed=seed)
        assert result is not None
        ended = check(draft(*problem, result))
        assert ended.valid, (seed, ended.violation)
        assert annealer.joules(result) == pytest.approx(ended.joules, rel=1e-9)
    assert found > 60


def test_other_methods_keep_it() -> None:
    found: Counter[str] = Counter()
    for seed in range(60):
        problem = with_outputs(seed, 10)
        if problem is None:
            continue
        graph, costs, budget = problem
        roomy = msgspec.structs.replace(budget, ram_bytes=None, store_bytes=None)
        for name in ("keep-all", "paging-greedy", "dtr", "capuchin", "chen-sqrt"):
            schedule = METHODS[name](graph, costs, roomy, Effort()).schedule
            if schedule:
                report = check(draft(graph, costs, roomy, schedule))
                assert report.violation is None or report.violation.rule != "pinned", (name, seed)
                found[name] += report.valid
    assert min(found.values()) > 10
    assert len(found) == 5
