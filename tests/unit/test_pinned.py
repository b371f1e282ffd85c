"""Pinned tensors: somebody else holds them in RAM, and nobody gets anything for moving them."""

from random import Random
from typing import Any

import msgspec
import pytest

from poet import (
    Budget,
    Compute,
    Costs,
    Free,
    Graph,
    InPlace,
    Op,
    PageOut,
    Report,
    Tensor,
)
from poet.planner.proof.floor import memory_floor, pinned_beside
from poet.planning.solve import solve
from poet.referee.replay import check
from poet.values.plan import draft
from poet.values.schedule import Effort, Instruction
from tests.unit.brute_force import best_joules, best_joules_unrestricted
from tests.unit.random_problems import random_budget, random_costs, random_graph
from tests.unit.training_graphs import costs_of


def step() -> tuple[Graph, Costs]:
    """x and w are given; y = f(x, w); g = b(x, y); w' = w - g in w's bytes; z = e(w', g)."""
    sizes = {"x": 10, "w": 40, "y": 4, "g": 40, "w'": 40, "z": 1}
    graph = Graph(
        name="step",
        tensors=tuple(
            Tensor(name=name, nbytes=nbytes, becomes=1 if name == "w'" else None)
            for name, nbytes in sizes.items()
        ),
        ops=(
            Op(name="f", inputs=(0, 1), outputs=(2,)),
            Op(name="b", inputs=(0, 2), outputs=(3,)),
            Op(
                name="u",
                inputs=(1, 3),
                outputs=(4,),
                in_place=(InPlace(output=4, input=1),),
                recomputable=False,
            ),
            Op(name="e", inputs=(4, 3), outputs=(5,)),
        ),
    )
    return graph, costs_of(graph, [1.0] * 4, (1.0, 1.0))


START: dict[int, Any] = {0: "ram", 1: "ram"}
RUNS = tuple(map(Compute, range(4)))


def replay(pinned: tuple[int, ...], *schedule: Instruction, **asked: Any) -> Report:
    budget = Budget(**{"start": START, **asked}, pinned=pinned)
    return check(draft(*step(), budget, schedule))


def test_a_pinned_tensor_starts_in_ram_and_does_not_end_elsewhere() -> None:
    graph, _ = step()
    for start, pinned, message in (
        ({**START, 0: "store"}, (0,), "tensor 0 is pinned in RAM, but it does not start there"),
        (START, (0, 1, 0), "pinned names a tensor twice"),
    ):
        with pytest.raises(ValueError, match=message):
            Budget(start=start, pinned=pinned)
    elsewhere = Budget(start=START, pinned=(0,), end={0: "store"})
    with pytest.raises(ValueError, match=r"tensor 0 \(x\) is pinned in RAM, but is asked to end"):
        elsewhere.check_belongs(graph)
    for end in ("ram", "both", "either"):
        msgspec.structs.replace(elsewhere, end={0: end}).check_belongs(graph)
    Budget(start={**START, 0: "both"}, pinned=(0, 1, 2)).check_belongs(graph)
    for wrong in (-1, 6):
        with pytest.raises(ValueError, match=f"pinned names tensor {wrong}; the graph has"):
            Budget(start=START, pinned=(wrong,)).check_belongs(graph)


def test_it_is_not_freed_and_the_message_says_why() -> None:
    report = replay((0,), Compute(0), Compute(1), Free(0), *RUNS[2:])
    assert report.violation is not None
    assert (report.violation.instruction, report.violation.rule) == (2, "pinned")
    assert report.violation.tensor == 0
    assert report.violation.message.endswith(
        "tensor 0 (x) is pinned: somebody else holds it, and to free it gives nothing back"
    )
    assert replay((1,), Compute(0), Compute(1), Free(0), *RUNS[2:]).valid


def test_an_op_may_consume_it_and_what_it_becomes_is_free_to_go() -> None:
    assert replay((0, 1), *RUNS, Free(4)).valid
    gone = replay((0, 1), *RUNS, Free(1)).violation
    assert gone is not None
    assert gone.rule == "not-in-ram"


def test_a_copy_of_it_may_go_to_the_store() -> None:
    assert replay((0,), PageOut(0), *RUNS, end={0: "both"}).valid


def test_the_floor_counts_it_under_every_op_until_it_is_consumed() -> None:
    graph, costs = step()

    def floor(*pinned: int) -> tuple[int, str]:
        found = memory_floor(graph, costs, Budget(start=START, pinned=pinned))
        return found.nbytes, found.cause

    assert floor() == (81, "e (forward)")  # w', g and z
    assert floor(0) == (91, "e (forward)")  # and x
    assert floor(1) == (94, "b (forward)")  # x, y, g beside w; when e runs, w is gone
    assert floor(0, 1) == (94, "b (forward)")
    beside = pinned_beside(graph, Budget(start=START, pinned=(0, 1)))
    assert list(map(sorted, beside)) == [[0, 1], [0, 1], [0, 1], [0]]


def test_the_plan_at_the_floor_pins_and_the_one_below_is_impossible() -> None:
    graph, costs = step()
    for ram_bytes, status in ((94, "optimal"), (93, "infeasible")):
        budget = Budget(start=START, pinned=(0, 1), ram_bytes=ram_bytes)
        assert solve(graph, costs, budget, Effort(time_limit_seconds=5)).status == status


def test_no_order_of_ops_gets_below_the_floor() -> None:
    pinned = consumed = reached = 0
    for seed in range(400):
        rng = Random(seed)
        graph = random_graph(rng, rng.randint(2, 4))
        costs, budget = random_costs(rng, graph), random_budget(rng, graph)
        if len(graph.ops) > 5 or not any(graph.tensors[i].nbytes for i in budget.pinned):
            continue
        floor = memory_floor(graph, costs, budget)
        at, below = (
            msgspec.structs.replace(
                budget,
                transfers="free",
                ram_bytes=ram_bytes,
                store_bytes=None,
                deadline_seconds=None,
            )
            for ram_bytes in (floor.nbytes, floor.nbytes - 1)
        )
        pinned += 1
        consumed += any(i in op.consumed for op in graph.ops for i in budget.pinned)
        reached += best_joules_unrestricted(graph, costs, at) is not None
        if floor.nbytes:
            assert best_joules_unrestricted(graph, costs, below) is None, seed
    assert min(pinned, 3 * consumed, 2 * reached) > 50


def test_pinning_never_saves_joules_and_often_costs_some() -> None:
    compared = dearer = impossible = 0
    for seed in range(600):
        rng = Random(seed)
        graph = random_graph(rng, rng.randint(2, 5))
        costs, budget = random_costs(rng, graph), random_budget(rng, graph)
        budget = msgspec.structs.replace(
            budget,
            transfers=rng.choice(("serial", "free")),
            ram_bytes=memory_floor(graph, costs, budget).nbytes + rng.choice((0, 1, 7, 64)),
        )
        loose = msgspec.structs.replace(budget, pinned=())
        free = best_joules(graph, costs, loose, end_loads=True) if budget.pinned else None
        if free is None:
            continue
        held = best_joules(graph, costs, budget, end_loads=True)
        compared += 1
        impossible += held is None
        if held is not None:
            assert held >= free - 1e-9, seed
            dearer += held > free + 1e-9
    assert min(compared // 4, dearer, impossible) > 10
