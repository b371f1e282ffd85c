"""Prompt schedules cost the same and hold less; squeezed ones fit where the first did not."""

import math
from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec

from poet import (
    Budget,
    Compute,
    Costs,
    Free,
    Graph,
    Op,
    PageIn,
    PageOut,
    Plan,
    Run,
    Tensor,
    Transfer,
    check,
)  # fmt: skip
from poet.planning.prompt import prompt
from poet.planning.squeezing import squeezed
from poet.referee.verdict import Report
from poet.values.plan import draft
from tests.unit.random_problems import random_budget, random_costs, random_graph, random_schedule
from tests.unit.simple_replay import simple_replay


def valid_plans(count: int) -> Iterator[tuple[Plan, Report]]:
    """Random schedules that keep all rules, where compute waits for transfers or they are free."""
    for seed in range(count):
        rng = Random(seed)
        graph = random_graph(rng, ops=rng.randint(1, 10))
        costs = random_costs(rng, graph)
        budget = random_budget(rng, graph)
        ways = "serial" if budget.transfers == "overlap" else budget.transfers
        budget = msgspec.structs.replace(
            budget, transfers=ways, ram_bytes=None, deadline_seconds=None, paging=True
        )
        plan = draft(graph, costs, budget, random_schedule(rng, graph, costs, budget))
        report = check(plan)
        if report.valid:
            yield plan, report


def crossing(*nbytes: int) -> Plan:
    """A chain of ops that makes tensors of so many bytes; then one that reads the first two."""
    tensors = [Tensor(name=f"t{i}", nbytes=n, role="activation") for i, n in enumerate(nbytes)]
    last = len(nbytes)
    tensors.append(Tensor(name="all", nbytes=1, role="output"))
    ops = [
        Op(name=f"op{i}", phase="forward", inputs=(i - 1,) if i else (), outputs=(i,))
        for i in range(last)
    ]
    ops.append(Op(name="end", phase="forward", inputs=(0, 1), outputs=(last,)))
    graph = Graph(name="crossing", tensors=tuple(tensors), ops=tuple(ops))
    costs = Costs(
        graph=graph.fingerprint, device="one second and one joule a byte",
        ops=tuple({"plain": Run(seconds=1.0, joules=1.0)} for _ in ops),
        tensors=tuple(
            Transfer(in_seconds=n, in_joules=n, out_seconds=n, out_joules=n) for n in (*nbytes, 1)
        ),
    )  # fmt: skip
    return draft(graph, costs, Budget(), tuple(map(Compute, range(last + 1))))


def levels(report: Report, plan: Plan) -> list[int]:
    """RAM in use while each op runs, in the order of the ops' runs."""
    most: dict[int, int] = {}
    for moment in report.timeline:
        if moment.instruction is not None:
            most[moment.instruction] = max(most.get(moment.instruction, 0), moment.ram_bytes)
    return [most[at] for at, step in enumerate(plan.schedule) if isinstance(step, Compute)]


def test_prompt_schedules_cost_the_same_and_hold_less() -> None:
    seen: Counter[str] = Counter()
    for plan, before in valid_plans(1500):
        made = prompt(plan.graph, plan.costs, plan.schedule)
        moved = msgspec.structs.replace(plan, schedule=made)
        after, simple = check(moved), simple_replay(moved)
        assert after.valid, after.violation
        assert simple.violation is None
        assert Counter(made) == Counter(plan.schedule)
        assert math.isclose(after.joules, before.joules, rel_tol=1e-12)
        assert math.isclose(after.seconds, before.seconds, rel_tol=1e-12)
        assert after.store_peak_bytes == before.store_peak_bytes
        assert after.peak_bytes <= before.peak_bytes
        then, now = levels(before, plan), levels(after, moved)
        assert all(a <= b for a, b in zip(now, then, strict=True))
        assert prompt(plan.graph, plan.costs, made) == made
        seen["valid"] += 1
        seen["less"] += sum(now) < sum(then)
        seen["lower"] += after.peak_bytes < before.peak_bytes
    assert seen["valid"] > 500
    assert seen["less"] > 100
    assert seen["lower"] > 20


def test_transfers_and_frees_come_when_they_are_of_use() -> None:
    plan = crossing(8, 8, 8)
    lazy = (
        PageOut(0), Compute(2), Free(0), PageOut(2), Free(2), PageIn(0), PageOut(1), Compute(3),
    )  # fmt: skip
    assert prompt(plan.graph, plan.costs, (Compute(0), Compute(1), *lazy)) == (
        Compute(0), Compute(1), PageOut(0), Free(0), Compute(2), PageOut(2), Free(2), PageOut(1),
        PageIn(0), Compute(3),
    )  # fmt: skip


def test_what_is_squeezed_fits_and_keeps_all_rules() -> None:
    seen: Counter[str] = Counter()
    for plan, before in valid_plans(1500):
        room = before.peak_bytes - before.peak_bytes // 8
        made = squeezed(plan, room)
        if made is None:
            seen["none"] += 1
            continue
        budget = msgspec.structs.replace(plan.budget, ram_bytes=room)
        fits = draft(plan.graph, plan.costs, budget, made)
        assert check(fits).violation is None
        assert simple_replay(fits).violation is None
        seen["waits"] += made != plan.schedule
    assert seen["none"] > 50
    assert seen["waits"] > 20


def test_the_cheapest_that_is_large_enough_waits() -> None:
    plan = crossing(80, 40, 20, 20)
    schedule = (*plan.schedule[:-1], Free(2), Free(3), Compute(4))
    plan = msgspec.structs.replace(plan, schedule=schedule)
    assert check(plan).peak_bytes == 160
    assert squeezed(plan, 160) == schedule
    ends = (Free(2), Free(3))
    assert squeezed(plan, 150) == (
        *schedule[:3], PageOut(1), Free(1), Compute(3), *ends, PageIn(1), Compute(4),
    )  # fmt: skip
    assert squeezed(plan, 140) == squeezed(plan, 150), "forty wait already"
    both = squeezed(plan, 121)
    assert both is not None
    assert PageOut(0) in both, "eighty wait for the op before, which has no room beside them"
    assert squeezed(plan, 120) is None
    for budget in (
        Budget(transfers="overlap"), Budget(paging=False), Budget(pinned=tuple(range(5)))
    ):  # fmt: skip
        assert squeezed(msgspec.structs.replace(plan, budget=budget), 150) is None


def test_what_is_of_no_more_use_is_freed() -> None:
    plan = crossing(80, 40, 20, 20)
    assert check(plan).peak_bytes == 161
    made = squeezed(plan, 160)
    assert made is not None
    assert Counter(made) == Counter((*plan.schedule, Free(2)))


def test_small_page_outs_stay_beside_each_other() -> None:
    for nbytes, early in ((600, True), (8, False)):
        plan = crossing(nbytes, nbytes, nbytes, nbytes)
        made = prompt(plan.graph, plan.costs, (*plan.schedule[:4], PageOut(3), PageOut(1)))
        assert (made.index(PageOut(1)) < made.index(Compute(3))) == early
