"""Greedy paging: store what does not fit, page it in before use. Nothing is recomputed.

Ops run in the graph's order. When one needs room, the resident tensor whose next use is farthest
away leaves (Belady's rule), written to the store first if it is needed again and not there yet;
what nobody needs again is freed at once.

Not optimal, and not meant to be: a start and a yardstick.
"""

import heapq
import time
from math import inf

from poet.planner.proof.floor import memory_floor, pinned_beside, working_set_bytes
from poet.values.device import PLAIN, Costs, Run
from poet.values.graph import Graph
from poet.values.schedule import (
    Budget,
    Compute,
    Effort,
    Free,
    Instruction,
    PageIn,
    PageOut,
    Solution,
)

NEVER = 1 << 60


def paging_greedy(graph: Graph, costs: Costs, budget: Budget, effort: Effort) -> Solution:
    if not budget.paging:
        return Solution(status="unknown", reason="the budget forbids paging")
    least = memory_floor(graph, costs, budget)
    if budget.ram_bytes is not None and least.nbytes > budget.ram_bytes:
        reason = f"{least.cause} needs {least.nbytes:,} bytes; the budget is {budget.ram_bytes:,}"
        return Solution(status="unknown", reason=reason)
    deadline = time.monotonic() + effort.time_limit_seconds
    return page_through(graph, costs, budget, deadline)


def page_through(graph: Graph, costs: Costs, budget: Budget, deadline: float = inf) -> Solution:
    """One walk through the graph under `budget.ram_bytes`.

    Gives up when the monotonic clock passes `deadline`.
    """
    try:
        pager = _Pager(graph, costs, budget)
        for k in range(len(graph.ops)):
            if time.monotonic() > deadline:
                raise _NoRoom(f"no time left after {k} of {len(graph.ops)} ops")
            pager.run(k)
        pager.settle()
    except _NoRoom as stuck:
        return Solution(status="unknown", reason=str(stuck))
    return Solution(status="feasible", schedule=tuple(pager.schedule))


class _NoRoom(Exception):
    """This way of making a schedule finds no room; says where."""


class _Pager:
    """RAM and store while the step runs, and the instructions so far."""

    def __init__(self, graph: Graph, costs: Costs, budget: Budget) -> None:
        self.graph, self.costs, self.budget = graph, costs, budget
        self.nbytes = [tensor.nbytes for tensor in graph.tensors]
        self.schedule: list[Instruction] = []
        self.in_ram = {i for i, place in budget.start.items() if place != "store"}
        self.stored = {i for i, place in budget.start.items() if place != "ram"}
        self.resident = sum(self.nbytes[i] for i in self.in_ram)
        self.store_used = sum(self.nbytes[i] for i in self.stored)
        self.slots = set(self.stored)
        self.uses = [list(reversed(readers)) for readers in graph.readers]  # next use last
        self.pinned = frozenset(budget.pinned)
        self.pinned_beside = pinned_beside(graph, budget)
        # The farthest next use on top; an entry is stale when the tensor has left or was used.
        self.farthest: list[tuple[int, int, int]] = []
        for i in self.in_ram:
            self.rank(i)
        self.check_store("the state at the start")

    def next_use(self, i: int) -> int:
        """The op that reads `i` next; after the last op if it is wanted at the end; or never."""
        if self.uses[i]:
            return self.uses[i][-1]
        if i in self.budget.end and self.graph.consumer[i] is None:
            return len(self.graph.ops)
        return NEVER

    def rank(self, i: int) -> None:
        if i not in self.pinned:
            heapq.heappush(self.farthest, (-self.next_use(i), -self.nbytes[i], -i))

    def run(self, k: int) -> None:
        op, (variant, run) = self.graph.ops[k], self.choose(k)
        streamed_in = {stream.tensor for stream in run.reads}
        streamed_out = {stream.tensor for stream in run.writes}
        inputs = [i for i in op.inputs if i not in streamed_in]
        for i in streamed_in - self.stored:
            self.page_out(i)
        seated = {pair.output for pair in op.in_place if pair.input not in streamed_in}
        arriving = [i for i in op.outputs if i not in streamed_out]
        brings = sum(self.nbytes[i] for i in arriving if i not in seated)
        absent = [i for i in inputs if i not in self.in_ram]
        more = sum(self.nbytes[i] for i in absent) + brings + run.workspace_bytes
        self.make_room(more, set(inputs), self.graph.op_text(k))
        for i in absent:
            self.page_in(i)
        self.schedule.append(Compute(k, variant))
        for i in op.inputs:
            self.uses[i].pop()
        for i in op.consumed:
            self.stored.discard(i)
            if i in self.in_ram:
                self.in_ram.remove(i)
                self.resident -= self.nbytes[i]
        self.in_ram.update(arriving)
        self.resident += sum(self.nbytes[i] for i in arriving)
        for i in streamed_out:
            self.put_in_store(i)
        for i in (*op.inputs, *op.outputs):
            if i in self.in_ram and i not in self.pinned:
                if self.next_use(i) == NEVER:
                    self.free(i)
                else:
                    self.rank(i)

    def choose(self, k: int) -> tuple[str, Run]:
        """The cheapest variant that fits by itself; the plain one where none does."""
        limit, op = self.budget.ram_bytes, self.graph.ops[k]
        fitting = [
            (run.joules + run.stream_joules, name != PLAIN, name)
            for name, run in self.costs.ops[k].items()
            if limit is None
            or working_set_bytes(self.graph, op, run, self.pinned_beside[k]) <= limit
            if self.budget.paging or not (run.reads or run.writes)
        ]
        name = min(fitting)[2] if fitting else PLAIN
        return name, self.costs.ops[k][name]

    def settle(self) -> None:
        """Bring every tensor to where it must be when the step ends."""
        wanted_in_ram = {i for i, place in self.budget.end.items() if place in ("ram", "both")}
        for i, place in sorted(self.budget.end.items()):
            if i not in self.in_ram and i not in self.stored:
                raise _NoRoom(f"{self.graph.tensor_text(i)} is consumed, but wanted at the end")
            if place in ("store", "both") and i not in self.stored:
                self.page_out(i)
        for i in sorted(wanted_in_ram - self.in_ram):
            self.make_room(self.nbytes[i], wanted_in_ram, "the step's end")
            self.page_in(i)

    def make_room(self, more: int, protected: set[int], for_whom: str) -> None:
        limit = self.budget.ram_bytes
        spared = []
        while limit is not None and self.resident + more > limit:
            if not self.farthest:
                raise _NoRoom(
                    f"{for_whom} needs {self.resident + more:,} bytes; the budget is {limit:,}"
                )
            entry = heapq.heappop(self.farthest)
            victim = -entry[2]
            if victim not in self.in_ram or -entry[0] != self.next_use(victim):
                continue
            if victim in protected or not self.nbytes[victim]:
                spared.append(entry)
                continue
            if self.next_use(victim) != NEVER and victim not in self.stored:
                self.page_out(victim)
            self.free(victim)
        for entry in spared:
            heapq.heappush(self.farthest, entry)

    def page_out(self, i: int) -> None:
        self.schedule.append(PageOut(i))
        self.put_in_store(i)

    def put_in_store(self, i: int) -> None:
        slot = self.graph.slot[i]
        self.stored.add(i)
        if slot != i:
            self.stored.discard(slot)
        if slot in self.slots:
            return
        self.slots.add(slot)
        self.store_used += self.nbytes[i]
        self.check_store(f"page-out of {self.graph.tensor_text(i)}")

    def check_store(self, who: str) -> None:
        limit = self.budget.store_bytes
        if limit is not None and self.store_used > limit:
            raise _NoRoom(f"{who} brings the store to {self.store_used:,} bytes; it has {limit:,}")

    def page_in(self, i: int) -> None:
        self.schedule.append(PageIn(i))
        self.in_ram.add(i)
        self.resident += self.nbytes[i]
        self.rank(i)

    def free(self, i: int) -> None:
        self.schedule.append(Free(i))
        self.in_ram.remove(i)
        self.resident -= self.nbytes[i]
