"""The schedule makers: always valid where they say so, and what `poet.plan` makes of them."""

from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest

import poet
from poet import Budget, Compute, Graph, Op, PageIn, PageOut, PoetError, Tensor
from poet.baselines import STARTS
from poet.planner.proof.floor import least_joules, least_seconds, memory_floor
from poet.planning.solve import solve
from poet.values.plan import draft
from poet.values.schedule import Effort, places
from tests.conftest import INSTANCES
from tests.unit.random_problems import random_budget, random_costs, random_graph

ALL = sorted(INSTANCES.glob("*.json"))
SMALL = [path for path in ALL if path.stem.split("-")[0] in ("linear", "transformer", "vgg16")]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_instances_are_read_and_their_floor_is_ours(path: Path) -> None:
    file = msgspec.json.decode(path.read_bytes())
    problem = poet.read_instance(path)
    nodes = file["nodes"]
    assert problem.graph.given == ()
    assert [op.inputs for op in problem.graph.ops] == [tuple(node["deps"]) for node in nodes]
    assert [op.outputs for op in problem.graph.ops] == [(i,) for i in range(len(nodes))]
    assert [tensor.nbytes for tensor in problem.graph.tensors] == [n["output_bytes"] for n in nodes]
    assert problem.costs.keep_all_joules == pytest.approx(sum(n["compute_joules"] for n in nodes))
    floor = memory_floor(problem.graph, problem.costs, Budget())
    assert floor.nbytes == file["floor_bytes"]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_plenty_of_ram_is_optimal_at_once(path: Path) -> None:
    plan = poet.plan(poet.read_instance(path))
    assert (plan.status, plan.solver) == ("optimal", "keep-all")
    assert plan.gap == pytest.approx(0)
    assert plan.joules == pytest.approx(plan.baseline_joules, rel=1e-12)
    report = poet.check(plan)
    assert (report.valid, report.claims_match) == (True, True)
    assert (report.page_ins, report.page_outs, report.recomputed_ops) == (0, 0, 0)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
@pytest.mark.parametrize("transfers", ["free", "serial"])
def test_the_floor_is_reached_by_paging(
    path: Path, transfers: poet.values.schedule.Transfers
) -> None:
    problem = poet.read_instance(path)
    floor = memory_floor(problem.graph, problem.costs, Budget()).nbytes
    plan = poet.plan(problem, ram=floor, transfers=transfers, method="paging-greedy")
    assert (plan.status, plan.solver, plan.peak_bytes) == ("feasible", "paging-greedy", floor)
    below = poet.plan(problem, ram=floor - 1, transfers=transfers)
    assert (below.status, below.schedule) == ("infeasible", ())
    assert f"needs {floor:,} bytes at once; the budget is {floor - 1:,}" in below.reason


AT_ONCE = 1e-3
"""Seconds in which makers answer and no machine proves anything."""


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_overlapped_transfers_are_never_slower_than_serial_ones(path: Path) -> None:
    problem = poet.read_instance(path)
    keep_all = poet.plan(problem).peak_bytes
    assert keep_all is not None
    plan = poet.plan(problem, ram=keep_all * 9 // 10, transfers="overlap", method="paging-greedy")
    assert poet.check(plan).valid, plan.reason
    assert plan.seconds is not None
    serial = poet.plan(problem, ram=keep_all * 9 // 10, transfers="serial", method="paging-greedy")
    assert serial.seconds is not None
    assert plan.seconds <= serial.seconds


@pytest.mark.parametrize("block", range(4))
def test_makers_keep_their_word_on_random_problems(block: int) -> None:
    valid: Counter[str] = Counter()
    for seed in range(100 * block, 100 * block + 100):
        rng = Random(seed)
        graph = random_graph(rng, ops=rng.randint(1, 12))
        costs = random_costs(rng, graph)
        budget = msgspec.structs.replace(random_budget(rng, graph), recompute=True, paging=True)
        floor = memory_floor(graph, costs, budget).nbytes
        for name, maker in STARTS.items():
            solution = maker(graph, costs, budget, Effort())
            if solution.status != "feasible":
                assert solution.schedule == ()
                assert solution.reason
                continue
            report = poet.check(draft(graph, costs, budget, solution.schedule))
            # Time is not the makers' concern, nor RAM keep-all's.
            allowed = {"deadline", *(("ram",) if name == "keep-all" else ())}
            assert report.valid or (report.violation and report.violation.rule in allowed), seed
            assert report.peak_bytes >= floor or not report.valid
            assert report.joules >= least_joules(costs) - 1e-9
            assert report.compute_seconds >= least_seconds(costs) - 1e-9
            valid[name] += report.valid
    assert min(valid[name] for name in STARTS) > 50


@pytest.mark.parametrize("block", range(4))
def test_plans_are_refereed_and_claim_what_they_do(block: int) -> None:
    found = 0
    for seed in range(25 * block, 25 * block + 25):
        rng = Random(seed)
        graph = random_graph(rng, ops=8)
        costs, budget = random_costs(rng, graph), random_budget(rng, graph)
        plan = solve(graph, costs, budget, Effort(time_limit_seconds=0.2))
        if plan.status in ("optimal", "feasible"):
            report = poet.check(plan)
            assert report.valid, seed
            assert report.claims_match, (seed, report.mismatches)
            found += 1
        else:
            assert plan.schedule == ()
            assert plan.reason
            assert plan.joules is None
    assert 8 < found < 25, "some problems with a schedule, and some without"


def test_no_paging_means_none() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    assert poet.plan(problem, paging=False).status == "optimal"
    tight = poet.plan(problem, ram=4000, paging=False, time_limit=60)
    assert tight.status == "optimal"
    report = poet.check(tight)
    assert (report.page_ins, report.page_outs) == (0, 0)
    assert report.recomputed_ops > 0
    neither = partial(poet.plan, problem, ram=4000, paging=False, recompute=False)
    hasty = neither(time_limit=AT_ONCE)
    assert hasty.status == "unknown"
    assert "the budget forbids paging" in hasty.reason
    patient = neither(time_limit=60)
    assert patient.status == "infeasible"
    assert "certified" in patient.reason


def test_deadlines() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    assert poet.plan(problem, deadline="1x").status == "optimal"
    tight = poet.plan(problem, ram=4000, deadline="1x", time_limit=1)
    assert tight.seconds == pytest.approx(problem.costs.keep_all_seconds)  # paging takes no time
    late = poet.plan(problem, ram=4000, deadline="1x", transfers="serial")
    assert late.status == "infeasible"
    assert "RAM and deadline together" in late.reason
    never = poet.plan(problem, deadline="0.5x")
    assert never.status == "infeasible"
    assert "running every op once takes" in never.reason


def test_a_board_gives_its_ram() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    board = poet.find_device("mkr1000")
    plan = poet.plan(problem, "mkr1000")
    assert plan.budget.ram_bytes == board.ram_bytes - board.reserved_bytes
    assert plan.budget.store_bytes == board.store_bytes
    assert plan.budget.transfers == "free"
    assert poet.plan(problem, board, ram="20 KiB").budget.ram_bytes == 20_480


def test_wrong_requests() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    other = poet.read_instance(INSTANCES / "vgg16-m4.json")
    with pytest.raises(PoetError, match="no costs"):
        poet.plan(problem.graph)
    with pytest.raises(PoetError, match=other.graph.fingerprint):
        poet.plan(problem.graph, costs=other.costs)
    with pytest.raises(PoetError, match="no method 'magic'"):
        poet.plan(problem, method="magic")
    with pytest.raises(PoetError, match="12 bananas"):
        poet.plan(problem, ram="12 bananas")


def training_step() -> Graph:
    """x, w → y → g; w' = w - g in place; y is wanted."""
    return Graph(
        name="step",
        tensors=(
            Tensor(name="x", nbytes=10, role="input"),
            Tensor(name="w", nbytes=40, role="parameter"),
            Tensor(name="y", nbytes=4, role="output"),
            Tensor(name="g", nbytes=40, role="gradient"),
            Tensor(name="w'", nbytes=40, role="parameter", becomes=1),
            Tensor(name="frozen", nbytes=8, role="parameter"),
        ),
        ops=(
            Op(name="forward", inputs=(0, 1, 5), outputs=(2,)),
            Op(name="backward", phase="backward", inputs=(0, 2), outputs=(3,)),
            Op(
                name="update",
                phase="update",
                inputs=(1, 3),
                outputs=(4,),
                in_place=(poet.InPlace(output=4, input=1),),
                recomputable=False,
            ),
        ),
    )


def test_places_by_role() -> None:
    graph = training_step()
    assert places(graph, "resident") == (
        {0: "ram", 1: "ram", 5: "ram"},
        {4: "ram", 5: "ram", 2: "ram"},
    )
    assert places(graph, "paged") == (
        {0: "ram", 1: "store", 5: "store"},
        {4: "store", 5: "store", 2: "ram"},
    )


def test_a_step_with_paged_parameters_runs_from_store_to_store() -> None:
    graph = training_step()
    costs = random_costs(Random(0), graph)
    costs = msgspec.structs.replace(costs, ops=tuple({"plain": v["plain"]} for v in costs.ops))
    plan = poet.plan(graph, costs=costs, params="paged", transfers="serial", time_limit=1)
    assert plan.status in ("feasible", "optimal")
    kinds = [type(step) for step in plan.schedule]
    assert kinds.count(PageIn) == 2
    assert kinds.count(PageOut) == 1
    assert kinds.count(Compute) == 3


def test_printing_a_plan_gives_a_table() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    text = str(poet.plan(problem, ram=4000, deadline="1.5x", time_limit=1))
    for word in ("energy", "gap", "RAM peak", "4,000 B", "deadline", "paged out", "poet (highs)"):
        assert word in text
    assert "infeasible" in str(poet.plan(problem, ram=1))
