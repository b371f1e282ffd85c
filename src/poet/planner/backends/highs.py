"""HiGHS: small programs are solved here, large ones in helper processes that can be ended.

Nothing can break off a linear program, and inside of an integer program HiGHS solves linear ones
for seconds before it asks whether to stop. So whoever must be able to leave at any moment has large
programs solved by somebody who can be killed (docs/decisions/017).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from poet.planner.backends import Answer, LinearSession, Limits
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
        helper = self._helper_for(program)
        if helper is None:
            return Session(program, limits)
        return _SessionBeside(helper, program, limits)

    def solve_linear(self, milp: "Milp", limits: Limits) -> Answer:
        program = program_of(milp)
        helper = self._helper_for(program)
        if helper is None:
            return solve_linear(program, limits)
        return self._asked(helper, "linear", program, limits)

    def solve_integer(self, milp: "Milp", limits: Limits) -> Answer:
        program = program_of(milp)
        helper = self._helper_for(program)
        if helper is None:
            return solve_integer(program, limits)
        return self._asked(helper, "integer", program, limits)

    def close(self) -> None:
        self.helpers.close()

    def _helper_for(self, program: Program) -> Helper | None:
        return None if program.values.size <= SMALL else self.helpers.take()

    def _asked(self, helper: Helper, what: str, program: Program, limits: Limits) -> Answer:
        answer = helper.ask(what, limits, vars(program))
        self.helpers.give_back(helper, answer)
        return answer


class _SessionBeside:
    """A session in a helper of its own, which keeps the basis."""

    def __init__(self, helper: Helper, program: Program, limits: Limits) -> None:
        self.helper, self.limits = helper, limits
        helper.ask("session", limits, vars(program))

    def solve(self, low: "Floats", high: "Floats", seconds: float) -> Answer:
        limits = replace(self.limits, seconds=seconds)
        return self.helper.ask("again", limits, {"low": low, "high": high})
