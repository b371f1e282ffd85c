"""Rounds: plan, compile, measure, and plan again with what was learned.

First torch's own choice is measured: where it keeps to the budget there is nothing to do. Else a
plan is made for what is left of the budget, compiled and measured; what it takes beyond its plan
(kernels' workspaces, copies in another layout) is left free in the next round. The last round's
plan is one of the fewest bytes. What still does not fit is refused, with the least that was found.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from poet.errors import Infeasible
from poet.planning.question import MIN
from poet.training.compiling.joint import Joint, PlanningGraph, planning_graph
from poet.training.compiling.splitting import Split, planned, split
from poet.values.plan import Plan
from poet.values.quantities import parse_bytes, parse_share
from poet.values.schedule import Effort

MOST_ROUNDS = 4
SPARE = 1.01
"""What a step takes beyond its plan grows a little with other plans."""

_log = logging.getLogger(__name__)


class Round(NamedTuple):
    """A backward pass that was compiled, and what was measured of it beside what is held."""

    split: Split | None
    plan: Plan | None
    step_bytes: int


class Answer(NamedTuple):
    """The round that is kept, the budget in bytes, and how many plans were compiled for it."""

    round: Round
    budget_bytes: int
    rounds: int


class Measure(NamedTuple):
    """Compiles and measures: `plain` torch's own choice, or tells what was measured of it before.

    Then `joint` gives both passes, and `find` a split that kept to the budget before, if any did.
    """

    compiled: Callable[[Split | None], int]
    plain: Callable[[], int]
    joint: Callable[[], Joint]
    find: Callable[[], Split | None]


def answered(ram: str | int, held_bytes: int, measure: Measure, effort: Effort) -> Answer:
    """A split within the budget, torch's own where that is."""
    plain = Round(None, None, measure.plain())
    if ram == MIN:
        return _fewest(held_bytes, plain, measure, effort)
    budget_bytes = _budget_bytes(ram, held_bytes, plain.step_bytes)
    left = budget_bytes - held_bytes
    if plain.step_bytes <= left:
        plain = Round(None, None, measure.compiled(None))
        if plain.step_bytes <= left:
            return Answer(plain, budget_bytes, 0)
    known = measure.find()
    if known is not None:
        again = Round(known, None, measure.compiled(known))
        if again.step_bytes <= left:
            return Answer(again, budget_bytes, 1)
    asked = planning_graph(measure.joint())
    limit = left
    least = plain
    for number in range(1, MOST_ROUNDS + 1):
        plan = None
        if number < MOST_ROUNDS:
            plan = _within(asked, limit, effort)
        is_last = plan is None
        plan = plan or planned(asked, None, effort, "bytes")
        found = _measured(asked, plan, measure)
        _log.info(
            "round %d: planned %s bytes beside the model, measured %s, of %s",
            number, plan.peak_bytes, found.step_bytes, left,
        )  # fmt: skip
        if found.step_bytes <= left:
            return Answer(found, budget_bytes, number)
        if found.step_bytes < least.step_bytes:
            least = found
        if is_last:
            break
        assert plan.peak_bytes is not None
        limit = plan.peak_bytes - int((found.step_bytes - left) * SPARE) - 1
    raise Infeasible(_refusal(budget_bytes, held_bytes, least.step_bytes), proven=False)


def _refusal(budget_bytes: int, held_bytes: int, least_bytes: int) -> str:
    least = held_bytes + least_bytes
    return (
        f"no compiled step was found within {budget_bytes:,} bytes: parameters, buffers and inputs "
        f"take {held_bytes:,}, and the least that a step was measured to take beside them is "
        f"{least_bytes:,}. Give ram={least}, or use poet.wrap, which pages and recomputes op by op"
    )


def _budget_bytes(ram: str | int, held_bytes: int, plain_bytes: int) -> int:
    share = parse_share(ram) if isinstance(ram, str) else None
    if share is not None:
        return held_bytes + int(share * plain_bytes)
    return parse_bytes(ram, "RAM budget")


def _within(asked: PlanningGraph, ram_bytes: int, effort: Effort) -> Plan | None:
    try:
        return planned(asked, max(0, ram_bytes), effort)
    except Infeasible:
        return None


def _measured(asked: PlanningGraph, plan: Plan, measure: Measure) -> Round:
    backward = split(asked, plan)
    return Round(backward, plan, measure.compiled(backward))


def _fewest(held_bytes: int, plain: Round, measure: Measure, effort: Effort) -> Answer:
    """The least found: a plan of the fewest bytes, and a quicker one that was measured to take
    no more."""
    asked = planning_graph(measure.joint())
    fewest = _measured(asked, planned(asked, None, effort, "bytes"), measure)
    best = min(plain, fewest, key=lambda each: each.step_bytes)
    rounds = 1
    if best is fewest:
        rounds = 2
        quicker = _within(asked, fewest.step_bytes, effort)
        if quicker is not None:
            other = _measured(asked, quicker, measure)
            best = other if other.step_bytes <= best.step_bytes else best
    return Answer(best, held_bytes + best.step_bytes, rounds)
