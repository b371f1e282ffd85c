"""Claims: is what POET prints of its plans true, on problems small enough to know the answer?

Random problems with every feature: ops in place, several outputs, streams, start and end places,
pinned tensors, deadlines, serial and free transfers, paging or recomputation forbidden, and mostly
hardly more RAM than some op takes. Each is planned, and searched in full, instruction by
instruction, over all schedules that the referee accepts in the given order of first runs, for one
in four in any order. One in four is also planned for the fewest seconds and the fewest bytes. Peer:
that search (tests/unit/any_order.py). Limit: no claim is broken. How far plans are from the best
schedule is a figure, not a claim.

`python -m benchmarks claims --problems 5000`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import msgspec
from rich.console import Console
from rich.progress import track
from tests.unit.any_order import best_joules_unrestricted
from tests.unit.bit_masks import StateSpaceTooLarge
from tests.unit.random_problems import random_budget, random_costs, random_graph

from poet.planner.proof.floor import memory_floor
from poet.planner.search.objectives import seconds_as_joules
from poet.planning.solve import solve
from poet.reports.tables import print_table
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.plan import Plan
from poet.values.schedule import OPTIMAL_GAP, Budget, Effort

PROBLEMS = 300
MOST_OPS, MOST_STATES = 8, 30_000
"""What is larger is not searched in full."""
ROUNDS = 8
"""Counted rounds of search for each plan, if its gap is not closed before."""
SOME = 4
"""Every so many problems are searched in any order, or planned for another goal."""
EFFORT = Effort(work_limit=ROUNDS, time_limit_seconds=600.0)
SLACK = 1e-9

Problem = tuple[Graph, Costs, Budget]

CLAIMS = (
    "infeasible: there is no schedule",
    "the bound in this order",
    "optimal: nothing is below",
    "the bound in any order",
    "seconds: infeasible",
    "seconds: the bound",
    "seconds: optimal",
    "bytes: the bound",
    "bytes: optimal",
)


class Findings:
    """What was asked, what was wrong, and how far plans are from the best."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.asked, self.broken = Counter[str](), Counter[str]()
        self.plans, self.none, self.unknown = Counter[str](), Counter[str](), Counter[str]()
        self.above: dict[str, list[float]] = {"joules": [], "seconds": [], "bytes": []}
        self.seeds: dict[str, list[int]] = {"not found": [], "above the best": []}
        self.too_large = 0

    def claim(self, claim: str, holds: bool, seed: int, words: str = "") -> None:
        self.asked[claim] += 1
        if not holds:
            self.broken[claim] += 1
            self.console.print(f"seed {seed}: broken: {claim} {words}")

    def distance(self, goal: str, value: float, best: float, seed: int) -> None:
        self.plans[goal] += 1
        if value > best * (1 + OPTIMAL_GAP) + SLACK:
            self.seeds["above the best"].append(seed)
            self.above[goal].append(value / best - 1 if best else float("inf"))


def random_problem(seed: int) -> Problem | None:
    """None if it is too large, or below what the floor says."""
    rng = Random(seed)
    graph = random_graph(rng, rng.randint(2, 6), rng.choice((0.2, 0.6)))
    costs = random_costs(rng, graph)
    budget = random_budget(rng, graph)
    if rng.random() < 0.2:
        deadline = rng.uniform(0.8, 2.0) * costs.keep_all_seconds
        budget = msgspec.structs.replace(budget, deadline_seconds=deadline)
    budget = msgspec.structs.replace(budget, transfers=rng.choice(("serial", "free")))
    floor = memory_floor(graph, costs, budget).nbytes
    if rng.random() < 0.8:
        ram = floor + rng.choice((0, 0, 1, 7, 64, 100, 200))
        budget = msgspec.structs.replace(budget, ram_bytes=ram)
    stored = sum(graph.tensors[i].nbytes for i, place in budget.start.items() if place != "ram")
    too_small = budget.ram_bytes is not None and floor > budget.ram_bytes
    too_small |= budget.store_bytes is not None and stored > budget.store_bytes
    return None if too_small or len(graph.ops) > MOST_OPS else (graph, costs, budget)


def problems(count: int) -> Iterator[tuple[int, Problem]]:
    seed = found = 0
    while found < count:
        problem = random_problem(seed)
        if problem is not None:
            found += 1
            yield seed, problem
        seed += 1


def least_joules(problem: Problem, in_order: bool = True) -> float | None:
    return best_joules_unrestricted(*problem, in_order=in_order, most_states=MOST_STATES)


def check_joules(found: Findings, seed: int, problem: Problem) -> None:
    best = least_joules(problem)
    plan = solve(*problem, EFFORT)
    if not _exists(found, seed, "joules", plan, best):
        return
    assert best is not None
    assert plan.joules is not None
    assert plan.bound_joules is not None
    _compare(found, seed, "joules", plan, best, "the bound in this order", CLAIMS[2])
    if seed % SOME == 0 and plan.bound_any_order_joules is not None:
        least = least_joules(problem, in_order=False)
        assert least is not None
        bound = plan.bound_any_order_joules
        held = bound <= least * (1 + SLACK) + SLACK
        found.claim("the bound in any order", held, seed, f"{bound} above {least}")


def check_seconds(found: Findings, seed: int, problem: Problem) -> None:
    graph, costs, budget = problem
    timed = seconds_as_joules(costs)
    best = least_joules((graph, timed, budget))
    plan = solve(*problem, EFFORT, minimize="seconds")
    if _exists(found, seed, "seconds", plan, best):
        assert best is not None
        _compare(found, seed, "seconds", plan, best, "seconds: the bound", "seconds: optimal")


def check_bytes(found: Findings, seed: int, problem: Problem) -> None:
    plan = solve(*problem, EFFORT, minimize="bytes")
    if plan.peak_bytes is None:
        return
    best = fewest_bytes(problem, plan.peak_bytes)
    _compare(found, seed, "bytes", plan, best, "bytes: the bound", "bytes: optimal")


def fewest_bytes(problem: Problem, enough: int) -> int:
    """The least RAM that has a schedule in the given order, of which `enough` is known."""
    graph, costs, budget = problem
    low = memory_floor(graph, costs, budget).nbytes - 1
    while enough - low > 1:
        middle = enough - 1 if enough - low < 4 else (low + enough) // 2
        trial = msgspec.structs.replace(budget, ram_bytes=middle)
        if least_joules((graph, costs, trial)) is None:
            low = middle
        else:
            enough = middle
    return enough


def _exists(found: Findings, seed: int, goal: str, plan: Plan, best: float | None) -> bool:
    """Whether there is a schedule and the plan has one. Where it says that none is, is it right?"""
    if plan.status == "infeasible":
        claim = CLAIMS[0] if goal == "joules" else "seconds: infeasible"
        found.claim(claim, best is None, seed, f"{best}")
    if best is None:
        found.none[goal] += 1
        assert not plan.schedule, f"seed {seed}: the search in full misses a schedule"
        return False
    if not plan.schedule:
        found.unknown[goal] += 1
        found.seeds["not found"].append(seed)
    return bool(plan.schedule)


def _compare(
    found: Findings, seed: int, goal: str, plan: Plan, best: float, bound: str, optimal: str
) -> None:
    value = {"joules": plan.joules, "seconds": plan.seconds, "bytes": plan.peak_bytes}[goal]
    assert value is not None
    assert plan.bound is not None
    low = best * (1 - SLACK) - SLACK
    assert value >= low, f"seed {seed}: {goal} below the search in full: {value} < {best}"
    found.claim(bound, plan.bound <= best * (1 + SLACK) + SLACK, seed, f"{plan.bound} > {best}")
    if plan.status == "optimal":
        within = value <= best * (1 + 2 * OPTIMAL_GAP) + SLACK
        found.claim(optimal, within, seed, f"{value} above {best}")
    found.distance(goal, value, best, seed)


def claims(count: int = PROBLEMS) -> None:
    console, started = Console(), time.monotonic()
    found = Findings(console)
    told = Console(stderr=True)
    for seed, problem in track(problems(count), "planning", total=count, console=told):
        try:
            check_joules(found, seed, problem)
            if seed % SOME == 1:
                check_seconds(found, seed, problem)
            if seed % SOME == 2:
                check_bytes(found, seed, problem)
        except StateSpaceTooLarge:
            found.too_large += 1
    minutes = (time.monotonic() - started) / 60
    console.print(f"{count:,} problems, {found.too_large:,} too large to search; {minutes:.0f} min")
    print_table(
        console,
        [("claim", "left"), ("made", "right"), ("broken", "right"), ("limit", "right")],
        [[name, f"{found.asked[name]:,}", f"{found.broken[name]:,}", "0"] for name in CLAIMS],
    )
    rows = []
    for goal, above in found.above.items():
        mean = sum(above) / len(above) if above else 0.0
        numbers = (found.plans[goal], found.none[goal], found.unknown[goal], len(above))
        far = (f"{mean:.1%}", f"{max(above, default=0.0):.1%}")
        rows.append([goal, *(f"{number:,}" for number in numbers), *far])
    names = ("plans", "no schedule", "not found", "above the best", "by, on average", "at most")
    print_table(console, [("goal", "left"), *((name, "right") for name in names)], rows)
    for what, seeds in found.seeds.items():
        if seeds:
            console.print(f"{what}: seeds {', '.join(map(str, seeds))}")
    if found.broken:
        raise SystemExit(f"a claim is broken: {', '.join(found.broken)}")


BENCHMARKS: dict[str, Callable[[], None]] = {"claims": claims}
