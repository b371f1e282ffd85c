"""HiGHS: small programs are solved here, large ones in helper processes that can be ended.

Nothing can break off a linear program, and inside of an integer program HiGHS solves linear ones
for seconds before it asks whether to stop. So whoever must be able to leave at any moment has large
programs solved by somebody who can be killed (docs/decisions/017).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from poet.planner.backends import Answer, Limits, LinearSession
from poet.planner.backends.helper import Helper, Helpers
from poet.planner.backends.highs_here import (
    Program,
    Session,
    program_of,
    solve_integer,
    solve_linear,
)

if TYPE_CHECKING:
    from poet.planner.model.matrix import Floats, Milp

SMALL = 15_000
"""Coefficients of a program that is solved here. With 11,133 or 19,713 of them HiGHS asked every
0.05 s whether to stop, with 21,899 once for 1.05 s not (docs/decisions/017)."""


class Highs:
    def __init__(self) -> None:
        self.helpers = Helpers()

    def session(self, milp: "Milp", limits: Limits) -> LinearSession:
        program = program_of(milp)
        helper, _ = self._asked("session", program, limits)
        return Session(program, limits) if helper is None else _SessionBeside(helper, limits)

    def solve_linear(self, milp: "Milp", limits: Limits) -> Answer:
        return self._solved("linear", solve_linear, program_of(milp), limits)

    def solve_integer(self, milp: "Milp", limits: Limits) -> Answer:
        return self._solved("integer", solve_integer, program_of(milp), limits)

    def close(self) -> None:
        self.helpers.close()

    def _solved(
        self,
        what: str,
        solve_here: Callable[[Program, Limits], Answer],
        program: Program,
        limits: Limits,
    ) -> Answer:
        helper, answer = self._asked(what, program, limits)
        if helper is None:
            return solve_here(program, limits)
        self.helpers.give_back(helper)
        return answer

    def _asked(self, what: str, program: Program, limits: Limits) -> tuple[Helper | None, Answer]:
        """A helper and its answer; none where the program is small, or where none can be had."""
        helper = None if program.values.size <= SMALL else self.helpers.take()
        if helper is None:
            return None, Answer(status="failed")
        answer = helper.ask(what, limits, vars(program))
        if answer.status == "failed" and not helper.has_answered:
            self.helpers.can_start = False
            return None, answer
        return helper, answer


class _SessionBeside:
    """A session in a helper of its own, which keeps the basis."""

    def __init__(self, helper: Helper, limits: Limits) -> None:
        self.helper, self.limits = helper, limits

    def solve(self, low: "Floats", high: "Floats", seconds: float) -> Answer:
        limits = replace(self.limits, seconds=seconds)
        return self.helper.ask("again", limits, {"low": low, "high": high})
