"""A bound over every order of the ops: what no schedule that the referee accepts undercuts.

While an op runs for the first time, some tensors have been made already and will be read by ops
that come later, whatever the order: their makers must precede it, and some reader must follow it.
Each of them is in RAM beside the op, or it is not, and then it has to be regained afterwards: paged
in, for which it has to be written once, or made again. So with r_i, whether tensor i is regained at
all, for each op v

    Σ over what waits while v runs of m_i (1 - r_i)  ≤  RAM - what v takes,

and no schedule takes less than every op once, in its cheapest variant, and the least Σ g_i r_i,
where g_i is the cheapest way to regain i; of a run that makes several outputs each is charged its
share. This is a linear program in the r_i, and its dual values certify its bound. It is weaker than
the bound in the given order (bounds.py): nothing is regained twice.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet.planner.backends import Backend, Limits
from poet.planner.model.least import LeastPrices
from poet.planner.model.matrix import Builder, Milp
from poet.planner.proof.certificate import safe_bound
from poet.planner.proof.floor import working_set_bytes
from poet.values.device import Costs, Run
from poet.values.graph import Graph
from poet.values.schedule import Budget

SECONDS = 5.0


class AnyOrder(NamedTuple):
    """Joules that no schedule undercuts, in whatever order, and what a byte more would save."""

    joules: float
    joules_per_byte: float


def any_order_bound(graph: Graph, costs: Costs, budget: Budget, backend: Backend) -> AnyOrder:
    """The bound, and the duals' word on RAM."""
    prices = LeastPrices(costs, budget)
    least = prices.every_op_once()
    if budget.ram_bytes is None:
        return AnyOrder(least, 0.0)
    milp, scale, unit = _program(graph, costs, budget, prices)
    answer = backend.solve_linear(milp, Limits(seconds=SECONDS))
    if answer.duals is None:
        return AnyOrder(least, 0.0)
    more = safe_bound(milp, answer.duals) / scale
    return AnyOrder(least + max(0.0, more), max(0.0, float(answer.duals.sum())) / scale / unit)


def _program(
    graph: Graph, costs: Costs, budget: Budget, prices: LeastPrices
) -> tuple[Milp, float, float]:
    """Rows of `bytes regained ≥ bytes too many`, one an op; its scale, and its unit of bytes."""
    usable = prices.usable
    price = [_regained(graph, costs, budget, prices, usable, i) for i in range(len(graph.tensors))]
    finite = [each for each in price if np.isfinite(each)]
    scale = 100.0 / max(finite, default=1.0) if max(finite, default=0.0) else 1.0
    builder = Builder()
    columns = builder.new_columns(
        len(price),
        cost=np.array([scale * each if np.isfinite(each) else 0.0 for each in price]),
        high=np.array([float(np.isfinite(each)) for each in price]),
    )
    size = np.array([tensor.nbytes for tensor in graph.tensors], dtype=np.float64)
    unit = max(1.0, float(size.max(initial=1.0)))
    assert budget.ram_bytes is not None
    unsure = {i for op in graph.ops for i in op.consumed if i in budget.pinned}
    for v, (op, waiting) in enumerate(zip(graph.ops, _waiting(graph, usable).T, strict=True)):
        there = np.flatnonzero(waiting)
        there = there[~np.isin(there, [*unsure.union(op.inputs, op.outputs)])]
        takes = min(working_set_bytes(graph, op, run) for run in usable[v])
        excess = float(size[there].sum()) - (budget.ram_bytes - takes)
        if excess > 0:
            row = builder.new_rows(1, low=excess / unit)
            builder.add(np.full(there.size, row[0]), columns[there], size[there] / unit)
    return builder.finish(), scale, unit


def _regained(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    prices: LeastPrices,
    usable: list[list[Run]],
    i: int,
) -> float:
    """The least that it takes to have tensor i in RAM again; infinite where nothing can."""
    ways, maker, price = [np.inf], graph.producer[i], costs.tensors[i]
    if i in budget.pinned:
        return np.inf  # it never leaves
    if budget.paging:
        cost = prices.page(price.in_joules, price.in_seconds)
        starts_stored = budget.start.get(i, "ram") != "ram"
        streamed = maker is not None and any(
            stream.tensor == i for run in usable[maker] for stream in run.writes
        )
        if not (starts_stored or streamed):
            cost += prices.page(price.out_joules, price.out_seconds)
        ways.append(cost)
    if maker is not None and graph.ops[maker].recomputable and budget.recompute:
        share = min(map(prices.run, usable[maker])) / len(graph.ops[maker].outputs)
        ways.append(share)
    return min(ways)


def _waiting(graph: Graph, usable: list[list[Run]]) -> npt.NDArray[np.uint8]:
    """For each tensor and op: it is made before it and read from RAM after it in every order."""
    count = len(graph.ops)
    before = [0] * count  # the ops that precede each, as bits
    for v in range(count):
        for u in _precedes(graph, v):
            before[v] |= before[u] | 1 << u
    after = [0] * count
    for u in reversed(range(count)):
        for i in graph.ops[u].outputs:
            for v in graph.readers[i]:
                after[u] |= after[v] | 1 << v
    every = (1 << count) - 1
    rows = []
    for i, maker in enumerate(graph.producer):
        until = 0
        for v in graph.readers[i]:
            if all(stream.tensor != i for run in usable[v] for stream in run.reads):
                until |= before[v]
        rows.append(
            (until & (every if maker is None else after[maker])).to_bytes(count // 8 + 1, "little")
        )
    found = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1)
    return np.unpackbits(found, axis=1, count=count, bitorder="little")


def _precedes(graph: Graph, v: int) -> set[int]:
    """Ops that must have run before op v does: who makes what it reads."""
    return {maker for i in graph.ops[v].inputs if (maker := graph.producer[i]) is not None}
