"""Choices: a schedule as the annealer sees it (csrc/anneal.c says what its choices are)."""

from collections.abc import Iterable

from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Compute, Free, PageIn, Schedule


class Choices:
    """The search's choices that come nearest to a schedule: exact if it has stages."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget, schedule: Schedule) -> None:
        stages = len(graph.ops) + 1
        self.keep = [0] * (stages + 1)  # rows of bits: what is in RAM when the stage begins
        self.first: dict[int, str] = {}
        self.again: dict[int, str] = {}
        loaded: set[tuple[int, int]] = set()
        made: set[tuple[int, int]] = set()
        ram = _bits(i for i, place in budget.start.items() if place != "store")
        stage, begun = 0, False
        for step in schedule:
            if not begun and isinstance(step, Compute | PageIn):  # frees end the stage before
                self.keep[stage], begun = ram, True
            if isinstance(step, PageIn):
                ram |= 1 << step.tensor
                loaded.add((min(stage, stages - 1), step.tensor))
            elif isinstance(step, Free):
                ram &= ~(1 << step.tensor)
            elif isinstance(step, Compute):
                op, run = graph.ops[step.op], costs.ops[step.op][step.variant]
                ram &= ~_bits(op.consumed)
                ram |= _bits(op.outputs) & ~_bits(stream.tensor for stream in run.writes)
                if step.op in self.first:
                    self.again[step.op] = step.variant
                    made.update((min(stage, stages - 1), i) for i in op.outputs)
                else:
                    self.first[step.op] = step.variant
                    stage, begun = stage + 1, False
        if not begun:
            self.keep[min(stage, stages)] = ram
        self.early = [0] * stages  # made for later, or perhaps for later too
        for s, i in made:
            self.early[s] |= 1 << i
        # Where a tensor is never missing the bit decides nothing now: as it is elsewhere, or load.
        never_loaded = {i for _, i in made} - {i for _, i in loaded}
        usual = _bits(i for i in range(len(graph.tensors)) if i not in never_loaded)
        self.page = [usual] * stages
        for s, i in loaded:
            self.page[s] |= 1 << i
        for s, i in made - loaded:
            self.page[s] &= ~(1 << i)
        self.page[-1] |= _bits(i for i, at in budget.end.items() if at == "either") & ~ram


def _bits(ids: Iterable[int]) -> int:
    row = 0
    for i in ids:
        row |= 1 << i
    return row
