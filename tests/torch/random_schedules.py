"""Random schedules that recompute and page: valid, wasteful, and each different.

Ops run in order. Between them tensors are thrown out of RAM at random, some after a page-out, and
what an op misses is paged in or recomputed first, with all that this needs. A tensor is thrown out
without a copy only where it can be had again: nothing it is made from is consumed before its last
use.
"""

import random

from poet.values.graph import Graph
from poet.values.schedule import Compute, Free, Instruction, PageIn, PageOut, Schedule


def random_schedule(graph: Graph, seed: int, evict: float = 0.3) -> Schedule:
    return _Maker(graph, seed, evict).run()


class _Maker:
    def __init__(self, graph: Graph, seed: int, evict: float) -> None:
        self.graph = graph
        self.random = random.Random(seed)
        self.evict = evict
        self.made: list[Instruction] = []
        self.ram = set(graph.given)
        self.store: set[int] = set()
        self.roots = _roots(graph)
        self.consumed_at = {i: k for k, op in enumerate(graph.ops) for i in op.consumed}
        heirs = {t.becomes for t in graph.tensors if t.becomes is not None}
        self.wanted = {
            i
            for i, tensor in enumerate(graph.tensors)
            if tensor.role == "output" or tensor.becomes is not None
        } | {i for i in graph.given if i not in heirs}
        for op in graph.ops:  # a gradient that the caller hands in comes once
            if not op.recomputable and not op.in_place:
                self.wanted.update(op.outputs)

    def run(self) -> Schedule:
        for k in range(len(self.graph.ops)):
            self._compute(k, k)
            self._throw_out(k)
        return tuple(self.made)

    def _compute(self, k: int, now: int) -> None:
        op = self.graph.ops[k]
        for i in op.inputs:
            self._fetch(i, now)
        for i in op.inputs:  # what fetching one threw out of reach of another cannot happen: no
            assert i in self.ram  # tensor leaves RAM while an op is being prepared
        self.made.append(Compute(op=k))
        self.ram -= set(op.consumed)
        self.store -= set(op.consumed)
        self.ram |= set(op.outputs)

    def _fetch(self, i: int, now: int) -> None:
        if i in self.ram:
            return
        if i in self.store:
            self.made.append(PageIn(tensor=i))
            self.ram.add(i)
            return
        maker = self.graph.producer[i]
        assert maker is not None
        self._compute(maker, now)

    def _throw_out(self, now: int) -> None:
        for i in sorted(self.ram):
            maker = self.graph.producer[i]
            later = [k for k in self.graph.readers[i] if k > now]
            if maker is None or i in self.wanted:
                continue
            if not later:
                self._free(i)
            elif self.random.random() < self.evict:
                again = self.graph.ops[maker].recomputable and all(
                    self.consumed_at.get(root, later[-1]) >= later[-1] for root in self.roots[i]
                )
                if i not in self.store and (not again or self.random.random() < 0.3):
                    self.made.append(PageOut(tensor=i))
                    self.store.add(i)
                self._free(i)

    def _free(self, i: int) -> None:
        self.made.append(Free(tensor=i))
        self.ram.discard(i)


def _roots(graph: Graph) -> list[set[int]]:
    """For each tensor the given ones that it is made from, however far back."""
    found: list[set[int]] = [{i} for i in range(len(graph.tensors))]
    for op in graph.ops:
        behind = set().union(*(found[i] for i in op.inputs))
        for i in op.outputs:
            found[i] = behind
    return found
