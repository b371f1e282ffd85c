"""Advice: what to ask for where no plan was found.

Who follows it must not be refused again. A floor that no schedule can go below is no advice, since
no schedule may reach it: a RAM budget is advised only if a schedule within it was made and replayed
while the advice was given, by the makers that planning begins with, so that they make it again.
"""

import re
import time
from collections.abc import Callable, Iterable

import msgspec

from poet.baselines import METHODS, STARTS
from poet.planner.proof.floor import least_seconds, memory_floor
from poet.planning.question import Question
from poet.planning.solve import OPENING_SECONDS, PLANNER, ask
from poet.values.plan import Plan
from poet.values.quantities import parse_bytes
from poet.values.schedule import Budget, Effort

_NEAR = 64
"""A budget is not looked for more closely than one part in so many of it."""
_BRIEF = Effort(time_limit_seconds=OPENING_SECONDS / 4, relative_gap=1.0)
"""For one maker, at one budget: who follows the advice may be on a busier machine by then."""
_SECONDS = 3.0
"""So long smaller budgets are looked for: after that, the smallest so far is advised."""

_ADVISED = re.compile(r'Try ram="(\d+(?:KiB)?)"')

Makes = Callable[[Budget], int | None]
"""The peak of a schedule that was made within a budget, or None."""


def advised(
    refused: Plan,
    asked: Iterable[Question],
    method: str | None = None,
    whole_budget: Callable[[int], int] = lambda nbytes: nbytes,
) -> Plan:
    """The same refusal, with what to try. `whole_budget` says how much to ask for where the plan
    needs so many bytes."""
    least, deadline = least_seconds(refused.costs), refused.budget.deadline_seconds
    if deadline is not None and least > deadline * (1 + 1e-9):
        ways = ['deadline="1.0x" or more']
    else:
        ways = _ways(refused, enough_bytes(asked, method), method, whole_budget)
    if not ways:
        return refused
    text = " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
    reason = f"{refused.reason.rstrip('.')}. Try {text}."
    return msgspec.structs.replace(refused, reason=reason)


def _ways(
    refused: Plan, enough: int | None, method: str | None, whole_budget: Callable[[int], int]
) -> list[str]:
    ways = []
    if enough is not None:
        ways.append(ram_argument(whole_budget(enough)))
    if refused.budget.deadline_seconds is not None:
        ways.append("a later deadline=")
    if refused.status == "unknown" and method in (None, PLANNER):
        ways.append("a longer time_limit=")
    return ways


def ram_argument(nbytes: int) -> str:
    """A budget as one would give it."""
    text = f"{nbytes // 1024}KiB" if nbytes % 1024 == 0 else str(nbytes)
    assert parse_bytes(text, "RAM budget") == nbytes
    return f'ram="{text}"'


def advised_bytes(reason: str) -> int | None:
    """The budget that a refusal's reason says to try, as `ram_argument` wrote it."""
    found = _ADVISED.search(reason)
    return None if found is None else parse_bytes(found[1])


def enough_bytes(asked: Iterable[Question], method: str | None = None) -> int | None:
    """A small budget, above the one asked, with a schedule in any of the places for parameters."""
    until = time.monotonic() + _SECONDS
    least: int | None = None
    for each in reversed(list(asked)):  # where most is in the store, least is needed
        if least is not None and time.monotonic() > until:
            break
        enough = smallest_budget(each, method, until)
        least = min(filter(None, (least, enough)), default=None)
    return least


def smallest_budget(asked: Question, method: str | None, until: float) -> int | None:
    """A small budget, above the one asked, that a schedule was made in by the quick makers."""
    graph, costs, budget = asked.graph, asked.costs, asked.budget
    limit = budget.ram_bytes
    if limit is None:
        return None
    if asked.either:
        budget = msgspec.structs.replace(budget, transfers="serial")
    makes = _maker(asked, method)

    def peak_within(nbytes: int) -> int | None:
        return makes(msgspec.structs.replace(budget, ram_bytes=nbytes))

    low: int = max(limit, memory_floor(graph, costs, budget).nbytes - 1)
    high = max(low + 1, asked.keep_all_bytes)
    if peak_within(low + 1) is not None:
        return low + 1
    if peak_within(high) is None:
        return None
    while high - low > high // _NEAR + 1 and time.monotonic() < until:
        middle = (low + high) // 2
        peak = peak_within(middle)
        if peak is None:
            low = middle
        elif low < peak < middle and peak_within(peak) is not None:
            high = peak
        else:
            high = middle
    return high


def _maker(asked: Question, method: str | None) -> Makes:
    graph, costs = asked.graph, asked.costs
    if method in (None, PLANNER):
        from poet.planner.search.opening import opening  # numpy: not for `poet --help`

        makers = {**STARTS, PLANNER: opening}
    else:
        makers = {method: METHODS[method]}

    def makes(budget: Budget) -> int | None:
        for maker in makers.values():
            _, report = ask(maker, graph, costs, budget, _BRIEF)
            if report is not None and report.valid:
                return report.peak_bytes
        return None

    return makes
