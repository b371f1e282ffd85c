"""Relaxations, put together: columns and rows (`relaxed`), memory (`relaxed_memory`), cuts."""

from collections.abc import Callable, Iterable

import numpy as np

from poet.planner.model.build import taking_turns
from poet.planner.model.cuts import rows_3_9_cuts
from poet.planner.model.relaxed import NOTHING, Relaxation, Relaxed
from poet.planner.model.relaxed_memory import Memory
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget


def relaxation(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    *,
    unit_bytes: float = 1.0,
    window: int | None = None,
    cut_stages: Iterable[int] = (),
    check: Callable[[], object] = lambda: None,
) -> Relaxation:
    """A program whose optimum no schedule in the given order of first runs undercuts.

    Sizes and budget are rounded down to units, which keeps every bound valid and makes the memory
    rows tighter. A smaller `window` makes it smaller and weaker; `cut_stages` are those at which
    rows 3.9 are added. `check` is called all along, and raises where nobody wants it any more.
    """
    with taking_turns(check):
        relaxed = Relaxed(graph, costs, budget, unit_bytes, window, tuple(cut_stages), check)
        memory = Memory(relaxed)
        rows_3_9_cuts(relaxed)
        check()
        choices = [*relaxed.keep, relaxed.store]
        columns = np.unique(np.concatenate([NOTHING, *choices]))
        return Relaxation(
            milp=relaxed.builder.finish(),
            scale=relaxed.scale,
            unit_bytes=unit_bytes,
            deadline_seconds=budget.deadline_seconds,
            memory_rows=np.concatenate([NOTHING, *memory.rows]),
            memory_columns=memory.columns,
            time=relaxed.time,
            first_choices=columns[columns >= 0],
            keep=tuple(relaxed.keep),
            load=tuple(relaxed.load),
        )
