"""The local search: whatever it returns the referee accepts, and it never returns worse."""

import os
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import poet
from poet import Budget, Compute, Costs, Graph, Schedule
from poet import native as building
from poet.planner.proof.floor import memory_floor
from poet.planner.search import anneal, compiled
from poet.planner.search.anneal import Annealer
from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.values.instances import read_instance
from poet.values.plan import draft
from tests.conftest import INSTANCES
from tests.unit.random_problems import random_budget, random_costs, random_graph, random_schedule

PROBLEMS = 200
LONG = 600.0
"""Seconds: no machine is so busy that this passes unnoticed."""

pytestmark = pytest.mark.skipif(
    compiled.load() is None and "CI" not in os.environ, reason="there is no C compiler"
)

Problem = tuple[Graph, Costs, Budget]


def random_problem(seed: int, in_place_share: float = 0.2) -> Problem:
    """All features; RAM mostly between what one op needs and what all tensors take together."""
    rng = Random(seed)
    graph = random_graph(rng, rng.randint(2, 14), in_place_share)
    costs = random_costs(rng, graph)
    budget = msgspec.structs.replace(
        random_budget(rng, graph), transfers=rng.choice(("serial", "free"))
    )
    if rng.random() < 0.8:
        floor = memory_floor(graph, costs, budget).nbytes
        total = sum(tensor.nbytes for tensor in graph.tensors)
        ram_bytes = rng.randint(floor, max(floor, total))
        budget = msgspec.structs.replace(budget, ram_bytes=ram_bytes)
    return graph, costs, budget


def instance_problem(name: str, ram_bytes: int) -> Problem:
    instance = read_instance(INSTANCES / f"{name}.json")
    deadline = 1.5 * instance.costs.keep_all_seconds
    budget = Budget(ram_bytes=ram_bytes, deadline_seconds=deadline, transfers="free")
    return instance.graph, instance.costs, budget


def judge(problem: Problem, schedule: Schedule) -> Report:
    report = check(draft(*problem, schedule))
    assert report.violation is None
    return report


def no_worse(report: Report, than: Report) -> bool:
    return report.joules <= than.joules * (1 + 1e-12)


def test_random_problems_are_solved_validly_and_never_worse_than_their_start() -> None:
    found = pinned = 0
    for seed in range(PROBLEMS):
        problem = random_problem(seed)
        annealer = Annealer(*problem)
        start = annealer.greedy()
        if start is None:
            continue
        found += 1
        pinned += any(problem[0].tensors[i].nbytes for i in problem[2].pinned)
        begun = judge(problem, start)
        result = annealer.run(start, seconds=5.0, moves=1500, seed=seed)
        assert result is not None
        ended = judge(problem, result)
        assert no_worse(ended, begun)
        assert annealer.joules(result) == pytest.approx(ended.joules, rel=1e-9)
        same = annealer.represented(result)
        assert same is not None
        assert judge(problem, same).joules == pytest.approx(ended.joules, rel=1e-9)
        again = annealer.run(result, seconds=5.0, moves=64, seed=seed + 1)
        assert again is not None
        assert no_worse(judge(problem, again), ended)
    assert found > PROBLEMS / 2
    assert pinned > PROBLEMS / 10


def test_what_the_search_counts_is_what_the_referee_counts() -> None:
    """Joules and bytes, where much is done in place and made again after it was consumed."""
    found = again = in_tail = 0
    for seed in range(2 * PROBLEMS):
        graph, costs, budget = random_problem(seed, in_place_share=0.6)
        ram_bytes = memory_floor(graph, costs, budget).nbytes + 64 * (seed % 4)
        budget = msgspec.structs.replace(budget, ram_bytes=ram_bytes, paging=seed % 3 > 0)
        problem = graph, costs, budget
        annealer = Annealer(*problem)
        if annealer.run(None, seconds=LONG, moves=1000, seed=seed) is None:
            continue
        schedule, joules, peak_bytes = annealer.counted()
        report = judge(problem, schedule)
        found += 1
        assert report.joules == pytest.approx(joules, rel=1e-9), seed
        held = sum(graph.tensors[i].nbytes for i, at in budget.start.items() if at != "store")
        assert report.peak_bytes == max(held, peak_bytes), seed
        runs = [step.op for step in schedule if isinstance(step, Compute)]
        again += any(graph.ops[v].in_place and runs.count(v) > 1 for v in runs)
        in_tail += runs[-1] != len(graph.ops) - 1
    assert found > PROBLEMS / 2
    assert again > 10
    assert in_tail > 2


def test_any_schedule_is_a_start() -> None:
    """Also ones without stages, which the search can only come near to."""
    starts = 0
    for seed in range(400):
        problem = random_problem(seed)
        rng = Random(-seed)
        start = random_schedule(rng, *problem)
        report = check(draft(*problem, start))
        if not report.valid:
            continue
        starts += 1
        result = Annealer(*problem).run(start, seconds=5.0, moves=500, seed=seed)
        assert result is not None
        assert no_worse(judge(problem, result), report)
    assert starts > 20


def test_a_start_with_stages_is_represented_exactly() -> None:
    problem = instance_problem("resnet18_cifar-m4", 500_000)
    annealer = Annealer(*problem)
    result = annealer.run(None, seconds=5.0, moves=20_000, seed=3)
    assert result is not None
    assert annealer.represented(result) == result


def test_the_same_seed_and_moves_give_the_same_schedule() -> None:
    problem = instance_problem("resnet18_cifar-m4", 330_000)
    results = {
        Annealer(*problem).run(None, seconds=30.0, moves=5_000, seed=seed) for seed in (7, 7, 8)
    }
    assert len(results) == 2
    annealer = Annealer(*problem)  # whatever it did before
    assert annealer.run(None, seconds=30.0, moves=5_000, seed=8) in results
    assert annealer.run(None, seconds=30.0, moves=5_000, seed=7) in results


def test_it_improves_on_greedy_by_much() -> None:
    problem = instance_problem("resnet18_cifar-m4", 500_000)
    keep_all_joules = problem[1].keep_all_joules
    annealer = Annealer(*problem)
    start = annealer.greedy()
    assert start is not None
    result = annealer.run(start, seconds=10.0, moves=300_000, seed=0)
    assert result is not None
    assert judge(problem, start).joules <= 1.4 * keep_all_joules
    assert judge(problem, result).joules <= 1.10 * keep_all_joules


def test_stop_ends_a_run_from_another_thread() -> None:
    problem = instance_problem("bert-m4", 60_000_000)
    annealer = Annealer(*problem)
    results: list[Schedule | None] = []
    thread = threading.Thread(
        target=lambda: results.append(annealer.run(None, seconds=LONG, moves=None, seed=0)),
        daemon=True,
    )
    thread.start()
    time.sleep(0.2)
    annealer.stop()
    thread.join(timeout=LONG / 10)
    assert not thread.is_alive()
    assert results[0] is not None
    judge(problem, results[0])


def test_a_run_ends_when_its_seconds_are_over() -> None:
    """Long before its moves are done, on any machine."""
    annealer = Annealer(*instance_problem("bert_captured-m4", 110_000_000))
    assert annealer.run(None, seconds=0.5, moves=10**9, seed=0) is not None
    assert 0 < annealer.moves_done < 10**8


def test_annealers_run_side_by_side() -> None:
    """Threads do not share state: each gets what it gets alone."""
    problem = instance_problem("vgg16-m4", 60_000_000)
    alone = [Annealer(*problem).run(None, seconds=30.0, moves=3_000, seed=k) for k in range(3)]
    beside: list[Schedule | None] = [None] * 3

    def work(k: int) -> None:
        beside[k] = Annealer(*problem).run(None, seconds=30.0, moves=3_000, seed=k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert beside == alone


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "load", lambda: None)
    with pytest.raises(RuntimeError, match="no C compiler"):
        Annealer(*random_problem(0))


def test_the_library_is_built_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget() -> None:
        compiled.load.cache_clear()
        building.built.cache_clear()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    try:
        assert compiled.load() is not None
        assert len(list((tmp_path / "poet").iterdir())) == 1
        forget()
        monkeypatch.setattr(building, "_compile", lambda *_: pytest.fail("built twice"))
        assert compiled.load() is not None
    finally:
        forget()


def test_counted_runs_do_not_ask_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: the greedy start is made in full."""
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    counted: dict[str, Any] = {"ram": 3500, "work_limit": 1, "time_limit": LONG, "gap": 0.0}
    usual = poet.plan(problem, **counted)
    monkeypatch.setattr(anneal, "GREEDY_SECONDS", 0.0)
    assert poet.plan(problem, **counted).schedule == usual.schedule
