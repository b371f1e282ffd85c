"""Between staged schedules and points of the model: `decode` a solution, `encode` a start.

Only runs and loads are read from a solution; all else follows from them (see staged.py), so that a
solution with lazy drops or a needless keep becomes the best schedule with the same runs and loads.
"""

from dataclasses import dataclass

import numpy as np

from poet.planner.model.build import Model
from poet.planner.model.columns import Blocks
from poet.planner.model.matrix import Floats, Ints
from poet.planner.model.staged import Staged, unroll
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget, Compute, PageIn


def decode(model: Model, values: Floats) -> Staged:
    b = model.blocks
    runs: list[list[Compute]] = [[] for _ in range(b.count)]
    loads: list[set[int]] = [set() for _ in range(b.count)]
    for v, variants in enumerate(b.variants):
        for variant in variants:
            for offset in _chosen(variant.columns, values):
                runs[v + offset].append(Compute(v, variant.name))
    for (i, v), columns in b.load.items():
        for offset in _chosen(columns, values):
            loads[v + offset].add(i)
    last = {i for i, column in enumerate(b.end_load) if column >= 0 and values[column] > 0.5}
    return Staged(
        runs=tuple(tuple(sorted(stage, key=lambda step: step.op)) for stage in runs),
        loads=tuple(map(frozenset, loads)),
        end_loads=frozenset(last),
        written=frozenset(i for i, c in enumerate(b.store) if c >= 0 and values[c] > 0.5),
    )


def _chosen(columns: Ints, values: Floats) -> list[int]:
    there = np.flatnonzero(columns >= 0)
    return [int(k) for k in there[values[columns[there]] > 0.5]]


def encode(model: Model, graph: Graph, costs: Costs, budget: Budget, staged: Staged) -> Floats:
    """The point of a staged schedule, RAM levels left at 0. Its runs must all be in the model."""
    b = model.blocks
    values = np.zeros(model.milp.cost.size)
    unrolled = unroll(graph, costs, budget, staged)
    since = {i: (-1, False) for i, place in budget.start.items() if place != "store"}
    for i in unrolled.freed_at_start:
        del since[i]
    for i in unrolled.stored:
        values[b.store[i]] = 1.0
    events = list(zip(unrolled.events, unrolled.freed_after, strict=True))
    for at, ((t, step), dead) in enumerate(events):
        if isinstance(step, PageIn):
            i = step.tensor
            since[i] = (t, True)
            if t == b.count:
                values[b.end_load[i]] = 1.0
                continue
            reader = next(s.op for (_, s), _ in events[at:] if isinstance(s, Compute))
            values[b.load[i, reader][t - reader]] = 1.0
            continue
        v = step.op
        for variant in b.variants[v]:
            if variant.name == step.variant:
                values[variant.columns[t - v]] = 1.0
        streamed = {stream.tensor for stream in costs.ops[v][step.variant].writes}
        for i in graph.ops[v].outputs:
            if i not in streamed and i not in since:
                since[i] = (t, False)
                if v == t or i not in dead:
                    values[b.out[i][t - v]] = 1.0
        for i in dead:
            if i in graph.ops[v].inputs and v < t:
                values[b.drop[i, v][t - v]] = 1.0
        for i in (*dead, *graph.ops[v].consumed):
            if i in since:
                _leave(b, values, i, since.pop(i), t)
    for i, born in since.items():
        _leave(b, values, i, born, b.count)
    return values


def _leave(b: Blocks, values: Floats, i: int, born: tuple[int, bool], last: int) -> None:
    """Tensor i was in RAM from stage `born` until it left in stage `last`."""
    stage, from_store = born
    held = b.at_stages(b.keep[i], int(b.first[i]) + 1, stage + 1, last)
    values[held[held >= 0]] = 1.0
    if from_store:
        held = b.at_stages(b.loaded[i], int(b.first[i]) + 1, stage + 1, last)
        values[held[held >= 0]] = 1.0


@dataclass(frozen=True)
class ColumnSpans:
    """For each column the stages it spans and its tensor; -1 for RAM levels and the like."""

    first_stage: Ints
    last_stage: Ints
    tensor: Ints


def column_spans(model: Model) -> ColumnSpans:
    b, count = model.blocks, model.milp.cost.size
    first, last, tensor = (np.full(count, -1, dtype=np.int64) for _ in range(3))

    def note(columns: Ints, start: int, i: int) -> None:
        there = np.flatnonzero(columns >= 0)
        ids = columns[there]
        stages = there + start
        # A column shared by several stages is written several times; the last write stands.
        order = np.argsort(-stages, kind="stable")
        first[ids[order]] = stages[order]
        last[ids[order[::-1]]] = stages[order[::-1]]
        tensor[ids] = i

    for v, variants in enumerate(b.variants):
        for variant in variants:
            note(variant.columns, v, b.graph.ops[v].outputs[0])
    for i in range(len(b.graph.tensors)):
        if b.first[i] >= 0:
            note(b.out[i], int(b.first[i]), i)
        note(b.keep[i], int(b.first[i]) + 1, i)
        note(b.loaded[i], int(b.first[i]) + 1, i)
    for (i, v), columns in (*b.load.items(), *b.drop.items()):
        note(columns, v, i)
    for i, column in enumerate(b.store):
        if column >= 0:
            first[column], last[column], tensor[column] = 0, b.count, i
    for i, column in enumerate(b.end_load):
        if column >= 0:
            first[column] = last[column] = b.count
            tensor[column] = i
    return ColumnSpans(first_stage=first, last_stage=last, tensor=tensor)
