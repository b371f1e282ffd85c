"""Memory, FORMULATION 4, as every schedule in the given order has it.

Two moments of a stage are sure, whatever else happens in it and in which order:

- while its own op runs, which ends it: the op's inputs, outputs and workspace are there, and all
  that is kept into the next stage;
- while another op runs again: its inputs, outputs and workspace, and what is there all through the
  stage, because it is kept into the next one and nothing brought it in this one.

When the step ends, all that must be in RAM is there together.
"""

import numpy as np

from poet.planner.model.matrix import Ints
from poet.planner.model.relaxed import NOTHING, Relaxed, Way


class Memory:
    """The rows, and of which rows and columns RAM is the limit."""

    def __init__(self, relaxed: Relaxed) -> None:
        self.relaxed, self.builder = relaxed, relaxed.builder
        self.rows: list[Ints] = []
        self.columns: Ints = NOTHING
        if relaxed.ram < np.inf:
            self.add()

    def add(self) -> None:
        r, builder, stages = self.relaxed, self.builder, self.relaxed.end + 1
        # What nothing can happen to in a stage, and what is there all through it.
        self.still = builder.new_columns(stages, high=r.ram)
        self.through = builder.new_columns(stages, high=r.ram)
        self.columns = np.concatenate((self.still, self.through))
        still, through = (builder.new_rows(stages, high=0.0) for _ in range(2))
        builder.add(still, self.still, -1.0)
        builder.add(through, self.still, 1.0)
        builder.add(through, self.through, -1.0)
        # While a stage's own op runs, or the step ends.
        last = builder.new_rows(stages, high=r.ram)
        self.room = builder.row_high[-1]
        self.rows.append(last)
        builder.add(last, self.still, 1.0)
        self.all_through: dict[int, Ints] = {}
        for i, size in enumerate(r.size):
            if size and r.need[i] > r.first[i]:
                self.rows_tensor(i, size, still, through, last)
        for i in r.reach.wanted:
            if r.happens[i][r.end]:
                self.room[r.end] -= r.size[i]
        for v in range(r.end):
            self.rows_first_run(v, last[[v]])
            if r.last[v] > v:
                for way in r.ways[v]:
                    self.rows_again(v, way)

    def rows_tensor(self, i: int, size: float, still: Ints, through: Ints, last: Ints) -> None:
        """Where tensor i counts, stage by stage, by what is kept of it afterwards."""
        r, builder = self.relaxed, self.builder
        low, high = int(r.first[i]) + 1, int(r.need[i])
        stages = np.arange(low, high + 1)
        happens = r.happens[i][low : high + 1]
        after = self.after(i, low, high)
        builder.add(np.where(happens, -1, still[stages]), after, size)
        own = np.zeros(stages.size, dtype=bool)  # read by the stage's own op: counted there
        readers = np.array([v for v in r.graph.readers[i] if low <= v <= high], dtype=np.int64)
        own[readers - low] = True
        if high == r.end:
            own[-1] |= i in r.reach.wanted
        builder.add(np.where(happens & ~own, last[stages], -1), after, size)
        held: Ints = np.full(stages.size, -1, dtype=np.int64)
        held[happens] = builder.new_columns(int(happens.sum()))
        rows = np.where(happens, builder.new_rows(stages.size, high=0.0), -1)
        builder.add(rows, after, 1.0)
        builder.add(rows, held, -1.0)
        r.add_arrivals(rows, i, low, high, -1.0)
        builder.add(np.where(happens, through[stages], -1), held, size)
        self.all_through[i] = np.where(happens, held, after)

    def after(self, i: int, low: int, high: int) -> Ints:
        """Whether tensor i is kept into the stage after each; the tail has none, so there, where
        nothing can happen to it, whether it was kept into the tail."""
        r = self.relaxed
        found = r.keep_at(i, low + 1, high + 1)
        if high == r.end and not r.happens[i][r.end]:
            found[-1] = r.keep_at(i, r.end, r.end)[0]
        return found

    def beside(self, v: int, way: Way) -> float:
        """What a run takes beside its inputs: workspace and outputs, but for those that take the
        bytes of an input."""
        r, op = self.relaxed, self.relaxed.graph.ops[v]
        seated = {pair.output for pair in op.in_place if pair.input not in way.reads}
        outputs = [i for i in op.outputs if i not in way.writes and i not in seated]
        return r.units(way.run.workspace_bytes) + sum(r.size[i] for i in outputs)

    def rows_first_run(self, v: int, row: Ints) -> None:
        r, builder = self.relaxed, self.builder
        for i in r.graph.ops[v].inputs:
            if not r.size[i] or not r.happens[i][v]:
                continue  # of a pinned one its keep counts
            from_ram = [way for way in r.ways[v] if i not in way.reads]
            if len(from_ram) == len(r.ways[v]):
                self.room[v] -= r.size[i]
                continue
            there = builder.new_columns(1)
            read, kept = builder.new_rows(1, high=0.0), builder.new_rows(1, high=0.0)
            for way in from_ram:
                builder.add(read, way.columns[:1], 1.0)
            builder.add(read, there, -1.0)
            builder.add(kept, r.keep_at(i, v + 1, v + 1), 1.0)
            builder.add(kept, there, -1.0)
            builder.add(row, there, r.size[i])
        for way in r.ways[v]:
            builder.add(row, way.columns[:1], self.beside(v, way))

    def rows_again(self, v: int, way: Way) -> None:
        r, builder, last = self.relaxed, self.builder, int(self.relaxed.last[v])
        inputs = [i for i in r.graph.ops[v].inputs if i not in way.reads]
        rows = builder.new_rows(last - v, high=r.ram)
        self.rows.append(rows)
        rows = np.where(r.reads[v][1:], rows, -1)
        builder.add(rows, self.through[v + 1 : last + 1], 1.0)
        takes = self.beside(v, way) + sum(r.size[i] for i in inputs)
        builder.add(rows, way.columns[1:], takes)
        for i in inputs:  # counted already
            if i in self.all_through:
                held = r.at(self.all_through[i], int(r.first[i]) + 1, v + 1, last)
                builder.add(rows, held, -r.size[i])
