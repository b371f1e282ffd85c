"""Upkeep: what C asks of a card beside a plan's transfers, so that a power cut loses nothing.

A plan's seconds and joules are the referee's: those of its schedule. When a step ends, a sector
says which copy counts; what lives in RAM is written before it; sectors of tables go to the journal
before rows of them change; sectors that small tensors share are read before they are written. None
of that is an instruction of a schedule, so it is priced here, and told beside the plan.
"""

import msgspec

from poet.errors import PoetError
from poet.firmware.card.layout import CardLayout, lasting, layout_of_any_size
from poet.firmware.card.sectors import HELD, SECTOR
from poet.values.graph import Graph
from poet.values.plan import Plan


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit takes, in sectors of 512 bytes, the journal's at most.

    `each_step` says that steps are committed when they end; else a network that lives in RAM is,
    whenever it is saved. Seconds and joules are those of a sector by itself, as often; None where
    nobody said what it costs.
    """

    each_step: bool
    sectors_written: int
    sectors_read: int
    flushes: int
    journal_entries: int
    seconds: float | None
    joules: float | None
    card_bytes: int
    """The whole card, without samples."""
    page_bytes: int
    """Of that the slots of what is paged out and does not last."""

    @property
    def bytes_written(self) -> int:
        return SECTOR * self.sectors_written


def commits(plan: Plan) -> bool:
    """Whether a step writes what lasts, so that it must be committed when it ends."""
    return any(plan.budget.start[i] == "store" for i in lasting(plan.graph) if i in plan.graph.heir)


def shares(plan: Plan, card: CardLayout) -> bool:
    """Whether sectors that small tensors share are written in the midst of a step."""
    return commits(plan) and card.shared_sectors > 0


def upkeep(plan: Plan) -> Upkeep:
    """What a plan's steps take beside what is planned."""
    card = layout_of_any_size(plan, samples=0)
    saved = _saved_sectors(plan, card)
    written = 1 + saved + 2 * card.journal_entries
    read = card.shared_sectors + card.journal_entries
    price = plan.costs.sector
    seconds = joules = None
    if price is not None:
        seconds = written * price.out_seconds + read * price.in_seconds
        joules = written * price.out_joules + read * price.in_joules
        joules += plan.costs.idle_watts * seconds
    return Upkeep(
        each_step=commits(plan), sectors_written=written, sectors_read=read,
        flushes=2 + 2 * card.journal_entries, journal_entries=card.journal_entries,
        seconds=seconds, joules=joules, card_bytes=card.image_bytes,
        page_bytes=card.page_sectors * SECTOR,
    )  # fmt: skip


def known_upkeep(plan: Plan) -> Upkeep | None:
    """The same of a plan that C is to be written for; None of others, and where C cannot be."""
    if plan.arena is None:
        return None
    try:
        return upkeep(plan)
    except PoetError:  # whoever writes C says why
        return None


def least_card_bytes(graph: Graph) -> int:
    """A card takes no less, whatever the schedule: what changes twice, tables whose rows may change
    and what never changes once."""
    by_rows = {
        i
        for op in graph.ops
        if any(call.family == "aten.embedding_dense_backward" for call in op.calls)
        for i in op.inputs
    }
    return sum(
        graph.tensors[i].nbytes * (1 + (i in graph.heir and i not in by_rows))
        for i in lasting(graph)
    )


def _saved_sectors(plan: Plan, card: CardLayout) -> int:
    """The sectors of what lives in RAM and changes: each is written when it is saved."""
    found: set[int] = set()
    for i, at in card.copies.items():
        if plan.budget.start.get(i) == "ram":
            last = at + max(1, plan.graph.tensors[i].nbytes) - 1
            found.update(range(at // HELD, last // HELD + 1))
    return len(found)
