"""What crosses a few stages: a small program for bounds and starts, at any number of ops.

Most stages decide nothing. RAM is scarce at a few, and what a schedule pays is settled by what is
in RAM there. So some ops are chosen, and the time from the first run of one (not included) to that
of the next (included) is a segment; the last goes to the step's end. Read as 0 or 1:

    held[k, i]    tensor i, made before the k-th chosen op, is in RAM while that op first runs
    again[k, v]   op v, which ran before, runs in segment k
    load[k, i]    tensor i is paged in in segment k
    store[i]      tensor i is written to the store
    later[k, i]   tensor i is made again, or paged in, in segment k or a later one

and these rows hold for every schedule that runs ops for the first time in the graph's order:

    Σ bytes·held[k] ≤ RAM − what the chosen op takes
    1 ≤ held + again + load              where a first run of the segment reads i
    again[k, v] ≤ held + again + load    of each input of v
    held[k+1] ≤ held[k] + again[k] + load[k]
    load[k, i] ≤ store[i]
    1 ≤ held[k] + later[k]               where a first run of segment k or a later one reads i
    later[k] ≤ Σ over segments from k on of again + load

`later` (`gathered`) is split in two where the tensor can be loaded, since only what is made needs
inputs: made ≤ held + later of each of them. What the chosen op reads is there for nothing. Runs and
pages are priced at the least they take, and every op once is added; memory inside a segment, and
how often an op runs in it, are left out. The fewer ops are chosen, the less a fractional solution
can gather bit by bit, segment after segment: with the right ones a handful gives a higher bound
than all (docs/decisions/024).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from poet.planner.model.least import LeastPrices
from poet.planner.model.matrix import Builder, Ints
from poet.planner.model.reach import Reach
from poet.planner.model.relaxed import NOTHING, Relaxation
from poet.planner.model.relaxed_time import Time
from poet.planner.proof.floor import working_set_bytes
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget

Terms = list[tuple[int, float]]
_NONE = -1


@dataclass(frozen=True)
class Crossing:
    """The program, and the column of each tensor that may be held at each of the chosen ops."""

    relaxation: Relaxation
    held: tuple[dict[int, int], ...]


def crossing(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    chosen: Sequence[int],
    *,
    unit_bytes: int = 1,
    gathered: bool = True,
    check: Callable[[], object] = lambda: None,
) -> Crossing:
    """The program for the ops chosen, in order. `gathered` adds the rows of `later`."""
    return _Program(graph, costs, budget, tuple(chosen), unit_bytes, gathered, check).finish()


class _Rows:
    """Rows with the same limits, collected and written at once."""

    def __init__(self, low: float = -np.inf, high: float = np.inf) -> None:
        self.low, self.high, self.count = low, high, 0
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []

    def add(self, terms: Terms) -> None:
        for column, value in terms:
            if column >= 0:
                self.rows.append(self.count)
                self.columns.append(column)
                self.values.append(value)
        self.count += 1

    def write(self, builder: Builder) -> None:
        rows = builder.new_rows(self.count, low=self.low, high=self.high)
        columns = np.array(self.columns, dtype=np.int64)
        builder.add(rows[np.array(self.rows, dtype=np.int64)], columns, np.array(self.values))


class _Program:
    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        budget: Budget,
        chosen: tuple[int, ...],
        unit_bytes: int,
        gathered: bool,
        check: Callable[[], object],
    ) -> None:
        self.graph, self.costs, self.budget, self.chosen = graph, costs, budget, chosen
        self.unit_bytes, self.check = unit_bytes, check
        self.largest = max((t.nbytes // unit_bytes for t in graph.tensors), default=0) or 1
        self.reach = Reach(graph, budget)
        self.prices = LeastPrices(costs, budget)
        self.scale = 100.0 / costs.keep_all_joules if costs.keep_all_joules else 1.0
        self.maker = self.reach.first.tolist()
        self.last_run = self.reach.last.tolist()
        self.read_by = [self.surely_read_by(i) for i in range(len(graph.tensors))]
        self.fixed = frozenset(budget.pinned).difference(*(op.consumed for op in graph.ops))
        self.builder = Builder(check)
        self.cover, self.flow = _Rows(low=1.0), _Rows(high=0.0)
        self.memory: list[Ints] = []
        self.builder.new_columns(
            1, cost=self.scale * self.prices.every_op_once(), low=1.0
        )  # every op once
        self.store: dict[int, int] = {}
        self.again: list[dict[int, int]] = []
        self.load: list[dict[int, int]] = []
        self.held: list[dict[int, int]] = []
        self.there: list[frozenset[int]] = []
        wanted: set[int] = set()
        relevant: list[set[int]] = []
        for at in reversed(chosen):
            wanted = self.relevant_at(at, wanted)
            relevant.insert(0, wanted)
        for k in range(len(chosen)):
            self.columns_segment(k, relevant[k])
        for k in range(len(chosen)):
            self.check()
            self.rows_memory(k)
            self.rows_segment(k)
            self.rows_copies(k)
            if gathered and k + 1 < len(chosen):
                self.rows_later(k)
        self.deadline_row = self.row_deadline()

    def surely_read_by(self, i: int) -> list[int]:
        """The ops that read tensor i from RAM in whatever variant; the step's end may, too."""
        found = [
            v
            for v in self.graph.readers[i]
            if all(stream.tensor != i for run in self.prices.usable[v] for stream in run.reads)
        ]
        return [*found, len(self.graph.ops)] if i in self.reach.wanted else found

    def needs(self, v: int) -> list[int]:
        """What op v reads from RAM in whatever variant."""
        runs = self.prices.usable[v]
        streamed = {stream.tensor for run in runs for stream in run.reads}
        return [i for i in self.graph.ops[v].inputs if i not in streamed]

    def relevant_at(self, at: int, after: set[int]) -> set[int]:
        """The tensors made before an op that a first run after it reads, or a run again for one
        that matters then, or at the next chosen op (`after`)."""
        asked = [
            i
            for i, maker in enumerate(self.maker)
            if maker < at and (i in after or (self.read_by[i] and self.read_by[i][-1] > at))
        ]
        found = set(asked)
        while asked:
            v = self.maker[asked.pop()]
            if v >= 0 and self.last_run[v] > at:
                more = [j for j in self.needs(v) if j not in found]
                found.update(more)
                asked += more
        return found

    def columns_segment(self, k: int, relevant: set[int]) -> None:
        at = self.chosen[k]
        there = self.fixed.union(self.graph.ops[at].inputs)
        ops = {self.maker[i] for i in relevant}
        order = sorted(v for v in ops if v >= 0 and self.last_run[v] > at)
        tensors = sorted(relevant - there)
        prices = np.array([self.scale * self.prices.of_op(v) for v in order])
        again = self.builder.new_columns(len(order), cost=prices, integer=True)
        high = np.array([float(self.reach.until[i] > at) for i in tensors])
        held = self.builder.new_columns(len(tensors), high=high, integer=True)
        self.again.append(dict(zip(order, again.tolist(), strict=True)))
        self.held.append(dict(zip(tensors, held.tolist(), strict=True)))
        self.load.append({})
        self.there.append(there)
        if self.budget.paging:
            prices = np.array([self.scale * self.prices.page_in(i) for i in tensors])
            load = self.builder.new_columns(len(tensors), cost=prices, integer=True)
            self.load[k] = dict(zip(tensors, load.tolist(), strict=True))
            for i in tensors:
                self.row_stored(i, self.load[k][i])

    def row_stored(self, i: int, load: int) -> None:
        maker = self.maker[i]
        starts = maker < 0 and self.budget.start.get(i, "ram") != "ram"
        runs = self.prices.usable[maker] if maker >= 0 else []
        if starts or any(stream.tensor == i for run in runs for stream in run.writes):
            return
        if i not in self.store:
            cost = self.scale * self.prices.page_out(i)
            self.store[i] = int(self.builder.new_columns(1, cost=cost, integer=True)[0])
        self.flow.add([(load, 1.0), (self.store[i], -1.0)])

    def brings(self, k: int, i: int) -> Terms:
        """What brings tensor i into RAM in segment k."""
        again = self.again[k].get(self.maker[i], _NONE)
        return [(again, 1.0), (self.load[k].get(i, _NONE), 1.0)]

    def rows_memory(self, k: int) -> None:
        if self.budget.ram_bytes is None:
            return
        op, tensors, unit = self.graph.ops[self.chosen[k]], self.graph.tensors, self.unit_bytes
        made = {i for i in self.fixed if self.maker[i] < self.chosen[k]}
        takes = min(
            working_set_bytes(self.graph, op, run, frozenset(made))
            for run in self.prices.usable[self.chosen[k]]
        )
        room = self.budget.ram_bytes // unit - takes // unit
        row = self.builder.new_rows(1, high=room / self.largest)
        self.memory.append(row)
        columns = np.array([*self.held[k].values()], dtype=np.int64)
        sizes = np.array([tensors[i].nbytes // unit / self.largest for i in self.held[k]])
        self.builder.add(np.full(columns.size, row[0]), columns, sizes)

    def rows_segment(self, k: int) -> None:
        """What first runs read, and what runs again reads, is there."""
        held, at = self.held[k], self.chosen[k]
        to = self.chosen[k + 1] if k + 1 < len(self.chosen) else len(self.graph.ops)
        for i, column in held.items():
            if any(at < v <= to for v in self.read_by[i]):
                self.cover.add([(column, 1.0), *self.brings(k, i)])
        for v, column in self.again[k].items():
            for j in self.needs(v):
                if j in held:
                    sources = [(held[j], 1.0), *self.brings(k, j)]
                    self.flow.add([(column, 1.0), *((c, -x) for c, x in sources)])

    def rows_copies(self, k: int) -> None:
        """What is held at the next chosen op was held at this one, or came since."""
        if k + 1 == len(self.chosen):
            return
        for i, column in self.held[k + 1].items():
            if self.maker[i] < self.chosen[k] and i not in self.there[k]:
                before = self.held[k].get(i, _NONE)
                sources = [(before, 1.0), *self.brings(k, i)]
                self.flow.add([(column, 1.0), *((c, -x) for c, x in sources)])

    def rows_later(self, k: int) -> None:
        held, at, segments = self.held[k], self.chosen[k], range(k, len(self.chosen))
        made, fetched = dict[int, int](), dict[int, int]()
        for i in held:
            again = [self.again[s].get(self.maker[i], _NONE) for s in segments]
            loads = [self.load[s].get(i, _NONE) for s in segments]
            for sources, late in ((again, made), (loads, fetched)):
                if max(sources) >= 0:
                    late[i] = int(self.builder.new_columns(1)[0])
                    self.flow.add([(late[i], 1.0), *((c, -1.0) for c in sources)])
            if i in fetched and i in self.store:
                self.flow.add([(fetched[i], 1.0), (self.store[i], -1.0)])
        for i, column in held.items():
            late_terms = [(made.get(i, _NONE), 1.0), (fetched.get(i, _NONE), 1.0)]
            if self.read_by[i] and self.read_by[i][-1] > at:
                self.cover.add([(column, 1.0), *late_terms])
        for i, column in made.items():
            for j in self.needs(self.maker[i]):
                if j in held:
                    there = (held[j], made.get(j, _NONE), fetched.get(j, _NONE))
                    self.flow.add([(column, 1.0), *((c, -1.0) for c in there)])

    def row_deadline(self) -> int:
        """What runs again, and under serial transfers what is paged, ends in time as well."""
        deadline, serial = self.budget.deadline_seconds, self.prices.is_serial
        if deadline is None:
            return _NONE
        seconds = [min(map(self.prices.seconds, runs)) for runs in self.prices.usable]
        unit = deadline or 1.0
        row = self.builder.new_rows(1, high=(deadline * (1 + 1e-9) - sum(seconds)) / unit)
        terms = [(c, seconds[v]) for again in self.again for v, c in again.items()]
        if serial:
            pages = self.costs.tensors
            terms += [(c, pages[i].in_seconds) for load in self.load for i, c in load.items()]
            terms += [(c, pages[i].out_seconds) for i, c in self.store.items()]
        columns = np.array([column for column, _ in terms], dtype=np.int64)
        values = np.array([value for _, value in terms]) / unit
        self.builder.add(np.full(columns.size, row[0]), columns, values)
        return int(row[0])

    def finish(self) -> Crossing:
        self.cover.write(self.builder)
        self.flow.write(self.builder)
        choices = [c for held in self.held for c in held.values()] + [*self.store.values()]
        relaxation = Relaxation(
            milp=self.builder.finish(),
            scale=self.scale,
            unit_bytes=self.unit_bytes * self.largest,
            deadline_seconds=self.budget.deadline_seconds,
            memory_rows=np.concatenate([NOTHING, *self.memory]),
            memory_columns=NOTHING,
            time=Time(
                deadline_row=self.deadline_row, unit_seconds=self.budget.deadline_seconds or 1.0
            ),
            first_choices=np.array(sorted(choices), dtype=np.int64),
            keep=(),
            load=(),
        )
        return Crossing(relaxation, tuple(self.held))
