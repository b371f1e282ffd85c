"""A small problem as numbers and bit masks: what the exhaustive searches share.

Sets of tensors are integers. Prices hold all that an op or a transfer adds: joules with idle watts
times the seconds it takes, and the seconds themselves where a deadline asks for them. RAM and store
follow the referee's rules; nothing here chooses anything.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from poet.values.device import Costs, Run
from poet.values.graph import Graph, Op
from poet.values.schedule import Budget

MAX_STATES = 200_000
_SLACK = 1 + 1e-9  # the referee's tolerance on a deadline


class StateSpaceTooLarge(Exception):
    """The problem is too large to search all of it."""


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(ids: Iterable[int]) -> int:
    return sum(1 << i for i in set(ids))


class Way(NamedTuple):
    """One variant of one op, as masks of tensors. Joules and seconds are all that it adds."""

    op: int
    name: str
    ram_inputs: int
    reads: int
    writes: int
    arrivals: int
    consumed: int
    extra_bytes: int  # its outputs in RAM, wherever they will be, and its workspace
    joules: float
    seconds: float


class Problem:
    """Graph, costs and budget in the shape that both searches use."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget) -> None:
        if budget.transfers == "overlap":
            raise ValueError("brute force knows serial and free transfers only")
        costs.check_belongs(graph)
        budget.check_belongs(graph)
        self.graph, self.budget, self.count = graph, budget, len(graph.ops)
        self.nbytes = [tensor.nbytes for tensor in graph.tensors]
        self.slot = [i if t.becomes is None else t.becomes for i, t in enumerate(graph.tensors)]
        self.heir = {t.becomes: i for i, t in enumerate(graph.tensors) if t.becomes is not None}
        self.paired = mask_of([*self.heir, *self.heir.values()])
        self.ram_limit = float("inf") if budget.ram_bytes is None else budget.ram_bytes
        self.store_limit = float("inf") if budget.store_bytes is None else budget.store_bytes
        self.limited = budget.store_bytes is not None
        self.timed, self.idle_watts = budget.deadline_seconds is not None, costs.idle_watts
        self.deadline = (budget.deadline_seconds or 0.0) * _SLACK  # seconds are 0 if not timed
        self.transfers_count = budget.transfers == "serial"
        self.page_in = [self.price(p.in_joules, 0.0, p.in_seconds) for p in costs.tensors]
        self.page_out = [self.price(p.out_joules, 0.0, p.out_seconds) for p in costs.tensors]
        self.ways = [
            [
                self.way(k, op, name, run)
                for name, run in costs.ops[k].items()
                if budget.paging or not (run.reads or run.writes)
            ]
            for k, op in enumerate(graph.ops)
        ]
        self.least = [
            (min(way.joules for way in ways), min(way.seconds for way in ways))
            for ways in self.ways
        ]
        self.start_ram = mask_of(i for i, place in budget.start.items() if place != "store")
        self.start_stored = mask_of(i for i, place in budget.start.items() if place != "ram")
        self.end_ram, self.end_store, self.end_either = (
            mask_of(i for i, place in budget.end.items() if place in places)
            for places in (("ram", "both"), ("store", "both"), ("either",))
        )
        self.pinned = mask_of(budget.pinned)
        self.sizes: dict[int, int] = {0: 0}
        self.room: dict[tuple[int, int], list[int]] = {}

    def price(self, joules: float, busy: float, moving: float) -> tuple[float, float]:
        """Joules with the idle share, and seconds, 0 where no deadline asks for them."""
        seconds = busy + (moving if self.transfers_count else 0.0)
        return joules + self.idle_watts * seconds, seconds if self.timed else 0.0

    def way(self, k: int, op: Op, name: str, run: Run) -> Way:
        reads = mask_of(s.tensor for s in run.reads)
        writes = mask_of(s.tensor for s in run.writes)
        seated = mask_of(p.output for p in op.in_place if not reads >> p.input & 1)
        arrivals = mask_of(op.outputs) & ~writes
        moving = sum(s.seconds for s in (*run.reads, *run.writes))
        joules, seconds = self.price(run.joules + run.stream_joules, run.seconds, moving)
        return Way(
            op=k,
            name=name,
            ram_inputs=mask_of(op.inputs) & ~reads,
            reads=reads,
            writes=writes,
            arrivals=arrivals,
            consumed=mask_of(op.consumed),
            extra_bytes=run.workspace_bytes + sum(self.nbytes[i] for i in bits(arrivals & ~seated)),
            joules=joules,
            seconds=seconds,
        )

    def size(self, mask: int) -> int:
        known = self.sizes.get(mask)
        if known is None:
            known = self.sizes[mask] = sum(self.nbytes[i] for i in bits(mask))
        return known

    def evictions(self, movable: int, excess: float) -> list[int]:
        """The sets of movable tensors that free `excess` bytes and of which all are needed.

        What is pinned cannot be freed.
        """
        movable &= ~self.pinned
        if excess <= 0:
            return [0]
        key = (movable, int(excess))
        if key not in self.room:
            order = sorted(
                (i for i in bits(movable) if self.nbytes[i]), key=lambda i: -self.nbytes[i]
            )
            found: list[int] = []
            self._take(order, 0, 0, int(excess), found)
            self.room[key] = found
        return self.room[key]

    def _take(self, order: list[int], at: int, chosen: int, excess: int, found: list[int]) -> None:
        # Largest first: the set is complete once the last and smallest one makes it enough.
        for k in range(at, len(order)):
            taken = chosen | 1 << order[k]
            if self.nbytes[order[k]] >= excess:
                found.append(taken)
            else:
                self._take(order, k + 1, taken, excess - self.nbytes[order[k]], found)

    def put_in_store(self, what: int, state: "Stored") -> "Stored | None":
        """The store after writing all of `what`; None where it is too small."""
        stored, barred, slots = state
        for i in bits(what):
            if self.slot[i] != i:
                stored &= ~(1 << self.slot[i])
                barred |= 1 << self.slot[i]
            stored |= 1 << i
            slots |= 1 << self.slot[i] if self.limited else 0
        return None if self.size(slots) > self.store_limit else Stored(stored, barred, slots)


class Stored(NamedTuple):
    """What is in the store, what can no longer be written there as if at its first production,
    and which slots were ever used."""

    stored: int
    barred: int
    slots: int
