"""The planner's model: docs/formulation.md as a sparse mixed-integer program.

Each numbered group there is one function. `columns.py` makes the variables, `correctness.py` and
`limits.py` the rows; this module puts them together. Its solutions are schedules; bounds come from
another program, which holds for more of them (`relax.py`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from poet.planner.model import correctness, limits
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
    window: int | None = None,
    also: Iterable[tuple[int, int]] = (),
    check: Callable[[], object] = lambda: None,
) -> Model:
    """The whole model, whose points are the stage-structured schedules.

    With a `window` ops run again only near those who read their outputs, and where `also` says: a
    restriction, whose solutions are schedules. A model of several hundred ops may take seconds:
    `check` is called all along, and raises where nobody wants the model any more.
    """
    with taking_turns(check):
        blocks = Blocks(graph, costs, budget, unit_bytes, window, also, check)
        for rows in ROWS:
            rows(blocks)
        check()
        return Model(milp=blocks.builder.finish(), blocks=blocks)


@contextmanager
def taking_turns(check: Callable[[], object]) -> Iterator[None]:
    """One model at a time."""
    while not _TURN.acquire(timeout=_TURN_SECONDS):
        check()
    try:
        yield
    finally:
        _TURN.release()
