"""The relaxation that bounds are made of: it holds for every schedule in the given order.

A schedule is read stage by stage (`reach`), and a variable says whether something happens in a
stage at all, however often and in whatever order: that op v runs, that tensor i is paged in
(`load`), that a run brings it (`out`), that it is in RAM when the stage begins (`keep`). So the
rows hold whether or not ops run again in the graph's order, once a stage, or after the last first
run; the exact model (`build`) is stricter. On the instances of the released code that costs the
bound at most 0.03 percent, and the program is smaller (docs/decisions/021).

Numbers in names are those of the formulation. A `window` leaves out most recomputations' inputs
(`reach.masks`): a smaller relaxation still. Bytes are whole units, rounded down, of the budget too.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from poet.planner.model.matrix import Builder, Floats, Ints, Milp
from poet.planner.model.reach import Mask, Reach, masks
from poet.planner.model.relaxed_time import Time, rows_6_time
from poet.values.device import Costs, Run
from poet.values.graph import Graph
from poet.values.schedule import Budget

NOTHING: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Way:
    """One variant of an op, with its column for each stage from its own on."""

    run: Run
    columns: Ints
    reads: frozenset[int]
    writes: frozenset[int]


@dataclass(frozen=True)
class Relaxation:
    """The program, and what is asked of it later."""

    milp: Milp
    scale: float
    unit_bytes: float
    deadline_seconds: float | None
    memory_rows: Ints
    memory_columns: Ints
    time: Time
    first_choices: Ints
    """Columns that decide most: what is kept, and what goes to the store."""
    keep: tuple[Ints, ...]
    """For each tensor its columns of being kept into a stage, from the one after its maker's."""
    load: tuple[Ints, ...]
    """The same of being loaded in it."""


class Relaxed:
    """All columns of one relaxation, and its rows but for memory and cuts."""

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        budget: Budget,
        unit_bytes: float,
        window: int | None,
        cut_stages: tuple[int, ...],
        check: Callable[[], object],
    ) -> None:
        self.graph, self.costs, self.budget = graph, costs, budget
        self.reach = Reach(graph, budget)
        self.end = self.reach.count
        """The tail's number."""
        self.first, self.last, self.need = self.reach.first, self.reach.last, self.reach.need
        self.reads, self.makes = masks(graph, self.reach, window, cut_stages)
        self.unit_bytes = unit_bytes
        self.size = [self.units(tensor.nbytes) for tensor in graph.tensors]
        self.ram = np.inf if budget.ram_bytes is None else self.units(budget.ram_bytes)
        total = costs.keep_all_joules
        self.scale = 100.0 / total if total else 1.0
        self.builder = Builder(check)
        self.cut_stages = cut_stages
        self.pinned = frozenset(budget.pinned)
        self.columns_compute()
        self.columns_tensors()
        self.rows_2_3_1_runs()
        self.rows_3_3_4_copies()
        self.rows_3_5_ends()
        self.rows_3_7_store_size()
        self.time = rows_6_time(self)

    def units(self, nbytes: float) -> float:
        return float(np.floor(nbytes / self.unit_bytes))

    # Prices (FORMULATION 5)

    def price(self, joules: float, compute_seconds: float, transfer_seconds: float) -> float:
        if self.budget.transfers == "overlap":
            return self.scale * joules  # idle watts are for the makespan (relaxed_time.py)
        seconds = compute_seconds
        if self.budget.transfers == "serial":
            seconds += transfer_seconds
        return self.scale * (joules + self.costs.idle_watts * seconds)

    def price_run(self, run: Run) -> float:
        moving = sum(stream.seconds for stream in (*run.reads, *run.writes))
        return self.price(run.joules + run.stream_joules, run.seconds, moving)

    def price_load(self, i: int) -> float:
        price = self.costs.tensors[i]
        return self.price(price.in_joules, 0.0, price.in_seconds)

    # Columns (2, 7)

    def columns_compute(self) -> None:
        self.ways: list[list[Way]] = []
        self.share: list[Floats] = []
        """What of a run is counted in each stage."""
        for v, runs in enumerate(self.costs.ops):
            usable = [
                run for run in runs.values() if self.budget.paging or not (run.reads or run.writes)
            ]
            stages = self.makes[v]
            share = np.where(self.reads[v], 1.0, 1.0 / len(self.graph.ops[v].outputs))
            self.share.append(share)
            made = []
            for run in usable:
                columns = np.full(stages.size, -1, dtype=np.int64)
                columns[stages] = self.builder.new_columns(
                    int(stages.sum()), cost=self.price_run(run) * share[stages], integer=True
                )
                if len(usable) == 1:
                    self.builder.low[-1] = np.where(np.flatnonzero(stages) == 0, 1.0, 0.0)
                reads, writes = (
                    frozenset(s.tensor for s in some) for some in (run.reads, run.writes)
                )
                made.append(Way(run, columns, reads, writes))
            self.ways.append(made)

    def columns_tensors(self) -> None:
        graph, count = self.graph, len(self.graph.tensors)
        self.stored_at_start = [
            self.first[i] < 0 and self.budget.start.get(i, "ram") != "ram" for i in range(count)
        ]
        self.read_in = np.zeros((count, self.end + 1), dtype=bool)
        """Whether somebody may read a tensor in a stage."""
        for v, op in enumerate(graph.ops):
            for i in op.inputs:
                self.read_in[i, v : int(self.last[v]) + 1] |= self.reads[v]
        self.read_in[sorted(self.reach.wanted), self.end] = True
        self.store: Ints = np.full(count, -1, dtype=np.int64)
        self.out, self.keep, self.load, self.loaded = [], [], [], list[Ints]()
        self.happens: list[Mask] = []
        """Whether anything can happen to a tensor in a stage; nothing can to a pinned one."""
        for i in range(count):
            self.out.append(self.columns_out(i))
            happens = self.read_in[i].copy()
            maker = int(self.first[i])
            if maker >= 0:
                happens[maker : int(self.last[maker]) + 1] |= self.makes[maker]
            if i in self.pinned:
                happens[:] = False
            self.happens.append(happens)
            self.keep.append(self.columns_keep(i))
            if self.budget.paging and not self.stored_at_start[i]:
                price = self.costs.tensors[i]
                cost = self.price(price.out_joules, 0.0, price.out_seconds)
                self.store[i] = self.builder.new_columns(1, cost=cost, integer=True)[0]
            self.load.append(self.columns_load(i))
            self.loaded.append(self.columns_loaded(i))

    def columns_out(self, i: int) -> Ints:
        """Brought by a run, over t = first … last of its maker; the run itself where they agree."""
        v = int(self.first[i])
        if v < 0:
            return NOTHING
        if len(self.graph.ops[v].outputs) == 1 and len(self.ways[v]) == 1:
            only = self.ways[v][0]
            nowhere: Ints = np.full(only.columns.size, -1, dtype=np.int64)
            return nowhere if i in only.writes else only.columns
        stages = self.makes[v]
        out = np.full(stages.size, -1, dtype=np.int64)
        out[stages] = self.builder.new_columns(int(stages.sum()), integer=True)
        return out

    def columns_keep(self, i: int) -> Ints:
        """Over t = first+1 … need, one column for each run of stages in which nothing happens."""
        first, need = int(self.first[i]), int(self.need[i])
        if need <= first:
            return NOTHING
        changes = np.ones(need - first, dtype=bool)
        changes[1:] = self.happens[i][first + 1 : need]
        consumer = self.graph.consumer[i]
        gone = -1  # the stage that begins right after it was consumed for the first time
        if consumer is not None and consumer < need:
            gone = consumer - first
            changes[gone : gone + 2] = True
        groups = np.cumsum(changes) - 1
        high = np.ones(groups[-1] + 1)
        if first < 0 and self.budget.start[i] == "store":
            high[0] = 0.0
        if gone >= 0:
            high[groups[gone]] = 0.0
        low = np.minimum(float(i in self.pinned), high)
        columns = self.builder.new_columns(high.size, low=low, high=high, integer=True)
        spread: Ints = columns[groups]
        return spread

    def columns_load(self, i: int) -> Ints:
        """Over t = first+1 … need, where somebody may read it."""
        first, need = int(self.first[i]), int(self.need[i])
        load: Ints = np.full(max(0, need - first), -1, dtype=np.int64)
        if self.budget.paging and i not in self.pinned and load.size:
            stages = self.read_in[i, first + 1 : need + 1]
            load[stages] = self.builder.new_columns(
                int(stages.sum()), cost=self.price_load(i), integer=True
            )
        return load

    def columns_loaded(self, i: int) -> Ints:
        """The part of keep that came from a load; needed only where the store bit is a decision."""
        keep = self.keep[i]
        if self.store[i] < 0 or not keep.size or i in self.pinned:
            return np.full(keep.size, -1, dtype=np.int64)
        groups = keep - keep[0]
        spread: Ints = self.builder.new_columns(int(groups[-1]) + 1)[groups]
        return spread

    # Reading blocks over a range of stages

    def at(self, block: Ints, start: int, low: int, high: int) -> Ints:
        """Columns of a block that starts at stage `start`, for stages low … high."""
        found: Ints = np.full(max(0, high - low + 1), -1, dtype=np.int64)
        a, b = max(low, start), min(high, start + block.size - 1)
        if a <= b:
            found[a - low : b - low + 1] = block[a - start : b - start + 1]
        return found

    def keep_at(self, i: int, low: int, high: int) -> Ints:
        return self.at(self.keep[i], int(self.first[i]) + 1, low, high)

    def load_at(self, i: int, low: int, high: int) -> Ints:
        return self.at(self.load[i], int(self.first[i]) + 1, low, high)

    def out_at(self, i: int, low: int, high: int) -> Ints:
        return self.at(self.out[i], int(self.first[i]), low, high)

    def add_arrivals(self, rows: Ints, i: int, low: int, high: int, sign: float) -> None:
        """What brings tensor i into RAM in stages low … high."""
        self.builder.add(rows, self.load_at(i, low, high), sign)
        if self.first[i] >= 0:
            self.builder.add(rows, self.out_at(i, low, high), sign)

    def add_stored(self, rows: Ints, i: int, sign: float, stages: Ints | None = None) -> None:
        """Whether tensor i is in the store: written, or streamed there by a run of its producer;
        with `stages`, by the end of the stage that each row stands for."""
        self.builder.add(rows, np.full(rows.size, self.store[i]), sign)
        maker = int(self.first[i])
        for way in self.ways[maker] if maker >= 0 else []:
            if i in way.writes:
                for offset, column in enumerate(way.columns):
                    late = rows if stages is None else np.where(stages >= maker + offset, rows, -1)
                    self.builder.add(late, np.full(rows.size, column), sign)

    # Rows

    def rows_2_3_1_runs(self) -> None:
        """2, 3.1, 7: a first run has a variant; outputs come from runs; inputs are there."""
        builder = self.builder
        for v, ways in enumerate(self.ways):
            if len(ways) > 1:
                first = builder.new_rows(1, low=1.0, high=1.0)
                for way in ways:
                    builder.add(first, way.columns[:1], 1.0)
            for i in self.graph.ops[v].outputs:
                if self.out[i] is not ways[0].columns and self.out[i].size:
                    rows = builder.new_rows(self.out[i].size, high=0.0)
                    builder.add(rows, self.out[i], 1.0)
                    for way in ways:
                        if i not in way.writes:
                            builder.add(rows, way.columns, -1.0)
            for i in self.graph.ops[v].inputs:
                self.rows_input(v, i)

    def rows_input(self, v: int, i: int) -> None:
        """3.1, 7: what op v reads is in RAM, or in the store where a variant streams it.

        A first run is one run; again, an op may run in several variants in one stage.
        """
        builder, last = self.builder, int(self.last[v])
        from_ram = [way for way in self.ways[v] if i not in way.reads]
        rows = builder.new_rows(1, high=0.0)
        for way in from_ram:
            builder.add(rows, way.columns[:1], 1.0)
        builder.add(rows, self.keep_at(i, v, v), -1.0)
        self.add_arrivals(rows, i, v, v, -1.0)
        for way in self.ways[v]:
            streams = i in way.reads
            if streams and self.stored_at_start[i]:
                continue
            begin = v if streams else v + 1
            rows = builder.new_rows(last - begin + 1, high=0.0)
            rows = np.where(self.reads[v][begin - v :], rows, -1)
            builder.add(rows, way.columns[begin - v :], 1.0)
            if streams:
                self.add_stored(rows, i, -1.0, np.arange(begin, last + 1))
            else:
                builder.add(rows, self.keep_at(i, begin, last), -1.0)
                self.add_arrivals(rows, i, begin, last, -1.0)

    def rows_3_3_4_copies(self) -> None:
        """3.3, 3.4: a copy comes from somewhere, and has one origin."""
        builder = self.builder
        for i in range(len(self.graph.tensors)):
            low, high = max(0, int(self.first[i])), int(self.need[i])
            if low > high:
                continue
            happens = self.happens[i][low : high + 1]

            def rows(happens: Mask = happens) -> Ints:
                made: Ints = np.where(happens, builder.new_rows(happens.size, high=0.0), -1)
                return made

            before, after = self.keep_at(i, low, high), self.keep_at(i, low + 1, high + 1)
            from_somewhere = rows()
            builder.add(from_somewhere, after, 1.0)
            builder.add(from_somewhere, before, -1.0)
            self.add_arrivals(from_somewhere, i, low, high, -1.0)
            if self.store[i] < 0:
                continue
            start = int(self.first[i]) + 1
            loaded = self.at(self.loaded[i], start, low, high)
            loaded_after = self.at(self.loaded[i], start, low + 1, high + 1)
            loads, makes, kept, fetched = rows(), rows(), rows(), rows()
            builder.add(loads, loaded_after, 1.0)
            builder.add(loads, loaded, -1.0)
            builder.add(loads, self.load_at(i, low, high), -1.0)
            builder.add(makes, after, 1.0)
            builder.add(makes, loaded_after, -1.0)
            builder.add(makes, loaded, 1.0)
            builder.add(makes, before, -1.0)
            if self.first[i] >= 0:
                builder.add(makes, self.out_at(i, low, high), -1.0)
            stages = np.arange(low, high + 1)
            builder.add(kept, loaded, 1.0)
            self.add_stored(kept, i, -1.0, stages)
            builder.add(fetched, self.load_at(i, low, high), 1.0)
            self.add_stored(fetched, i, -1.0, stages)

    def rows_3_5_ends(self) -> None:
        """3.5: each tensor where it must be at the end."""
        builder, end = self.builder, self.end
        for i, place in self.budget.end.items():
            if place != "store":
                row = builder.new_rows(1, low=1.0)
                builder.add(row, self.keep_at(i, end, end), 1.0)
                self.add_arrivals(row, i, end, end, 1.0)
                if place == "either":
                    self.add_stored(row, i, 1.0)
                    if self.stored_at_start[i]:
                        builder.row_low[-1][0] = 0.0
            if place in ("store", "both") and not self.stored_at_start[i]:
                self.add_stored(builder.new_rows(1, low=1.0), i, 1.0)

    def rows_3_7_store_size(self) -> None:
        """3.7: the slots in use fit the store; they are never given back."""
        if self.budget.store_bytes is None or not self.budget.paging:
            return
        builder, tensors, heir = self.builder, self.graph.tensors, self.graph.heir
        taken = sum(t.nbytes for i, t in enumerate(tensors) if self.stored_at_start[i])
        limit = builder.new_rows(1, high=float(self.budget.store_bytes - taken))
        for i, tensor in enumerate(tensors):
            if self.stored_at_start[i] or tensor.becomes is not None:
                continue  # the slot is in use anyway, or counted with the tensor it belongs to
            used = builder.new_columns(1)
            builder.add(limit, used, tensor.nbytes)
            for j in [i] if i not in heir else [i, heir[i]]:
                for column in self.writers(j):
                    row = builder.new_rows(1, high=0.0)
                    builder.add(row, np.array([column]), 1.0)
                    builder.add(row, used, -1.0)

    def writers(self, i: int) -> list[int]:
        """The columns that put tensor i into the store."""
        columns = [int(self.store[i])]
        maker = int(self.first[i])
        for way in self.ways[maker] if maker >= 0 else []:
            if i in way.writes:
                columns += [int(c) for c in way.columns]
        return [c for c in columns if c >= 0]
