"""POFO's table: the least joules to go forward and back through each part of a chain.

`measure` turns a chain into numbers; `Table` fills, for every part (first, last) of it, every
amount of free memory and whether the part's entry is in the store already, the least joules of
going forward through the part and undoing it, with its entry in RAM when it begins. Memory is
counted in slots, rounded up. For each part one of these is best:

- tape: run the first segment and hold all that undoing it reads, or page that part out; go on with
  the rest; undo it.
- checkpoint: run some segments and hold only the state after them; deal with the rest; come back
  for these with the entry, which is still there.

In both the entry may be paged out before the rest and be loaded after it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from poet.baselines.chain import Chain, forward_count, tape_of
from poet.values.device import PLAIN, Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KEEP, PAGE = 0, 1


@dataclass(frozen=True)
class Choice:
    """What to do with the segments before `rest`: hold their tape (of one), or only its state."""

    rest: int
    tape: bool
    tape_paged: bool
    entry_paged: bool


@dataclass(frozen=True)
class Visit:
    """A part is dealt with. Where nothing is left to choose, it is one segment; where `last` comes
    before `first`, the segment `first` is undone from its tape."""

    first: int
    last: int
    choice: Choice | None = None


@dataclass(frozen=True)
class Measures:
    """For each segment, in bytes and joules; for two, s and z: `more_bytes` of the state before z
    that the state before s lacks, and `less_bytes` of the state before s that are not in the state
    before z and can be away meanwhile, with the joules of paging them."""

    forward_joules: list[float]
    more_bytes: list[list[int]]
    less_bytes: list[list[int]]
    less_out_joules: list[list[float]]
    less_in_joules: list[list[float]]
    pass_bytes: list[int]
    tape_pass_bytes: list[int]
    held_bytes: list[int]
    held_if_paged_bytes: list[int]
    tape_page_joules: list[float]
    undo_bytes: list[int]
    gradient_bytes: list[int]


def measure(graph: Graph, costs: Costs, budget: Budget, chain: Chain) -> Measures:
    nbytes = [tensor.nbytes for tensor in graph.tensors]
    fetched = {i for i, place in budget.start.items() if place == "store"}
    entries = [frozenset(segment.entry) for segment in chain]
    after = [*entries[1:], frozenset()]
    tapes = [frozenset(tape_of(graph, segment)) for segment in chain]

    def size(ids: Iterable[int]) -> int:
        return sum(nbytes[i] for i in ids)

    def joules(ids: Iterable[int]) -> tuple[float, float]:
        prices = [costs.tensors[i] for i in ids]
        return sum(p.out_joules for p in prices), sum(p.in_joules for p in prices)

    def pass_bytes(s: int, held: frozenset[int]) -> int:
        """The most RAM that segment s takes beyond its entry when this is held after it."""
        last = {i: k for k in chain[s].ops for i in graph.ops[k].inputs}
        alive: set[int] = set()
        most = 0
        for k in chain[s].ops:
            op = graph.ops[k]
            alive |= {i for i in op.inputs if i in fetched} | set(op.outputs)
            most = max(most, size(alive) + costs.ops[k][PLAIN].workspace_bytes)
            alive = {i for i in alive if i in held or last.get(i, -1) > k}
        return most

    rest = _other_bytes(graph, costs, budget)
    moves = [[joules(s - z) for z in entries] for s in entries]
    return Measures(
        forward_joules=[sum(costs.ops[k][PLAIN].joules for k in seg.ops) for seg in chain],
        more_bytes=[[size(z - s) for z in entries] for s in entries],
        less_bytes=[[size(s - z) for z in entries] for s in entries],
        less_out_joules=[[out for out, _ in row] for row in moves],
        less_in_joules=[[back for _, back in row] for row in moves],
        pass_bytes=[pass_bytes(s, after[s]) for s in range(len(chain))],
        tape_pass_bytes=[pass_bytes(s, after[s] | tapes[s]) for s in range(len(chain))],
        held_bytes=[size((tapes[s] | after[s]) & set(chain[s].made)) for s in range(len(chain))],
        held_if_paged_bytes=[size(after[s] & set(chain[s].made)) for s in range(len(chain))],
        tape_page_joules=[sum(joules(tapes[s] - after[s])) for s in range(len(chain))],
        undo_bytes=[
            max(
                (
                    rest[b] + size(i for i in tapes[s] if graph.readers[i][-1] >= b)
                    for b in chain[s].undone_by
                ),
                default=0,
            )
            for s in range(len(chain))
        ],
        gradient_bytes=_gradient_bytes(graph, chain),
    )


def _lives(graph: Graph) -> list[tuple[int, int, int]]:
    """Bytes, making and last use of what is made after the forward pass.

    A tensor that sits in the bytes of one from before the step, an updated parameter, takes none.
    """
    taken = {pair.output: pair.input for op in graph.ops for pair in op.in_place}
    lives = []
    for k in range(forward_count(graph), len(graph.ops)):
        for i in graph.ops[k].outputs:
            origin = i
            while origin in taken:
                origin = taken[origin]
            if graph.producer[origin] is not None:
                last = graph.readers[i][-1] if graph.readers[i] else k
                lives.append((graph.tensors[i].nbytes, k, last))
    return lives


def _other_bytes(graph: Graph, costs: Costs, budget: Budget) -> list[int]:
    """RAM while each op runs, less what the forward pass made and what is there from the start."""
    change = [0] * (len(graph.ops) + 1)
    for nbytes, first, last in _lives(graph):
        change[first] += nbytes
        change[last + 1] -= nbytes
    fetched = {i for i, place in budget.start.items() if place == "store"}
    return [
        level
        + costs.ops[k][PLAIN].workspace_bytes
        + sum(graph.tensors[i].nbytes for i in graph.ops[k].inputs if i in fetched)
        for k, level in enumerate(accumulate(change[:-1]))
    ]


def _gradient_bytes(graph: Graph, chain: Chain) -> list[int]:
    """What waits to be used when the undoing of each segment begins."""
    lives = _lives(graph)
    waiting = []
    for segment in chain:
        first = min(segment.undone_by, default=-1)
        waiting.append(sum(nbytes for nbytes, made, last in lives if made < first <= last))
    return waiting


class Table:
    """The least joules and the best first choice for each part of the chain."""

    def __init__(self, measures: Measures, slot_bytes: int, slots: int, paging: bool) -> None:
        self.slots = slots
        count = len(measures.forward_joules)

        def in_slots(values: object) -> Ints:
            return -(-np.array(values, dtype=np.int64) // slot_bytes)

        self.measures, self.paging = measures, paging
        self.more = in_slots(measures.more_bytes)
        self.less = np.array(measures.less_bytes, dtype=np.int64) // slot_bytes
        self.out_joules = np.array(measures.less_out_joules, dtype=np.float64)
        self.in_joules = np.array(measures.less_in_joules, dtype=np.float64)
        self.passing = in_slots(measures.pass_bytes)
        self.tape_passing = in_slots(measures.tape_pass_bytes)
        self.held = [in_slots(measures.held_bytes), in_slots(measures.held_if_paged_bytes)]
        self.undoing = in_slots(measures.undo_bytes)
        self.gradient = in_slots(measures.gradient_bytes)
        # Fewer than no slots cost infinitely much: a row shifted by what is taken needs no test.
        padded = np.full((2, count, count, 2 * (slots + 1)), np.inf)
        self.joules = padded[..., slots + 1 :]
        self.flat = padded.reshape(-1)
        self.row_starts = (
            slots + 1 + 2 * (slots + 1) * np.arange(count * count).reshape(count, count)
        )
        self.choices = np.zeros((2, count, count, slots + 1), dtype=np.int32)
        self.free = np.arange(slots + 1)
        for s in range(count):
            self._single(s)
        for length in range(1, count):
            for s in range(count - length):
                self._part(s, s + length)

    def _single(self, s: int) -> None:
        need = max(self.tape_passing[s] + self.gradient[s], self.undoing[s])
        self.joules[:, s, s, :] = np.where(
            self.free >= need, self.measures.forward_joules[s], np.inf
        )

    def _part(self, s: int, t: int) -> None:
        tape_rows, rest_of_tape = self._tapes(s, t)
        split_rows, rest_of_splits = self._splits(s, t)
        for stored in (0, 1):
            before = self.joules[:, s, s:t, :]  # what comes back for the segments passed
            ways = [
                tape_rows + rest_of_tape[KEEP],
                split_rows + rest_of_splits[KEEP] + before[stored],
            ]
            if self.paging:
                page = self.in_joules[s, s + 1 : t + 1, None]
                if not stored:
                    page = page + self.out_joules[s, s + 1 : t + 1, None]
                ways.append(tape_rows + rest_of_tape[PAGE] + page[0])
                ways.append(split_rows + rest_of_splits[PAGE] + before[1] + page)
            rows = np.concatenate(ways)
            best = rows.argmin(axis=0)
            self.choices[stored, s, t] = best
            self.joules[stored, s, t] = np.take_along_axis(rows, best[None], axis=0)[0]

    def _tapes(self, s: int, t: int) -> tuple[Floats, list[Floats]]:
        """Joules of a tape at s, held and paged; and of what follows, entry kept and paged."""
        need = max(self.tape_passing[s] + self.gradient[t], self.undoing[s])
        joules = self.measures.forward_joules[s]
        paged = joules + self.measures.tape_page_joules[s] if self.paging else np.inf
        own = np.where(self.free >= need, np.array([[joules], [paged]]), np.inf)
        held = np.array([self.held[KEEP][s], self.held[PAGE][s]])
        after = self.row_starts[[s + 1, s + 1], t]
        return own, [self._at(after, held - away) for away in (0, self.less[s, s + 1])]

    def _splits(self, s: int, t: int) -> tuple[Floats, list[Floats]]:
        """Joules of running ahead from s to each later segment; and of dealing with the rest."""
        ahead = np.cumsum(self.measures.forward_joules[s:t])
        peaks = self.passing[s:t] + self.more[s, s:t]
        need = np.maximum.accumulate(peaks) + self.gradient[t]
        own = np.where(self.free >= need[:, None], ahead[:, None], np.inf)
        state = self.more[s, s + 1 : t + 1]
        after = self.row_starts[s + 1 : t + 1, t]
        away = self.less[s, s + 1 : t + 1]
        return own, [self._at(after, state), self._at(after, state - away)]

    def _at(self, starts: Ints, less: Ints) -> Floats:
        """The rows that start there, as they are with so many slots less."""
        at = (starts - np.minimum(less, self.slots + 1))[:, None] + self.free
        if less.min() < 0:  # more than all there is is no use
            at = np.minimum(at, (starts + self.slots)[:, None])
        return self.flat.take(at)

    def whole_joules(self, free: int) -> float:
        """The least joules of all forward runs, first ones and others, with so many slots."""
        return float(self.joules[0, 0, -1, free])

    def visits(self, free: int) -> tuple[Visit, ...]:
        """What to do, in order, with so many slots."""
        found = []
        parts = [(0, self.joules.shape[1] - 1, free, 0)]
        while parts:
            s, t, slots, stored = parts.pop()
            choice = self._choice(s, t, slots, stored) if s < t else None
            found.append(Visit(s, t, choice))
            if choice is None:
                continue
            taken = self.more[s, choice.rest]
            if choice.tape:
                taken = self.held[PAGE if choice.tape_paged else KEEP][s]
            away = self.less[s, choice.rest] if choice.entry_paged else 0
            left = int(min(self.slots, slots - taken + away))
            back = choice.rest - 1 if not choice.tape else s - 1
            parts.append((s, back, slots, int(stored or choice.entry_paged)))
            parts.append((choice.rest, t, left, 0))
        return tuple(found)

    def _choice(self, s: int, t: int, free: int, stored: int) -> Choice:
        entry_paged, row = divmod(int(self.choices[stored, s, t, free]), 2 + t - s)
        return Choice(
            rest=max(s + 1, s + row - 1),
            tape=row < 2,
            tape_paged=row == PAGE,
            entry_paged=bool(entry_paged),
        )
