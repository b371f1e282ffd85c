"""The model's variables: FORMULATION 2, 5 and 7 as blocks of columns.

Blocks are arrays over stages, with -1 where a variable does not exist: `compute` of op v over t = v
… last[v] (R in the paper, one block a variant), `keep[i]` over t = first[i]+1 … need[i] (S_ram),
`load[i, v]` and `drop[i, v]` over the stages in which reader v may run (M_in), and one `store[i]` a
tensor (S_aux and M_out). Stages in which nothing can happen to a tensor share one keep variable.

An op with one output and one variant needs no `out` variable of its own: its output comes when it
runs. A drop after the last op of a stage, or right after a producer, changes nothing that a keep of
0 does not, so drops exist only after readers that run before the stage's own op. A pinned tensor
has one keep, which is 1, from the first stage, or the one after its making, to the last or its
consumption; no loads, no drops.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poet.planner.model.matrix import Builder, Ints
from poet.planner.model.stages import Stages
from poet.values.device import Costs, Run
from poet.values.graph import Graph
from poet.values.schedule import Budget

Mask = npt.NDArray[np.bool_]
NOTHING: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Variant:
    """One way to run an op, with its column for each stage."""

    name: str
    run: Run
    columns: Ints
    streamed_in: frozenset[int]
    streamed_out: frozenset[int]


def recomputations(
    graph: Graph, stages: Stages, window: int | None, also: Iterable[tuple[int, int]] = ()
) -> list[Mask]:
    """In which of the stages v … last[v] op v may run: all of them, or, with a window, the `window`
    stages up to each stage whose own op reads one of its outputs. `also` names further pairs of an
    op and a stage."""
    if window is None:
        return [np.ones(int(last) - v + 1, dtype=bool) for v, last in enumerate(stages.last)]
    runs = []
    for v, op in enumerate(graph.ops):
        near = np.zeros(stages.count + 1, dtype=bool)
        for i in op.outputs:
            for user in graph.readers[i]:
                near[max(0, user - window) : user + 1] = True
            if stages.need[i] == stages.count:
                near[max(0, stages.count - 1 - window) :] = True
        mask = near[v : int(stages.last[v]) + 1].copy()
        mask[0] = True
        runs.append(mask)
    for v, t in also:
        runs[v][t - v] = True
    return runs


class Blocks:
    """All columns of one model, and the values they were made from."""

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        budget: Budget,
        unit_bytes: float,
        window: int | None,
        also: Iterable[tuple[int, int]],
        check: Callable[[], object],
    ) -> None:
        self.graph, self.costs, self.budget = graph, costs, budget
        self.stages = Stages(graph, budget)
        self.count = self.stages.count
        self.first, self.last, self.need = self.stages.first, self.stages.last, self.stages.need
        self.runs = recomputations(graph, self.stages, window, also)
        self.size = [t.nbytes / unit_bytes for t in graph.tensors]
        self.unit_bytes = unit_bytes
        limit = budget.ram_bytes
        self.ram = np.inf if limit is None else limit / unit_bytes
        total = costs.keep_all_joules
        self.scale = 100.0 / total if total else 1.0
        self.builder = Builder(check)
        self.columns_compute()
        self.columns_tensors()

    # Prices (FORMULATION 5)

    def price(self, joules: float, compute_seconds: float, transfer_seconds: float) -> float:
        """What one decision adds to the objective."""
        seconds = compute_seconds
        if self.budget.transfers == "serial":
            seconds += transfer_seconds
        return self.scale * (joules + self.costs.idle_watts * seconds)

    def price_run(self, run: Run) -> float:
        streams = (*run.reads, *run.writes)
        return self.price(
            run.joules + run.stream_joules, run.seconds, sum(s.seconds for s in streams)
        )

    # Decisions (FORMULATION 2, 7)

    def columns_compute(self) -> None:
        self.variants: list[list[Variant]] = []
        for v, runs in enumerate(self.costs.ops):
            usable = {
                name: run
                for name, run in runs.items()
                if self.budget.paging or not (run.reads or run.writes)
            }
            made = []
            for name, run in usable.items():
                stages = self.runs[v]
                columns = np.full(stages.size, -1, dtype=np.int64)
                columns[stages] = self.builder.new_columns(
                    int(stages.sum()), cost=self.price_run(run), integer=True
                )
                if len(usable) == 1:
                    self.builder.low[-1] = np.where(np.flatnonzero(stages) == 0, 1.0, 0.0)
                made.append(
                    Variant(
                        name=name,
                        run=run,
                        columns=columns,
                        streamed_in=frozenset(s.tensor for s in run.reads),
                        streamed_out=frozenset(s.tensor for s in run.writes),
                    )
                )
            self.variants.append(made)

    def columns_tensors(self) -> None:
        builder, count = self.builder, len(self.graph.tensors)
        self.out: list[Ints] = []
        self.keep: list[Ints] = []
        self.loaded: list[Ints] = []
        self.load: dict[tuple[int, int], Ints] = {}
        self.drop: dict[tuple[int, int], Ints] = {}
        self.store = np.full(count, -1, dtype=np.int64)
        self.end_load = np.full(count, -1, dtype=np.int64)
        self.pinned = frozenset(self.budget.pinned)
        self.stored_at_start = [
            self.budget.start.get(i, "ram") != "ram" if self.first[i] < 0 else False
            for i in range(count)
        ]
        for i in range(count):
            price = self.costs.tensors[i]
            self.out.append(self.columns_out(i))
            events = self.events(i)
            self.keep.append(self.columns_keep(i, events))
            storable = self.budget.paging
            if storable and not self.stored_at_start[i]:
                cost = self.price(price.out_joules, 0.0, price.out_seconds)
                self.store[i] = builder.new_columns(1, cost=cost, integer=True)[0]
            self.loaded.append(self.columns_loaded(i))
            in_cost = self.price(price.in_joules, 0.0, price.in_seconds)
            movable = i not in self.pinned
            for v in self.graph.readers[i]:
                runs = self.runs[v]
                load = np.full(runs.size, -1, dtype=np.int64)
                if storable and movable:
                    load[runs] = builder.new_columns(int(runs.sum()), cost=in_cost, integer=True)
                self.load[i, v] = load
                drop = np.full(runs.size, -1, dtype=np.int64)
                again = np.flatnonzero(runs[1:] & movable) + 1
                drop[again] = builder.new_columns(again.size)
                self.drop[i, v] = drop
            wanted = self.budget.end.get(i, "store") != "store"
            if storable and wanted and movable and i not in self.stages.consumed:
                self.end_load[i] = builder.new_columns(1, cost=in_cost, integer=True)[0]

    def events(self, i: int) -> Mask:
        """Whether anything can happen to tensor i in stage 0 … T-1; nothing can to a pinned one."""
        events = np.zeros(self.count + 1, dtype=bool)
        if i in self.pinned:
            return events
        for v in self.graph.readers[i]:
            events[v : self.last[v] + 1] |= self.runs[v]
        maker = int(self.first[i])
        if maker >= 0:
            events[maker : self.last[maker] + 1] |= self.runs[maker]
        return events

    def columns_out(self, i: int) -> Ints:
        """Taken outputs over t = first … last of the producer; the run itself where they agree."""
        v = int(self.first[i])
        if v < 0:
            return NOTHING
        if len(self.graph.ops[v].outputs) == 1 and len(self.variants[v]) == 1:
            only = self.variants[v][0]
            nowhere: Ints = np.full(only.columns.size, -1, dtype=np.int64)
            return nowhere if i in only.streamed_out else only.columns
        runs = self.runs[v]
        out = np.full(runs.size, -1, dtype=np.int64)
        out[runs] = self.builder.new_columns(int(runs.sum()), integer=True)
        return out

    def columns_keep(self, i: int, events: Mask) -> Ints:
        """Over t = first+1 … need, one column for each run of stages in which nothing happens."""
        first, need = int(self.first[i]), int(self.need[i])
        if need <= first:
            return NOTHING
        changes = np.ones(need - first, dtype=bool)
        changes[1:] = events[first + 1 : need]
        groups = np.cumsum(changes) - 1
        high = np.ones(groups[-1] + 1)
        if first < 0 and self.budget.start[i] == "store":
            high[0] = 0.0
        low = float(i in self.pinned)
        columns = self.builder.new_columns(high.size, low=low, high=high, integer=True)
        spread: Ints = columns[groups]
        return spread

    def columns_loaded(self, i: int) -> Ints:
        """The part of keep that came from a load; needed only where the store bit is a decision."""
        if self.store[i] < 0 or not self.keep[i].size or i in self.pinned:
            return np.full(self.keep[i].size, -1, dtype=np.int64)
        groups = self.keep[i] - self.keep[i][0]
        spread: Ints = self.builder.new_columns(int(groups[-1]) + 1)[groups]
        return spread

    # Reading blocks over a range of stages

    def at_stages(self, block: Ints, start: int, low: int, high: int) -> Ints:
        """Columns of a block that starts at stage `start`, for stages low … high."""
        found: Ints = np.full(max(0, high - low + 1), -1, dtype=np.int64)
        a, b = max(low, start), min(high, start + block.size - 1)
        if a <= b:
            found[a - low : b - low + 1] = block[a - start : b - start + 1]
        return found

    def add_sources(self, rows: Ints, i: int, low: int, high: int, sign: float) -> None:
        """keep + out of tensor i, in stages low … high."""
        self.builder.add(
            rows, self.at_stages(self.keep[i], int(self.first[i]) + 1, low, high), sign
        )
        if self.first[i] >= 0:
            self.builder.add(rows, self.at_stages(self.out[i], int(self.first[i]), low, high), sign)

    def add_loads(
        self, rows: Ints, i: int, low: int, high: int, sign: float, upto: int | None = None
    ) -> None:
        for v in self.graph.readers[i]:
            if upto is None or v <= upto:
                self.builder.add(rows, self.at_stages(self.load[i, v], v, low, high), sign)

    def add_drops(
        self, rows: Ints, i: int, low: int, high: int, sign: float, before: int | None = None
    ) -> None:
        for v in self.graph.readers[i]:
            if before is None or v < before:
                self.builder.add(rows, self.at_stages(self.drop[i, v], v, low, high), sign)
