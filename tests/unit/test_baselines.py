"""The baselines: known values on chains, and brute force on tiny problems."""

from collections import Counter
from functools import cache
from itertools import combinations
from math import inf, isqrt
from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import poet
from poet import Budget, Compute, Costs, Graph, PageIn, PageOut
from poet.baselines import METHODS, STARTS
from poet.baselines.chain import articulations, boundaries, chain_of, checkpointed
from poet.baselines.chen_greedy import cuts_at
from poet.baselines.chen_sqrt import equal_cuts
from poet.baselines.keep_all import kept_all
from poet.baselines.pofo import pofo
from poet.baselines.pofo_table import Table, measure
from poet.baselines.revolve import reverse, steps_ahead
from poet.baselines.torch_budget import Knapsack, save
from poet.planner.proof.floor import memory_floor
from poet.referee.verdict import Report
from poet.values.plan import draft
from poet.values.schedule import Effort, Schedule
from tests.conftest import INSTANCES
from tests.unit.brute_force import best_joules
from tests.unit.random_problems import random_costs, random_graph
from tests.unit.training_graphs import chain

SEARCHING = ("paging", "checkmate")
X0 = Budget(start={0: "ram"}, transfers="free")


def replay(graph: Graph, costs: Costs, budget: Budget, schedule: Schedule) -> Report:
    return poet.check(draft(graph, costs, budget, schedule))


def test_keeping_all_is_measured_whatever_the_limits_are() -> None:
    graph, costs = chain([10, 20, 30])
    tight = Budget(start={0: "store"}, ram_bytes=1, store_bytes=0, deadline_seconds=0.0)
    report = kept_all(graph, costs, tight)
    assert report is not None
    # x0 comes from the store, 10 J; at the first backward op all of x and one gradient are there
    assert (report.joules, report.page_ins, report.peak_bytes) == (14.0, 1, 61)
    assert kept_all(graph, costs, Budget(start={0: "store"}, paging=False)) is None


def runs(schedule: Schedule) -> Counter[int]:
    return Counter(step.op for step in schedule if isinstance(step, Compute))


def joules(
    name: str, graph: Graph, costs: Costs, budget: Budget, seconds: float = 10.0
) -> float | None:
    """What a method needs, or None; whatever it says is checked."""
    solution = METHODS[name](graph, costs, budget, Effort(time_limit_seconds=seconds))
    if solution.status != "feasible":
        assert solution.status == "unknown", name
        assert solution.reason, name
        assert solution.schedule == (), name
        return None
    report = replay(graph, costs, budget, solution.schedule)
    assert report.valid, (name, report.violation)
    return report.joules


def test_the_methods_and_their_order() -> None:
    assert list(METHODS) == [
        "keep-all", "paging", "chen-sqrt", "chen-greedy", "revolve", "checkmate", "dtr",
        "capuchin", "pofo", "torch-budget", "paging-greedy",
    ]  # fmt: skip
    assert list(STARTS) == ["keep-all", "paging-greedy"]
    assert all(METHODS[name] is maker for name, maker in STARTS.items())


# Revolve


@cache
def fewest_steps(steps: int, snapshots: int) -> int:
    """By its recurrence: run ahead to a middle, reverse what follows, reverse what precedes."""
    if steps == 1:
        return 0
    if snapshots == 1:
        return steps * (steps - 1) // 2
    return min(
        middle + fewest_steps(steps - middle, snapshots - 1) + fewest_steps(middle, snapshots)
        for middle in range(1, steps)
    )


def test_revolves_formula_is_its_recurrence() -> None:
    for steps in range(1, 60):
        for snapshots in range(1, 9):
            assert steps_ahead(steps, snapshots) == fewest_steps(steps, snapshots)
    assert steps_ahead(10, 3) == 15
    assert steps_ahead(56, 5) == 140  # r = 3 sweeps: C(8, 5) = 56 steps


@pytest.mark.parametrize(("steps", "snapshots"), [(2, 1), (10, 3), (10, 1), (20, 4), (56, 5)])
def test_revolve_runs_as_many_steps_as_published(steps: int, snapshots: int) -> None:
    graph, costs = chain([1] * (steps + 1))
    cuts = boundaries(graph)
    schedule = reverse(graph, costs, X0, chain_of(graph, cuts), snapshots)
    report = replay(graph, costs, X0, schedule)
    assert report.valid
    # All but the last step of the first pass are among the steps run ahead.
    assert report.recomputed_ops == fewest_steps(steps, snapshots) - (steps - 1)
    # Snapshots, the two ends of the step being undone, two gradients, one state on its way.
    assert report.peak_bytes <= snapshots + 5


@pytest.mark.slow
def test_revolve_takes_as_many_snapshots_as_fit() -> None:
    graph, costs = chain([1] * 31)
    last = inf
    for ram_bytes in range(6, 40):
        needed = joules("revolve", graph, costs, with_ram(X0, ram_bytes))
        assert needed is not None
        assert needed <= last
        last = needed
    assert last == costs.keep_all_joules


def with_ram(budget: Budget, ram_bytes: int) -> Budget:
    return msgspec.structs.replace(budget, ram_bytes=ram_bytes)


# Chen


@pytest.mark.parametrize("steps", [16, 100, 400])
def test_the_square_root_needs_its_square_root_and_one_more_forward(steps: int) -> None:
    graph, costs = chain([1] * (steps + 1))
    root = isqrt(steps)
    cuts = equal_cuts(boundaries(graph), root)
    assert [cut.after + 1 for cut in cuts] == [root * at for at in range(1, root)]
    schedule = checkpointed(graph, costs, X0, cuts)
    report = replay(graph, costs, X0, schedule)
    assert report.valid
    assert report.peak_bytes <= 2 * root + 3
    states = {cut.after for cut in cuts}
    twice = set(range(steps - root)) - states
    assert runs(schedule) == {k: 2 if k in twice else 1 for k in range(2 * steps)}


def test_greedy_cuts_by_bytes() -> None:
    graph, _ = chain([1, 5, 1, 1, 5, 1, 1, 1, 1])
    cuts = boundaries(graph)
    assert [cut.after for cut in cuts_at(cuts, [5, 1, 1, 5, 1, 1, 1, 1], 4)] == [0, 3]
    assert [cut.after for cut in cuts_at(cuts, [5, 1, 1, 5, 1, 1, 1, 1], 6)] == [2, 5]
    assert cuts_at(cuts, [5, 1, 1, 5, 1, 1, 1, 1], 100) == []


def test_cuts_are_where_every_path_passes() -> None:
    problem = poet.read_instance(INSTANCES / "resnet18_cifar-m4.json")
    names = {cut.after for cut in articulations(problem.graph)}
    assert {2, 12, 22, 32, 42, 52, 62} <= names  # the blocks' ends
    assert not names & {3, 7, 9, 17, 28}  # inside a block two paths run
    across = dict(boundaries(problem.graph))
    assert across[9] == (7, 9)


# DTR


def test_dtr_stays_linear_with_the_square_root_of_the_memory() -> None:
    for steps in (64, 256, 1024):
        graph, costs = chain([1] * (steps + 1))
        budget = with_ram(X0, 2 * isqrt(steps) + 8)
        solution = METHODS["dtr"](graph, costs, budget, Effort())
        report = replay(graph, costs, budget, solution.schedule)
        assert report.valid
        assert report.recomputed_ops > 0
        assert sum(runs(solution.schedule).values()) <= 1.6 * 2 * steps


def test_dtr_says_when_it_cannot() -> None:
    graph, costs = chain([4, 4, 4, 4])
    solution = METHODS["dtr"](graph, costs, with_ram(X0, 9), Effort())
    assert solution.status == "unknown"
    assert "needs 12 bytes when all is evicted that can be; the budget is 9" in solution.reason


# Capuchin


def test_capuchin_swaps_the_longest_free_time_first() -> None:
    graph, costs = chain([0, 4, 4, 4, 4], paging=(0.1, 10.0))
    whole = replay(graph, costs, X0, METHODS["keep-all"](graph, costs, X0, Effort()).schedule)
    solution = METHODS["capuchin"](graph, costs, with_ram(X0, whole.peak_bytes - 1), Effort())
    # x1 is away longest: from f1 to b1, four seconds, less 0.8 for the transfers.
    assert [s.tensor for s in solution.schedule if isinstance(s, PageOut | PageIn)] == [1, 1]
    assert all(count == 1 for count in runs(solution.schedule).values())
    report = replay(graph, costs, X0, solution.schedule)
    assert report.joules == pytest.approx(8 + 2 * 4 * 10)  # energy is not its concern


def test_capuchin_remakes_by_bytes_per_second_where_transfers_do_not_hide() -> None:
    graph, costs = chain([0, 4, 4, 4, 4], joules=[2.0, 1.0, 3.0, 1.0], paging=(100.0, 0.0))
    whole = replay(graph, costs, X0, METHODS["keep-all"](graph, costs, X0, Effort()).schedule)
    solution = METHODS["capuchin"](graph, costs, with_ram(X0, whole.peak_bytes - 1), Effort())
    # Of x1, x2 and x3, which wait at the peak, x2 costs 1 s for its 4 bytes.
    assert [op for op, count in runs(solution.schedule).items() if count > 1] == [1]
    assert not any(isinstance(step, PageOut) for step in solution.schedule)


# POFO


def naive_chain_joules(
    sizes: list[int], price: list[float], gradient_bytes: int, ram_bytes: int
) -> float:
    """Rematerialization of a chain by plain recursion, from the definition, in exact bytes.

    sizes[i] are x_i's bytes. `free` is what is left beside x_s.
    """
    count = len(price)

    @cache
    def best(s: int, t: int, free: int) -> float:
        gradient = 0 if t == count - 1 else gradient_bytes
        undo = sizes[s + 1] + gradient_bytes * (1 if s == count - 1 else 2)
        if s == t:
            return price[s] if max(sizes[s + 1] + gradient, undo) <= free else inf
        found = inf
        if max(sizes[s + 1] + gradient, undo) <= free:
            found = price[s] + best(s + 1, t, free - sizes[s + 1])
        for z in range(s + 1, t + 1):
            peak = max(sizes[k + 1] + (sizes[k] if k > s else 0) for k in range(s, z))
            if peak + gradient <= free and sizes[z] <= free:
                ahead = sum(price[s:z])
                found = min(found, ahead + best(z, t, free - sizes[z]) + best(s, z - 1, free))
        return found

    return best(0, count - 1, ram_bytes - sizes[0])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=2, max_size=7),
    st.integers(1, 5),
    st.integers(5, 30),
)
@example([(1, 3), (2, 1), (1, 2), (2, 4)], 1, 30)  # there is a schedule,
@example([(5, 1), (5, 1)], 5, 5)  # and here none
def test_pofos_table_without_paging_is_optimal_rematerialization(
    layers: list[tuple[int, int]], gradient_bytes: int, ram_bytes: int
) -> None:
    sizes = [1, *(nbytes for nbytes, _ in layers)]
    price = [float(amount) for _, amount in layers]
    graph, costs = chain(sizes, price, gradient_bytes=gradient_bytes)
    budget = with_ram(X0, ram_bytes)
    parts = chain_of(graph, boundaries(graph))
    table = Table(measure(graph, costs, budget, parts), 1, ram_bytes - 1, paging=False)
    found = table.whole_joules(ram_bytes - 1)
    assert found == naive_chain_joules(sizes, price, gradient_bytes, ram_bytes)
    solution = pofo(graph, costs, msgspec.structs.replace(budget, paging=False), Effort())
    if found < inf:  # a schedule that does as the table says, or better
        report = replay(graph, costs, budget, solution.schedule)
        assert report.valid
        assert report.joules <= found + len(price) + 1e-9


def test_pofo_is_nearly_always_the_best_there_is_on_small_chains() -> None:
    same = compared = 0
    for seed in range(50):
        rng = Random(seed)
        count = rng.randint(2, 4)
        sizes = [1, *(rng.randint(1, 4) for _ in range(count))]
        price = [float(rng.randint(1, 5)) for _ in range(count)]
        graph, costs = chain(sizes, price, paging=(1.0, rng.choice((0.2, 1.0))))
        floor = memory_floor(graph, costs, X0).nbytes
        budget = with_ram(X0, rng.randint(floor, floor + 6))
        best, found = best_joules(graph, costs, budget), joules("pofo", graph, costs, budget)
        assert best is not None
        if found is not None:
            compared += 1
            assert found >= best - 1e-9
            same += found <= best + 1e-9
    assert compared > 35
    assert same > 0.8 * compared


@pytest.mark.slow
def test_pofo_finishes_on_a_long_chain_in_seconds() -> None:
    rng = Random(0)
    graph, costs = chain(
        [rng.randint(500, 1500) for _ in range(101)], [rng.uniform(1, 5) for _ in range(100)]
    )
    solution = pofo(graph, costs, with_ram(X0, 12_000), Effort())
    report = replay(graph, costs, with_ram(X0, 12_000), solution.schedule)
    assert report.valid
    assert report.joules < 2.5 * costs.keep_all_joules


# Torch


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=9),
    st.integers(0, 40),
)
def test_the_knapsack_is_full_of_the_best(items: list[tuple[int, int]], capacity: int) -> None:
    sizes, values = [size for size, _ in items], [float(value) for _, value in items]
    chosen = Knapsack(sizes, values, 40).best(capacity)
    assert len(set(chosen)) == len(chosen)
    assert sum(sizes[n] for n in chosen) <= capacity
    best = max(
        sum(values[n] for n in some)
        for count in range(len(items) + 1)
        for some in combinations(range(len(items)), count)
        if sum(sizes[n] for n in some) <= capacity
    )
    assert sum(values[n] for n in chosen) == best


def test_a_large_knapsack_never_overflows() -> None:
    rng = Random(3)
    sizes = [rng.randint(1, 10**7) for _ in range(60)]
    knapsack = Knapsack(sizes, [rng.random() for _ in sizes], sum(sizes))
    for share in range(11):
        capacity = sum(sizes) * share // 10
        assert sum(sizes[n] for n in knapsack.best(capacity)) <= capacity


def test_what_torch_does_not_save_runs_twice() -> None:
    graph, costs = chain([1] * 9)
    saved = {1, 2, 5, 7}
    schedule = save(graph, costs, X0, saved)
    assert replay(graph, costs, X0, schedule).valid
    assert {k for k, count in runs(schedule).items() if count == 2} == set(range(8)) - saved


# The restrictions of the planner


def test_paging_and_checkmate_are_the_best_of_their_kind() -> None:
    reached: Counter[str] = Counter()
    for seed in range(12):
        rng = Random(seed)
        graph = random_graph(rng, ops=rng.randint(2, 5))
        costs = random_costs(rng, graph)
        total = sum(tensor.nbytes for tensor in graph.tensors)
        budget = Budget(
            ram_bytes=rng.randint(total // 2, total),
            transfers=rng.choice(("serial", "free")),
            start=dict.fromkeys(graph.given, "ram"),
        )
        for name, forbidden in (("paging", "recompute"), ("checkmate", "paging")):
            narrow = msgspec.structs.replace(budget, **{forbidden: False})
            best = best_joules(graph, costs, narrow, end_loads=True)
            found = joules(name, graph, costs, budget, seconds=10.0 if best is not None else 0.2)
            if best is None:
                assert found is None, seed
            else:
                assert found == pytest.approx(best, rel=1e-4, abs=1e-9), seed
                reached[name] += 1
    assert min(reached["paging"], reached["checkmate"]) > 4


def test_a_restrictions_bound_is_not_the_problems() -> None:
    problem = poet.read_instance(INSTANCES / "linear-m4.json")
    budget, brief = Budget(ram_bytes=4000, transfers="free"), Effort(time_limit_seconds=1)
    for name in SEARCHING:
        solution = METHODS[name](problem.graph, problem.costs, budget, brief)
        assert solution.status == "feasible"
        assert solution.bound_joules is None
        assert "are needed (certified)" in solution.reason
    forbidden = msgspec.structs.replace(budget, paging=False)
    solution = METHODS["checkmate"](problem.graph, problem.costs, forbidden, brief)
    assert solution.bound_joules is not None
