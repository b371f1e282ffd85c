"""What a relaxation leans to: its choices, rounded, for annealing to start from."""

import numpy as np

from poet.planner.incumbent import Incumbent, Leaning
from poet.planner.model.matrix import Floats
from poet.planner.model.relaxed import Relaxation

HALF = 0.5
"""Of a relaxed choice, to be taken for made."""


def leaning(incumbent: Incumbent, model: Relaxation, values: Floats) -> Leaning:
    graph = incumbent.graph
    stages = len(graph.ops) + 1
    keep, load = [0] * (stages + 1), [0] * stages
    for i, maker in enumerate(graph.producer):
        first = 0 if maker is None else maker + 1
        kept = model.keep[i]
        for stage in (first + np.flatnonzero(values[kept] > HALF)).tolist() if kept.size else ():
            keep[stage] |= 1 << i
        loaded = model.load[i]
        there = loaded >= 0
        if there.any() and values[loaded[there]].sum() > HALF:
            for stage in range(first, stages):
                load[stage] |= 1 << i
        if incumbent.budget.end.get(i, "store") != "store":
            keep[stages] |= 1 << i
    return Leaning(keep, load)
