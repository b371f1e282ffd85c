"""Solvers behind one narrow protocol: a program and limits in, status, values, duals and bound out.

HiGHS is the default and the only one required. Solver libraries are imported here and nowhere else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from poet.errors import PoetError

if TYPE_CHECKING:  # helper processes do without scipy
    from poet.planner.model.matrix import Floats, Milp

SolveStatus = Literal["optimal", "stopped", "infeasible", "failed"]


@dataclass(frozen=True)
class Answer:
    """What a solver says. `optimal` is its word; `stopped` means a limit came first.

    `values` is the best point found, `duals` the rows' dual values (of a linear program only),
    `bound` what the solver believes no solution undercuts.
    """

    status: SolveStatus
    values: "Floats | None" = None
    duals: "Floats | None" = None
    objective: float | None = None
    bound: float | None = None
    ray: "Floats | None" = None
    """Along it the duals of an infeasible program grow without end."""


@dataclass(frozen=True)
class Limits:
    """What a solver may spend. `cutoff`: only better solutions are of interest. `stop` is asked
    again and again: once it says yes, the answer is `stopped`, soon."""

    seconds: float
    nodes: int | None = None
    seed: int = 0
    cutoff: float | None = None
    relative_gap: float = 0.0
    log_file: str | None = None
    stop: Callable[[], bool] = lambda: False


class LinearSession(Protocol):
    """A linear program that is solved again and again with other bounds on its columns."""

    def solve(self, low: "Floats", high: "Floats", seconds: float) -> Answer:
        """`ray` of the answer is set where the program is infeasible."""
        ...


class Backend(Protocol):
    def session(self, milp: "Milp", limits: Limits) -> LinearSession: ...

    def solve_linear(self, milp: "Milp", limits: Limits) -> Answer: ...

    def solve_integer(self, milp: "Milp", limits: Limits) -> Answer: ...

    def close(self) -> None:
        """End all that it started. Nobody is solving by now."""
        ...


def find_backend(name: str) -> Backend:
    """The solver of that name."""
    if name == "highs":
        from poet.planner.backends.highs import Highs

        return Highs()
    if name == "gurobi":
        from poet.planner.backends.gurobi import Gurobi

        return Gurobi()
    raise PoetError(f"there is no solver {name!r}. There are highs and gurobi.")
