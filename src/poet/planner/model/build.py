"""The planner's model: docs/formulation.md as a sparse mixed-integer program.

Each numbered group there is one function. `columns.py` makes the variables, `correctness.py`,
`limits.py` and `cuts.py` the rows; this module puts them together. A bound on this program holds
for every stage-structured schedule of the graph's op order.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from poet.planner.model import correctness, cuts, limits
from poet.planner.model.columns import Blocks
from poet.planner.model.matrix import Milp
from poet.values.device import Costs
from poet.values.graph import Graph
from poet.values.schedule import Budget

ROWS = (
    correctness.rows_2_out,
    correctness.rows_3_1_present,
    correctness.rows_3_2_one_source,
    correctness.rows_3_3_from_somewhere,
    correctness.rows_3_4_origin,
    correctness.rows_3_5_ends,
    limits.rows_3_6_slots,
    limits.rows_3_7_store_size,
    limits.rows_4_memory,
    limits.rows_6_deadline,
    limits.rows_7_streams,
    cuts.rows_3_9_cuts,
)

_TURN = threading.Lock()
"""One model at a time: building holds Python's lock, so that side by side sixteen take as long, and
all of them would be half done when the search ends."""
_TURN_SECONDS = 0.02


@dataclass(frozen=True)
class Model:
    """The program, and where each decision stands in it."""

    milp: Milp
    blocks: Blocks


def build_model(
    graph: Graph,
    costs: Costs,
    budget: Budget,
    *,
    unit_bytes: float = 1.0,
    whole_units: bool = False,
    window: int | None = None,
    relax: bool = True,
    also: Iterable[tuple[int, int]] = (),
    cut_stages: Iterable[int] = (),
    check: Callable[[], object] = lambda: None,
) -> Model:
    """The whole model.

    `whole_units` rounds sizes and budget down to units, which keeps every bound valid and makes the
    memory rows tighter; without it bytes are exact. With a `window` the program is a smaller
    relaxation (see `recomputations`): its bound holds for the whole model, its solutions need not;
    or, with `relax` false, a restriction: its solutions are schedules, its bound means nothing.
    `cut_stages` are those at which rows 3.9 are added. A model of several hundred ops may take
    seconds: `check` is called all along, and raises where nobody wants the model any more.
    """
    while not _TURN.acquire(timeout=_TURN_SECONDS):
        check()
    try:
        blocks = Blocks(
            graph, costs, budget, unit_bytes, whole_units, window, relax, also, cut_stages, check
        )
        for rows in ROWS:
            rows(blocks)
        check()
        return Model(milp=blocks.builder.finish(), blocks=blocks)
    finally:
        _TURN.release()
