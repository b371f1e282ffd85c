"""The layout of a card: where everything lies. Addresses count the bytes that sectors hold.

sectors 0 and 1   the commit, in turns
sector 2          what the example is to do
then              two copies of what changes from step to step: a step reads one and writes the
                  other; tensors smaller than a sector lie side by side, those written in turn
then              tables whose rows change in their place
then              what never changes
then              a slot for each tensor that the plan pages out and does not keep
then              the journal: sectors of tables as they were, two sectors an entry
then              a record for a batch from RAM, where a step reads its inputs from the card
then              the samples, one record after the other: the inputs of a step
"""

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Literal

import msgspec

from poet.calls.loops import loops
from poet.calls.pieces.choices import choice_named
from poet.calls.pieces.ways import Part, planned_way
from poet.calls.updates import SCALARS, UPDATES
from poet.errors import PoetError
from poet.firmware.card.sectors import HELD, SECTOR, sectors_of
from poet.values.graph import Graph, printable
from poet.values.plan import Plan
from poet.values.schedule import PERSISTENT, Compute, PageIn, PageOut

_FIRST = 3
"""The first sector that holds bytes."""
MOST_CARD_BYTES = 2**32 - SECTOR
"""C counts the bytes of a card in 32 bits."""
FLASH_AT = 2**32 // SECTOR * HELD
"""The address of the first byte in flash: no card is so large."""
FLASH_ROOM = 2**32 - 2 - FLASH_AT
InFlash = Literal["none", "frozen", "all"]
"""Of the weights, what is constant data of the firmware's image."""


class CardLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything lies on the card. Tensors are named by number, inputs too; what becomes
    another at the end of a step has its place, too.

    Of what lies in `copies` the address is in the first; the second is `copy_sectors` further.
    """

    copies: dict[int, int]
    rows: dict[int, int]
    fixed: dict[int, int]
    flash: dict[int, int] = {}
    """What never changes and is not on the card: its places in flash."""
    pages: dict[int, int]
    copy_at: int
    copy_sectors: int
    shared_sectors: int
    """Of each copy, those at its begin that several tensors share."""
    rows_at: int
    row_sectors: int
    pages_at: int
    page_sectors: int
    journal_at: int
    journal_entries: int
    record: dict[int, int]
    record_bytes: int
    data_at: int
    samples: int
    batch_at: int | None = None
    """A record for a batch that comes from RAM, where a step reads its inputs from the card."""

    @property
    def image_bytes(self) -> int:
        return (self.data_at + self.samples * self.record_bytes) // HELD * SECTOR

    def place(self, i: int, side: int) -> int:
        """Where what lasts is, in the copy that counts."""
        if i in self.copies:
            return self.copies[i] + side * self.copy_sectors * HELD
        if i in self.flash:
            return FLASH_AT + self.flash[i]
        return self.rows[i] if i in self.rows else self.fixed[i]


def scalars(graph: Graph) -> dict[str, int]:
    """The tensors of the learning rate and of the step count, by the updates' names for them."""
    found: dict[str, int] = {}
    for op in graph.ops:
        for call in op.calls:
            if call.kind not in UPDATES:
                continue
            for name in SCALARS:
                argument = call.arguments.get(name)
                if not isinstance(argument, dict):
                    continue
                if found.setdefault(name, argument["tensor"]) != argument["tensor"]:
                    raise PoetError(f"C is written for one learning rate; {graph.name} has several")
    return found


def inputs_of(graph: Graph) -> tuple[int, ...]:
    """The tensors of a batch, in the order of a record."""
    special = set(scalars(graph).values())
    return tuple(i for i in graph.given if graph.tensors[i].role == "input" and i not in special)


def lasting(graph: Graph) -> tuple[int, ...]:
    """What is there from one step to the next: parameters, buffers, optimizer state."""
    return tuple(i for i in graph.given if graph.tensors[i].role in PERSISTENT)


def written(plan: Plan) -> list[int]:
    """The tensors that a step writes to the card, in order, each as often as it is written."""
    found = []
    for step in plan.schedule:
        if isinstance(step, PageOut):
            found.append(step.tensor)
        elif isinstance(step, Compute):
            found += [stream.tensor for stream in plan.costs.ops[step.op][step.variant].writes]
    return found


def card_layout(plan: Plan, samples: int, in_flash: InFlash = "none") -> CardLayout:
    """A card for a plan, with room for so many samples."""
    found = layout_of_any_size(plan, samples, in_flash)
    if found.image_bytes > MOST_CARD_BYTES:
        raise PoetError(f"the card would take {found.image_bytes:,} bytes; it may have 4 GiB")
    return found


def layout_of_any_size(plan: Plan, samples: int, in_flash: InFlash = "none") -> CardLayout:
    """The same, whether or not C can count its bytes."""
    graph = plan.graph
    kept = lasting(graph)
    _check_names(graph, kept)
    row_writes = _rows(plan)
    order = {i: n for n, i in enumerate(written(plan))}
    copies = [i for i in kept if i in graph.heir and i not in row_writes]
    copies.sort(key=lambda i: order.get(graph.heir[i], -1))
    rows = [i for i in kept if i in row_writes]
    fixed = [i for i in kept if i not in graph.heir]
    flash, flash_bytes = dict[int, int](), 0
    if in_flash != "none":
        for i in fixed:
            flash[i] = flash_bytes
            flash_bytes += -(-graph.tensors[i].nbytes // 8) * 8
        fixed = []
        check_room(flash_bytes)
    made = _Places(graph)
    copy_at = made.sector
    copy_places, shared = made.packed(copies)
    copy_sectors = made.sector - copy_at
    made.sector += copy_sectors
    rows_at = made.sector
    row_places = made.whole(rows)
    row_sectors = made.sector - rows_at
    fixed_places, _ = made.packed(fixed)
    pages_at = made.sector
    page_places = made.whole(_pages(plan))
    page_sectors = made.sector - pages_at
    journal_at = made.sector
    entries = sum(row_writes.values())
    made.sector += 2 * entries
    offsets, length = {}, 0
    for i in inputs_of(graph):
        offsets[i] = length
        length += -(-graph.tensors[i].nbytes // 8) * 8
    record_sectors = sectors_of(length)
    batch_at = None
    if any(plan.budget.start[i] == "store" for i in inputs_of(graph)):
        batch_at = made.sector * HELD
        made.sector += record_sectors
    return CardLayout(
        copies=_with_heirs(graph, copy_places), rows=_with_heirs(graph, row_places),
        fixed=fixed_places, flash=flash, pages=page_places, copy_at=copy_at,
        copy_sectors=copy_sectors, shared_sectors=shared, rows_at=rows_at,
        row_sectors=row_sectors, pages_at=pages_at, page_sectors=page_sectors,
        journal_at=journal_at, journal_entries=entries, record=offsets,
        record_bytes=record_sectors * HELD, data_at=made.sector * HELD, samples=samples,
        batch_at=batch_at,
    )  # fmt: skip


def check_room(flash_bytes: int) -> None:
    """Refuse more in flash than there are addresses for."""
    if flash_bytes > FLASH_ROOM:
        raise PoetError(
            f"{flash_bytes:,} bytes would be in flash; there may be {FLASH_ROOM:,} at the most"
        )


class _Places:
    """Hands out sectors one after the other."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.sector = graph, _FIRST

    def whole(self, tensors: Iterable[int]) -> dict[int, int]:
        """Each from the begin of a sector on."""
        found = {}
        for i in tensors:
            found[i] = self.sector * HELD
            self.sector += sectors_of(self.graph.tensors[i].nbytes)
        return found

    def packed(self, tensors: list[int]) -> tuple[dict[int, int], int]:
        """The same, but small ones first and side by side; and how many sectors those share."""
        small = [i for i in tensors if self.graph.tensors[i].nbytes <= HELD // 2]
        found, first, used = {}, self.sector, HELD
        for i in small:
            nbytes = -(-self.graph.tensors[i].nbytes // 4) * 4
            if used + nbytes > HELD:
                self.sector += 1
                used = 0
            found[i] = (self.sector - 1) * HELD + used
            used += nbytes
        shared = self.sector - first
        return found | self.whole(i for i in tensors if i not in found), shared


def _with_heirs(graph: Graph, places: dict[int, int]) -> dict[int, int]:
    return places | {graph.heir[i]: at for i, at in places.items()}


def _pages(plan: Plan) -> list[int]:
    """What is paged and does not last: activations, gradients; and what lasts while it is away from
    RAM, where it begins and ends."""
    graph = plan.graph
    moved = {s.tensor for s in plan.schedule if isinstance(s, PageIn | PageOut)}
    for run in plan.streamed_runs:
        costs = plan.costs.ops[run.op][run.variant]
        moved |= {stream.tensor for stream in (*costs.reads, *costs.writes)}
    moved -= {i for i in inputs_of(graph) if plan.budget.start[i] == "store"}
    out = {s.tensor for s in plan.schedule if isinstance(s, PageOut)}
    kept = set(lasting(graph))
    heirs = {graph.heir[i] for i in kept if i in graph.heir}
    return sorted(i for i in moved if i not in heirs and (i not in kept or i in out))


def _rows(plan: Plan) -> dict[int, int]:
    """Tables whose rows a step changes in their place, and how many sectors of each at most."""
    graph, found = plan.graph, dict[int, int]()
    for run in plan.streamed_runs:
        op = graph.ops[run.op]
        if not any(call.family == "aten.embedding_dense_backward" for call in op.calls):
            continue
        if choice_named(run.variant) is None:
            for loop in loops(graph, run.op):
                if loop.named_rows is not None and loop.update is not None:
                    for i in loop.streamed:
                        found[i] = found.get(i, 0) + _row_sectors(loop.named_rows, loop.row_bytes)
            continue
        way = planned_way(graph, run.op, run.variant, plan.costs.ops[run.op][run.variant])
        for part in way.parts:
            for follower in part.followers:
                made = part.space.writes[follower.result] if part.space is not None else None
                if made is None or made.named_by is None or part.space is None:
                    continue
                count = part.space.reads[made.named_by].operand.count
                pieces = _pieces_of_a_row(part)
                for side in follower.sides.values():
                    i = side.operand.storage[1]
                    nbytes = -(-side.operand.nbytes // side.operand.shape[0] // pieces)
                    found[i] = found.get(i, 0) + _row_sectors(count * pieces, nbytes)
    return found


def _pieces_of_a_row(part: Part) -> int:
    """Rows are the first axis. Between two pieces of one, other rows may have had their turn."""
    assert part.space is not None
    assert part.nest is not None
    extents = [axis.extent for axis in part.space.axes]
    return prod(-(-n // size) for n, size in zip(extents[1:], part.nest.sizes[1:], strict=True))


def _row_sectors(count: int, nbytes: int) -> int:
    return count * (1 + sectors_of(nbytes))


def _check_names(graph: Graph, kept: Iterable[int]) -> None:
    """Weights come from files by name, and go back by name."""
    names = Counter(graph.tensors[i].name for i in (*kept, *inputs_of(graph)))
    for name, count in names.items():
        if count > 1:
            raise PoetError(
                f"{count} tensors on the card are called {printable(name)!r}; they need names of "
                "their own"
            )
