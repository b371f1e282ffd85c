"""The planner's oracles against the referee, against each other, and against answers by hand."""

from itertools import product
from math import isclose
from random import Random

import msgspec
import pytest

from poet import Budget, Costs, Graph, InPlace, Op, Run, Tensor, Transfer
from poet.referee.replay import check
from poet.values.device import PLAIN
from poet.values.plan import draft
from poet.values.schedule import Compute
from tests.unit.brute_force import (
    StateSpaceTooLarge,
    best_joules,
    best_joules_unrestricted,
    best_schedule,
)
from tests.unit.literal_stages import literal_joules
from tests.unit.paper_model import paper_joules
from tests.unit.random_problems import random_budget, random_costs, random_graph

NEAR = 1e-9


def small_problem(seed: int, most_ops: int) -> tuple[Graph, Costs, Budget]:
    """Everything the values allow, in little RAM more often than not."""
    rng = Random(seed)
    graph = random_graph(rng, rng.randint(2, most_ops))
    costs, budget = random_costs(rng, graph), random_budget(rng, graph)
    total = sum(tensor.nbytes for tensor in graph.tensors)
    little = rng.randint(total // 4, total // 2 + 1)
    budget = msgspec.structs.replace(
        budget,
        transfers=rng.choice(("serial", "free")),
        ram_bytes=rng.choice((None, rng.randint(0, total + 1), little, little)),
        deadline_seconds=rng.choice((None, None, rng.uniform(0, 20))),
    )
    return graph, costs, budget


def instance_like(seed: int, ops: int) -> tuple[Graph, Costs, Budget]:
    """One output an op, a forward and a backward half with skips, RAM close to the least."""
    rng = Random(seed)
    half = (ops + 1) // 2
    inputs: list[set[int]] = []
    for k in range(ops):
        reads = {k - 1} if k else set()
        mirror = 2 * half - 1 - k
        if rng.random() < 0.3:
            reads = set(rng.sample(range(k), min(k, rng.choice((0, 1, 2)))))
        elif k >= half and mirror >= 0:
            reads |= {mirror, max(0, mirror - rng.randint(0, 1))}
        if k > 1 and rng.random() < 0.25:
            reads.add(rng.randrange(k))
        inputs.append(reads)
    tensors = [Tensor(name=f"t{k}", nbytes=rng.choice((1, 2, 3, 4, 8))) for k in range(ops)]
    graph = Graph(
        name="instance-like",
        tensors=tuple(tensors),
        ops=tuple(
            Op(name=f"op{k}", inputs=tuple(sorted(reads)), outputs=(k,))
            for k, reads in enumerate(inputs)
        ),
    )
    paging = rng.choice((0.2, 1.0, 2.0))

    def amount() -> float:
        return rng.uniform(0.1, 3.0)

    costs = Costs(
        graph=graph.fingerprint,
        device="random",
        ops=tuple({PLAIN: Run(seconds=amount(), joules=amount())} for _ in tensors),
        tensors=tuple(transfer(paging * amount(), paging * amount()) for _ in tensors),
    )
    least = max(sum(tensors[i].nbytes for i in (*op.inputs, *op.outputs)) for op in graph.ops)
    total = sum(tensor.nbytes for tensor in tensors)
    budget = Budget(
        ram_bytes=rng.choice((least, least + 1, rng.randint(least, max(least, total)))),
        deadline_seconds=rng.choice((None, costs.keep_all_seconds * rng.uniform(1.0, 1.6))),
        transfers="free",
    )
    return graph, costs, budget


def transfer(in_joules: float, out_joules: float, seconds: float = 0.5) -> Transfer:
    return Transfer(
        in_seconds=seconds, in_joules=in_joules, out_seconds=seconds, out_joules=out_joules
    )


@pytest.mark.slow
def test_the_schedule_of_brute_force_replays_to_its_joules() -> None:
    found = recomputed = paged = streamed = pinned = 0
    for seed in range(2000):
        make = small_problem if seed % 4 else instance_like
        graph, costs, budget = make(seed, 6)
        best = best_schedule(graph, costs, budget, end_loads=seed % 2 == 0)
        if best is None:
            continue
        report = check(draft(graph, costs, budget, best[1]))
        assert report.valid, (seed, report.violation)
        assert isclose(report.joules, best[0], rel_tol=NEAR, abs_tol=NEAR), seed
        found += 1
        recomputed += report.recomputed_ops > 0
        paged += report.page_ins > 0
        streamed += report.streamed_bytes > 0
        pinned += bool(budget.pinned)
    assert min(found // 10, recomputed, paged, streamed, pinned // 2) > 20


@pytest.mark.slow
def test_late_decisions_lose_nothing_against_literal_ones() -> None:
    """Brute force decides drops and writes late; `literal_joules` tries them all when §2 does."""
    both = pinned = 0
    for seed in range(20_000, 20_800):
        graph, costs, budget = small_problem(seed, 3)
        if len(graph.tensors) > 6:
            continue
        quick, slow = best_joules(graph, costs, budget), literal_joules(graph, costs, budget)
        assert (quick is None) == (slow is None), seed
        if quick is not None and slow is not None:
            assert isclose(quick, slow, rel_tol=NEAR, abs_tol=NEAR), seed
            both += 1
            pinned += bool(budget.pinned)
    assert both > 100
    assert pinned > 20


def test_no_stage_structured_schedule_beats_the_unrestricted_search() -> None:
    better = both = pinned = 0
    for seed in range(400):
        graph, costs, budget = small_problem(seed, 4)
        staged = best_joules(graph, costs, budget, end_loads=True)
        if len(graph.ops) > 5 or staged is None:
            continue
        in_order = best_joules_unrestricted(graph, costs, budget, in_order=True)
        any_order = best_joules_unrestricted(graph, costs, budget)
        assert in_order is not None, seed
        assert any_order is not None, seed
        assert any_order <= in_order * (1 + NEAR) <= staged * (1 + 2 * NEAR), seed
        both += 1
        pinned += bool(budget.pinned)
        better += any_order < staged * (1 - NEAR)
    assert both > 100
    assert pinned > 20
    assert better > 0, "some orders of first runs are better than the graph's"


@pytest.mark.slow
def test_the_paper_s_model_is_never_below_brute_force() -> None:
    pytest.importorskip("highspy")
    better = costly = both = 0
    for seed, ops in [*product(range(60), (4, 5, 6)), *product(range(8), (8,))]:
        graph, costs, budget = instance_like(seed, ops)
        assert budget.ram_bytes is not None
        ours = best_joules(graph, costs, budget)
        paper = paper_joules(graph, costs, budget.ram_bytes, budget.deadline_seconds)
        released = paper_joules(
            graph, costs, budget.ram_bytes, budget.deadline_seconds, as_released=True
        )
        if ours is None:
            assert paper is None, (seed, ops)
            continue
        costly += ours > costs.keep_all_joules * (1 + 1e-6)
        paper = float("inf") if paper is None else paper
        assert ours <= paper * (1 + 1e-6), (seed, ops)
        assert released is None or paper <= released * (1 + 1e-6), (seed, ops)
        better += ours < paper * (1 - 1e-6)
        both += released is not None
    assert min(costly, both) > 20
    assert better > 0, "the paper's model must hold a tensor for a stage before it is paged out"


def test_brute_force_refuses_what_it_cannot_search(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, costs, budget = by_hand()
    with pytest.raises(ValueError, match="serial and free"):
        best_joules(graph, costs, msgspec.structs.replace(budget, transfers="overlap"))
    monkeypatch.setattr("tests.unit.brute_force.MAX_STATES", 2_000)
    graph, costs, budget = instance_like(1, 40)
    with pytest.raises(StateSpaceTooLarge):
        best_joules(graph, costs, budget)


def by_hand(paging_joules: float = 5.0) -> tuple[Graph, Costs, Budget]:
    """x0 is read by ops 1 and 3 and does not fit beside op 2."""
    graph = Graph(
        name="chain",
        tensors=tuple(Tensor(name=f"x{k}", nbytes=nbytes) for k, nbytes in enumerate((4, 4, 4, 1))),
        ops=tuple(
            Op(name=f"op{k}", inputs=inputs, outputs=(k,))
            for k, inputs in enumerate(((), (0,), (1,), (0, 2)))
        ),
    )
    costs = plain_costs(graph, paging_joules)
    return graph, costs, Budget(ram_bytes=9)


def plain_costs(graph: Graph, paging_joules: float, workspace: tuple[int, ...] = ()) -> Costs:
    """A second and a joule an op, half a second and `paging_joules` a transfer."""
    spaces = (*workspace, *[0] * len(graph.ops))
    return Costs(
        graph=graph.fingerprint,
        device="by hand",
        ops=tuple(
            {PLAIN: Run(seconds=1.0, joules=1.0, workspace_bytes=nbytes)}
            for nbytes in spaces[: len(graph.ops)]
        ),
        tensors=tuple(transfer(paging_joules, paging_joules) for _ in graph.tensors),
    )


def test_recomputing_wins_where_paging_is_dear() -> None:
    graph, costs, budget = by_hand(paging_joules=5.0)
    best = best_schedule(graph, costs, budget)
    assert best is not None
    assert best[0] == 5.0
    assert [step.op for step in best[1] if isinstance(step, Compute)] == [0, 1, 2, 0, 3]
    assert best_joules_unrestricted(graph, costs, budget) == 5.0
    assert best_joules(graph, costs, msgspec.structs.replace(budget, recompute=False)) == 14.0
    assert best_joules(graph, costs, msgspec.structs.replace(budget, ram_bytes=8)) is None


def test_paging_wins_where_it_is_cheap() -> None:
    graph, costs, budget = by_hand(paging_joules=0.25)
    assert best_joules(graph, costs, budget) == 4.5
    assert best_joules(graph, costs, msgspec.structs.replace(budget, store_bytes=4)) == 4.5
    assert best_joules(graph, costs, msgspec.structs.replace(budget, store_bytes=3)) == 5.0
    assert best_joules(graph, costs, msgspec.structs.replace(budget, paging=False)) == 5.0


def test_a_tight_deadline_forbids_recomputing() -> None:
    graph, costs, budget = by_hand(paging_joules=5.0)
    for transfers, deadline, joules in (
        ("serial", 5.0, 5.0),
        ("free", 5.0, 5.0),
        ("free", 4.9, 14.0),
        ("serial", 4.9, None),
    ):
        asked = msgspec.structs.replace(budget, transfers=transfers, deadline_seconds=deadline)
        assert best_joules(graph, costs, asked) == joules
    idle = msgspec.structs.replace(costs, idle_watts=2.0)
    assert best_joules(graph, idle, budget) == 15.0


def test_an_output_that_is_not_wanted_again_is_workspace() -> None:
    graph = Graph(
        name="two outputs",
        tensors=tuple(Tensor(name=name, nbytes=4) for name in "abcde"),
        ops=(
            Op(name="ab", outputs=(0, 1)),
            Op(name="c", inputs=(0,), outputs=(2,)),
            Op(name="d", inputs=(1, 2), outputs=(3,)),
            Op(name="e", inputs=(0, 3), outputs=(4,)),
        ),
    )
    budget = Budget(ram_bytes=12)
    assert best_joules(graph, plain_costs(graph, 2.0), budget) == 5.0
    # One byte more, and a recomputation of a with b no longer fits beside d.
    assert best_joules(graph, plain_costs(graph, 2.0, workspace=(1,)), budget) == 8.0


def test_what_an_update_consumed_is_not_read_again() -> None:
    graph = Graph(
        name="update",
        tensors=(
            Tensor(name="p", nbytes=4, role="parameter"),
            Tensor(name="x", nbytes=4),
            Tensor(name="g", nbytes=4, role="gradient"),
            Tensor(name="new p", nbytes=4, role="parameter", becomes=0),
            Tensor(name="y", nbytes=1),
        ),
        ops=(
            Op(name="x", inputs=(0,), outputs=(1,)),
            Op(name="g", inputs=(1,), outputs=(2,)),
            Op(
                name="update",
                phase="update",
                inputs=(0, 2),
                outputs=(3,),
                in_place=(InPlace(output=3, input=0),),
                recomputable=False,
            ),
            Op(name="y", inputs=(1, 3), outputs=(4,)),
        ),
    )
    costs = plain_costs(graph, 3.0)
    budget = Budget(ram_bytes=12, start={0: "ram"}, end={3: "ram"})
    assert best_joules(graph, costs, budget) == 4.0
    # p leaves for g, and x for the update; x cannot be recomputed from p, so it is paged too.
    tight = msgspec.structs.replace(budget, ram_bytes=11)
    assert best_joules(graph, costs, tight) == 16.0
    in_store = msgspec.structs.replace(tight, start={0: "store"}, end={3: "store"})
    assert best_joules(graph, costs, in_store) == 4.0 + 2 * 3.0 + 2 * 3.0 + 3.0
    # The old and the new parameter share a slot: 8 bytes are enough for p and x.
    for nbytes, joules in ((8, 19.0), (7, None)):
        limited = msgspec.structs.replace(in_store, store_bytes=nbytes)
        assert best_joules(graph, costs, limited) == joules


def test_loading_a_tensor_twice_in_one_stage_is_left_to_the_unrestricted_search() -> None:
    """c is recomputed from x in the last stage; x is read by ops 0 and 2, and op 1 needs all RAM.
    One source a stage (§3.2) does not allow that, so c has to be paged."""
    sizes = {"x": 4, "a": 4, "b": 4, "c": 1, "d": 0, "e": 0}
    graph = Graph(
        name="two loads",
        tensors=tuple(Tensor(name=name, nbytes=nbytes) for name, nbytes in sizes.items()),
        ops=(
            Op(name="a", inputs=(0,), outputs=(1,)),
            Op(name="b", inputs=(1,), outputs=(2,)),
            Op(name="c", inputs=(0, 2), outputs=(3,)),
            Op(name="d", outputs=(4,)),
            Op(name="e", inputs=(3, 4), outputs=(5,)),
        ),
    )
    costs = plain_costs(graph, 8.0, workspace=(0, 4, 0, 12))
    costs = msgspec.structs.replace(costs, tensors=(transfer(0.25, 0.25), *costs.tensors[1:]))
    budget = Budget(ram_bytes=12, start={0: "store"})
    assert best_joules(graph, costs, budget) == 5 + 2 * 0.25 + 2 * 8.0
    assert best_joules_unrestricted(graph, costs, budget, in_order=True) == 8 + 4 * 0.25
