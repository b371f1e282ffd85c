"""Every baseline on every kind of problem: valid by the referee, or a reason with numbers."""

from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import pytest

import poet
from poet import Budget, Plan, Report
from poet.baselines import METHODS, judging
from poet.baselines.on_demand import reach
from poet.planner.proof.floor import memory_floor
from poet.referee.replay import check
from poet.values.schedule import Effort, places
from tests.conftest import INSTANCES
from tests.unit.random_problems import (
    random_budget,
    random_costs,
    random_graph,
    random_pinned,
)
from tests.unit.test_baselines import SEARCHING, X0, joules, replay, with_ram
from tests.unit.training_graphs import chain, network

QUICK = [name for name in METHODS if name not in (*SEARCHING, "keep-all")]
PATHS = [  # one of the two large ones is enough
    path for path in sorted(INSTANCES.glob("*-m4.json")) if not path.stem.startswith("mobilenet")
]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_random_problems(block: int) -> None:
    found = pinned = 0
    for seed in range(60 * block, 60 * block + 60):
        rng = Random(seed)
        graph = random_graph(rng, ops=rng.randint(1, 12))
        costs, budget = random_costs(rng, graph), random_budget(rng, graph)
        for name in QUICK[:-1]:
            if joules(name, graph, costs, budget) is not None:
                found += 1
                pinned += bool(budget.pinned)
    assert found > 100
    assert pinned > 20


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_networks_with_updates_inside_backward(block: int) -> None:
    found: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for seed in range(7 * block, 7 * block + 7):
        rng = Random(seed)
        graph, costs = network(rng, layers=rng.randint(3, 12))
        start, end = places(graph, rng.choice(("resident", "resident", "paged")))
        budget = Budget(start=start, end=end, transfers=rng.choice(("serial", "free", "overlap")))
        pinned = random_pinned(rng, graph, budget)
        budget = msgspec.structs.replace(budget, pinned=pinned)
        kept = METHODS["keep-all"](graph, costs, budget, Effort())
        peak = replay(graph, costs, budget, kept.schedule).peak_bytes
        floor = memory_floor(graph, costs, budget).nbytes
        for share in (1.0, 0.7, 0.4):
            tight = with_ram(budget, int(floor + share * (peak - floor)))
            for name in QUICK:
                needed = joules(name, graph, costs, tight)
                found[name] += needed is not None and share < 1
                met[name] += needed is not None and share < 1 and bool(pinned)
    assert min(found[name] for name in QUICK) > 0
    assert sum(met.values()) > 5


def test_no_method_proposes_to_move_what_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the referee would refuse it: that would be an attempt wasted."""
    heard: Counter[str] = Counter()

    def listened(plan: Plan) -> Report:
        report = check(plan)
        heard[report.violation.rule if report.violation else "valid"] += 1
        return report

    monkeypatch.setattr(judging, "check", listened)
    for seed in range(12):
        rng = Random(seed)
        graph, costs = network(rng, layers=rng.randint(3, 8))
        start, end = places(graph)
        pinned = tuple(i for i in start if rng.random() < 0.5)
        start.update((i, "both") for i in pinned if rng.random() < 0.5)
        budget = Budget(start=start, end=end, pinned=pinned, transfers="free")
        kept = METHODS["keep-all"](graph, costs, budget, Effort())
        peak = replay(graph, costs, budget, kept.schedule).peak_bytes
        floor = memory_floor(graph, costs, budget).nbytes
        for name in QUICK:
            METHODS[name](graph, costs, with_ram(budget, (floor + peak) // 2), Effort())
    assert heard["valid"] > 50
    assert heard.keys() <= {"valid", "ram"}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_instances(path: Path) -> None:
    problem = poet.read_instance(path)
    graph, costs = problem.graph, problem.costs
    floor = memory_floor(graph, costs, Budget()).nbytes
    kept = METHODS["keep-all"](graph, costs, Budget(), Effort())
    peak = replay(graph, costs, Budget(), kept.schedule).peak_bytes
    found: Counter[float] = Counter()
    for share in (0.4,) if len(graph.ops) > 100 else (1.0, 0.4, 0.0):
        budget = Budget(ram_bytes=int(floor + share * (peak - floor)), transfers="free")
        for name in QUICK:
            needed = joules(name, graph, costs, budget)
            found[share] += needed is not None
            if share == 1.0:
                assert needed == pytest.approx(costs.keep_all_joules)
    assert min(found.values()) > len(QUICK) / 2


def test_parameters_in_the_store_need_a_method_that_pages() -> None:
    graph, costs = network(Random(1), layers=4)
    start, end = places(graph, "paged")
    budget = Budget(ram_bytes=1000, start=start, end=end)
    for name in METHODS:
        solution = METHODS[name](graph, costs, budget, Effort(time_limit_seconds=2))
        if name in ("keep-all", "paging", "capuchin", "pofo", "paging-greedy"):
            assert solution.status == "feasible", name
        else:
            assert solution.status == "unknown", name
            assert "in the store at the start, and nothing is paged here" in solution.reason


def test_reasons_have_numbers() -> None:
    problem = poet.read_instance(INSTANCES / "resnet18_cifar-m4.json")
    budget = Budget(ram_bytes=330_000, transfers="free")
    for name in ("chen-sqrt", "chen-greedy", "revolve", "torch-budget"):
        reason = METHODS[name](problem.graph, problem.costs, budget, Effort()).reason
        assert "bytes even with" in reason
        assert "the budget is 330,000" in reason


def test_a_deadline_is_kept_or_named() -> None:
    graph, costs = chain([1] * 31)
    budget = msgspec.structs.replace(with_ram(X0, 12), deadline_seconds=1.01 * 60)
    for name in ("chen-sqrt", "revolve", "dtr"):
        solution = METHODS[name](graph, costs, budget, Effort())
        assert solution.status == "unknown"
        assert "the deadline is 60.6 s" in solution.reason


def test_what_cannot_be_remade_in_time_lasts() -> None:
    graph, _ = network(Random(5), layers=6)
    start, end = places(graph, "resident")
    lasting = reach(graph, Budget(start=start, end=end)).lasting
    roles = {graph.tensors[i].role for i in lasting}
    assert roles <= {"parameter", "output", "gradient"}  # all activations can be remade
    never = reach(graph, Budget(start=start, end=end, recompute=False)).lasting
    assert {i for op in graph.ops[:6] for i in op.outputs if graph.readers[i]} <= never
