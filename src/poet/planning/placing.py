"""Placing: a plan for C is one whose tensors have addresses, and whose card fits.

A schedule says what is in RAM at once, and C needs an address for each tensor. Where no addresses
are found without gaps that would push the arena over the budget, the step is planned again with as
much less RAM as the gaps took. A schedule counts in the store what it pages; a card that survives
power cuts has two copies of what changes, a journal, and whole sectors. Where that is more than the
store has, the step is planned again with as much less of it, as long as there are pages to do
without. What is handed on brings its addresses along, so that the C that is written is what was
planned. Bounds are those of the whole budget.
"""

from math import inf
from typing import NamedTuple, Protocol

import msgspec

from poet.errors import PoetError
from poet.planning.defaults import runs_c
from poet.planning.problem import Problem
from poet.planning.prompt import prompt
from poet.planning.question import Question, Terms
from poet.planning.squeezing import squeezed
from poet.referee.replay import check
from poet.values.plan import Arena, Plan, PlanInterrupted, draft
from poet.values.progress import SearchProgress
from poet.values.schedule import OPTIMAL_GAP, Budget, Effort, Goal, Schedule

TRIES = 5
_ITS_CARD = "its card takes"
_AGAIN = 0.25
"""The share of the time that each further plan may take."""


class Answers(Protocol):
    """A plan for a question; it may begin with schedules that are known."""

    def __call__(
        self, asked: Question, effort: Effort, *, starts: tuple[Schedule, ...] = ()
    ) -> Plan: ...


def needs_addresses(problem: Problem, asked: Terms) -> bool:
    """Whether C is to be written of a plan: for a target, or for so small a board."""
    wanted = asked.target is not None or (runs_c(asked.board) and not asked.in_torch)
    return wanted and all(op.calls for op in problem.graph.ops)


def arena_bytes(plan: Plan) -> int | None:
    """What addresses for its tensors take; None where its ops do not say what lies where."""
    arena = _with_arena(plan, plan.budget.ram_bytes).arena
    return None if arena is None else arena.nbytes


def answer_placed(asked: Question, effort: Effort, minimize: Goal, answers: Answers) -> Plan:
    """The answer to a question, with addresses; without a schedule where none are found."""
    limit, most = asked.budget.ram_bytes, _most_card_bytes(asked.budget)
    hopeless = _refused_card(asked, most)
    if hopeless is not None:
        return hopeless
    try:
        first = found = answers(asked, effort)
    except PlanInterrupted as stopped:
        stopped_at = _of_whole(_with_arena(stopped.plan, limit), stopped.plan, minimize)
        raise PlanInterrupted(stopped_at) from None
    if not first.schedule:
        return first
    again = msgspec.structs.replace(effort, time_limit_seconds=_AGAIN * effort.time_limit_seconds)
    least, room, store = inf, limit, asked.budget.store_bytes
    card = _Card(0, 0)
    for _ in range(TRIES):
        if effort.progress is not None:
            effort.progress(
                SearchProgress(
                    seconds=found.solve_seconds or 0.0, joules=found.joules,
                    bound_joules=found.bound_joules or 0.0, placing=True,
                )
            )  # fmt: skip
        placed = _with_arena(found, limit)
        if placed.arena is None:
            return _of_whole(placed, first, minimize)  # no C can be written: who writes it says why
        card = _card_of(placed)
        is_placed = limit is None or placed.arena.nbytes <= limit
        if is_placed and card.nbytes <= most:
            whole = _of_whole(placed, first, minimize)
            return _with_room(whole) if minimize == "bytes" else whole
        if not is_placed:
            assert limit is not None
            assert room is not None
            least = min(least, placed.arena.nbytes)
            room = min(room, placed.peak_bytes or room) - (placed.arena.nbytes - limit)
        if card.nbytes > most:
            if card.nbytes - card.page_bytes > most:
                break
            used = check(placed).store_peak_bytes
            store = (used if store is None else min(store, used)) - (card.nbytes - most)
        if (room is not None and room <= 0) or (store is not None and store < 0):
            break
        smaller = msgspec.structs.replace(asked.budget, ram_bytes=room, store_bytes=store)
        start = None if is_placed or room is None else squeezed(placed, room)
        starts = () if start is None else (start,)
        found = answers(asked._replace(budget=smaller), again, starts=starts)
        if not found.schedule:
            break
    if asked.placed:
        known = _with_arena(_replayed(first, asked.placed), limit)
        card = _card_of(known)
        if card.nbytes <= most:
            return _of_whole(known, first, minimize)
    reason = (
        f"its tensors, {first.peak_bytes or 0:,} bytes at the most, found no addresses in "
        f"{limit or 0:,} bytes: with gaps they take {least:,}."
    )
    if card.nbytes > most:
        reason = (
            f"{_ITS_CARD} {card.nbytes:,} bytes, {card.page_bytes:,} of them pages, the others two "
            f"copies of what a step changes, and a journal; {_limit_text(most)}."
        )
    return msgspec.structs.replace(
        first,
        status="unknown",
        reason=reason,
        schedule=(), joules=None, seconds=None, peak_bytes=None, gap=None, bound_joules=None,
        bound_seconds=None, bound_bytes=None, bound_source=None, bound_any_order_joules=None,
        prices=None, first_seconds=None, arena=None,
    )  # fmt: skip


def is_for_the_store(refused: Plan) -> bool:
    """Whether a plan was refused for its card: then no RAM and no time helps."""
    return refused.reason.startswith(_ITS_CARD)


class _Card(NamedTuple):
    """What a card takes, and the slots of pages in it."""

    nbytes: int
    page_bytes: int


def _card_of(plan: Plan) -> _Card:
    from poet.firmware.card.upkeep import upkeep  # numpy: not for `poet --help`

    try:
        found = upkeep(plan)
    except PoetError:  # no C can be written for it: who writes it says why
        return _Card(0, 0)
    return _Card(found.card_bytes, found.page_bytes)


def _most_card_bytes(budget: Budget) -> int:
    from poet.firmware.card.layout import MOST_CARD_BYTES  # numpy: not for `poet --help`

    store = budget.store_bytes
    return MOST_CARD_BYTES if store is None else min(store, MOST_CARD_BYTES)


def _limit_text(most: int) -> str:
    from poet.firmware.card.layout import MOST_CARD_BYTES  # numpy: not for `poet --help`

    return f"C counts to {most:,}" if most == MOST_CARD_BYTES else f"the store has {most:,}"


def _refused_card(asked: Question, most: int) -> Plan | None:
    """Before any search: what needs more of a card than there is, whatever the schedule."""
    from poet.firmware.card.upkeep import least_card_bytes  # numpy: not for `poet --help`

    least = least_card_bytes(asked.graph)
    if least <= most:
        return None
    refused = draft(asked.graph, asked.costs, asked.budget, ())
    return msgspec.structs.replace(
        refused,
        status="infeasible",
        reason=(
            f"{_ITS_CARD} at least {least:,} bytes, with two copies of what a step changes; "
            f"{_limit_text(most)}."
        ),
    )


def _with_arena(plan: Plan, limit: int | None) -> Plan:
    """The plan with prompt transfers and the addresses found for it, above the limit too; as it is
    where its ops do not say what lies where."""
    from poet.firmware.place.arena import placed  # numpy: not for `poet --help`

    if plan.budget.transfers != "overlap":
        plan = _replayed(plan, prompt(plan.graph, plan.costs, plan.schedule))
    try:
        found = placed(plan, limit).placement
    except PoetError:
        return plan
    return msgspec.structs.replace(
        plan, arena=Arena(nbytes=found.arena_bytes, offsets=found.offsets)
    )


def _with_room(plan: Plan) -> Plan:
    """A plan in as few bytes as were found, which is all that its budget says: and the gaps."""
    budget, arena = plan.budget, plan.arena
    assert arena is not None
    if budget.ram_bytes is None or arena.nbytes <= budget.ram_bytes:
        return plan
    budget = msgspec.structs.replace(budget, ram_bytes=arena.nbytes)
    return msgspec.structs.replace(plan, budget=budget)


def _replayed(plan: Plan, schedule: Schedule) -> Plan:
    """The same plan with another schedule, and what that comes to."""
    report = check(draft(plan.graph, plan.costs, plan.budget, schedule))
    return msgspec.structs.replace(
        plan, schedule=schedule, joules=report.joules, seconds=report.seconds,
        peak_bytes=report.peak_bytes, arena=None,
    )  # fmt: skip


def _of_whole(plan: Plan, first: Plan, minimize: Goal) -> Plan:
    """A plan for a part of the budget as one for all of it: what bounds the first bounds it."""
    field = {"joules": "joules", "seconds": "seconds", "bytes": "peak_bytes"}[minimize]
    value, bound = getattr(plan, field), first.bound
    gap = None
    if bound is not None:
        gap = (value - bound) / value if value else 0.0
    closed = 0.0 if minimize == "bytes" else OPTIMAL_GAP
    return msgspec.structs.replace(
        plan,
        status="optimal" if gap is not None and gap <= closed else "feasible",
        bound_joules=first.bound_joules, bound_seconds=first.bound_seconds,
        bound_bytes=first.bound_bytes, bound_source=first.bound_source,
        bound_any_order_joules=first.bound_any_order_joules, gap=gap, prices=first.prices,
        floor_bytes=first.floor_bytes, budget=first.budget,
    )  # fmt: skip
