"""Ops chosen one after the other for a program of crossings, and trees that two workers grow."""

import threading
from math import inf, nan
from pathlib import Path

import pytest

from poet import Budget, read_instance
from poet.planner.backends import Limits, find_backend
from poet.planner.incumbent import Incumbent
from poet.planner.model.crossing import crossing
from poet.planner.proof.bounds import Bounds
from poet.planner.proof.branching import Tree
from poet.planner.proof.chooser import MOST_CHOSEN, MOST_TRIALS, Chooser
from poet.values.schedule import Effort

INSTANCES = Path(__file__).parents[2] / "instances"
HIGHS = find_backend("highs")
BEST_KNOWN = 114.645
"""Percent of keep-all's joules, of a schedule for resnet18_cifar-m4 in 330,000 B."""


def needles(*places: int) -> dict[int, float]:
    """What each op is worth: hills with their tops at some places."""
    return {op: max(0.0, 10.0 - min(abs(op - at) for at in places)) for op in range(400)}


def chooser_for(worth: dict[int, float], start: tuple[int, ...] = ()) -> Chooser:
    """Each op adds what it is worth, but nothing beside one that was chosen."""

    def bound_of(ops: tuple[int, ...]) -> float:
        apart = [op for n, op in enumerate(ops) if not n or op - ops[n - 1] > 20]
        return sum(worth[op] for op in apart)

    return Chooser(range(400), start, bound_of(start), bound_of, lambda: 100.0)


def test_the_best_ops_are_found_without_trying_all() -> None:
    chooser = chooser_for(needles(37, 201, 333))
    while not chooser.done:
        chooser.step()
    assert {37, 201, 333} <= set(chooser.chosen)
    assert chooser.bound == pytest.approx(30.0)
    assert chooser.trials < 130


def test_choosing_ends() -> None:
    endless = Chooser(range(400), (), 0.0, lambda ops: float(len(ops)), lambda: 100.0)
    while not endless.done:
        endless.step()
    assert len(endless.chosen) == MOST_CHOSEN or endless.trials == MOST_TRIALS
    large = Chooser(range(400), (3,), 1.0, lambda _: nan, lambda: 9.0)
    large.step()
    assert large.done
    assert large.chosen == (3,)
    alone = Chooser([7], (7,), 1.0, lambda _: 0.0, lambda: 9.0)
    assert alone.done


def tight() -> tuple[Incumbent, Bounds]:
    problem = read_instance(INSTANCES / "resnet18_cifar-m4.json")
    budget = Budget(ram_bytes=330_000, transfers="free")
    incumbent = Incumbent(problem.graph, problem.costs, budget, Effort(work_limit=1))
    return incumbent, Bounds(incumbent, HIGHS)


def test_chosen_ops_close_what_stages_leave_open() -> None:
    """Relaxations of all stages stand at 110.8 %, and their tree at 113.1 after a minute."""
    incumbent, bounds = tight()
    percent = 100 / incumbent.keep_all_joules
    while len(bounds.crossings) < 3:
        bounds.step()
    assert 113.5 < percent * bounds.roots[-1] < BEST_KNOWN
    assert bounds.crossings[-1].milp.cost.size < 2_000
    tree = Tree(bounds.crossings[-1], HIGHS, Limits(seconds=60.0))
    while not tree.done:
        tree.step(inf, 60.0)
    found = percent * tree.bound / bounds.crossings[-1].scale
    assert 114.3 < found <= BEST_KNOWN + 1e-3


def test_two_grow_one_tree_as_one_does() -> None:
    problem = read_instance(INSTANCES / "resnet18_cifar-m4.json")
    budget = Budget(ram_bytes=330_000, transfers="free")
    chosen = (71, 112, 120, 122)
    model = crossing(problem.graph, problem.costs, budget, chosen, unit_bytes=16_384).relaxation
    alone, shared = (Tree(model, HIGHS, Limits(seconds=60.0)) for _ in range(2))
    while not alone.done:
        alone.step(inf, 60.0)
    nodes = [0, 0]

    def grow(who: int) -> None:
        while not shared.done:
            before = shared.bound
            nodes[who] += shared.is_free
            shared.step(inf, 60.0, who)
            assert shared.bound >= before

    workers = [threading.Thread(target=grow, args=(who,)) for who in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert min(nodes) > 0
    assert shared.bound == pytest.approx(alone.bound, rel=1e-9)
