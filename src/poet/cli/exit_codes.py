"""Exit codes, all of them."""

from poet.errors import Infeasible, PoetError
from poet.values.schedule import Status

DONE = 0
"""Also after Ctrl-C with a schedule in hand."""
WRONG_USAGE = 2
"""Wrong usage, or bad input."""
INFEASIBLE = 3
"""Proven: there is no schedule."""
NOTHING_FOUND = 4
"""In the time given."""
CHECK_FAILED = 5
INTERRUPTED = 130
"""With nothing in hand."""

OF_STATUS: dict[Status, int] = {
    "optimal": DONE,
    "feasible": DONE,
    "infeasible": INFEASIBLE,
    "unknown": NOTHING_FOUND,
}


def of_error(error: PoetError) -> int:
    """The code that an error leaves with."""
    if isinstance(error, Infeasible):
        return INFEASIBLE if error.proven else NOTHING_FOUND
    return WRONG_USAGE
