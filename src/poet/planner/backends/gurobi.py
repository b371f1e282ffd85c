"""Gurobi, an extra: used when gurobipy is installed and asked for."""

from dataclasses import replace
from typing import Any

import numpy as np

from poet.errors import MissingPackage
from poet.planner.backends import Answer, Limits, Outcome
from poet.planner.model.matrix import Floats, Program

_STATUS: dict[int, Outcome] = {
    2: "optimal",
    3: "infeasible",
    4: "infeasible",
    7: "stopped",
    8: "stopped",
    9: "stopped",
    10: "stopped",
    11: "stopped",
    13: "stopped",
    15: "stopped",
    16: "stopped",
}
"""Gurobi's status codes: OPTIMAL, INFEASIBLE, INF_OR_UNBD, and its various limits."""


class Gurobi:
    def __init__(self) -> None:
        try:
            import gurobipy
        except ImportError:
            raise MissingPackage("the solver gurobi", "gurobipy", 'use solver="highs"') from None
        self.library: Any = gurobipy

    def session(self, program: Program, limits: Limits) -> "GurobiSession":
        return GurobiSession(self, program, limits)

    def solve_linear(self, program: Program, limits: Limits) -> Answer:
        model, variables, rows = self._loaded(program, limits, integer=False)
        model.optimize()
        outcome = _STATUS.get(model.Status, "failed")
        if outcome != "optimal":
            return Answer(outcome=outcome)
        low, high = rows
        duals = np.zeros(program.row_low.size)
        for kept, constraints in (low, high):
            duals[kept] += constraints.Pi
        return Answer(
            outcome=outcome, values=variables.X, duals=duals, objective=float(model.ObjVal)
        )

    def solve_integer(
        self, program: Program, limits: Limits, start: Floats | None = None
    ) -> Answer:
        model, variables, _ = self._loaded(program, limits, integer=True)
        model.Params.MIPGap = limits.relative_gap
        if limits.nodes is not None:
            model.Params.NodeLimit = limits.nodes
        if limits.cutoff is not None:
            model.Params.Cutoff = limits.cutoff
        if start is not None:
            variables.Start = start
        stop = limits.stop
        if stop is None:
            model.optimize()
        else:
            model.optimize(lambda inner, _: inner.terminate() if stop() else None)
        found = model.SolCount > 0
        return Answer(
            outcome=_STATUS.get(model.Status, "failed"),
            values=variables.X if found else None,
            objective=float(model.ObjVal) if found else None,
            bound=float(model.ObjBound),
        )

    def _loaded(self, program: Program, limits: Limits, integer: bool) -> tuple[Any, Any, Any]:
        gurobi = self.library
        environment = gurobi.Env(empty=True)
        environment.setParam("OutputFlag", int(limits.log_file is not None))
        environment.setParam("LogToConsole", 0)
        environment.start()
        model = gurobi.Model(env=environment)
        if limits.log_file is not None:
            model.Params.LogFile = limits.log_file
        model.Params.Threads = 1
        model.Params.Seed = limits.seed
        model.Params.TimeLimit = max(0.0, limits.seconds)
        kinds = np.where(program.integer & integer, gurobi.GRB.INTEGER, gurobi.GRB.CONTINUOUS)
        variables = model.addMVar(
            program.cost.size, lb=program.low, ub=program.high, obj=program.cost, vtype=kinds
        )
        low = np.flatnonzero(np.isfinite(program.row_low))
        high = np.flatnonzero(np.isfinite(program.row_high))
        rows = (
            (low, model.addConstr(program.matrix[low] @ variables >= program.row_low[low])),
            (high, model.addConstr(program.matrix[high] @ variables <= program.row_high[high])),
        )
        return model, variables, rows


class GurobiSession:
    """Solves anew each time: simple, and enough for an extra."""

    def __init__(self, backend: Gurobi, program: Program, limits: Limits) -> None:
        self.backend, self.program, self.limits = backend, program, limits

    def solve(self, low: Floats, high: Floats, seconds: float) -> Answer:
        program = replace(self.program, low=low, high=high)
        return self.backend.solve_linear(program, replace(self.limits, seconds=seconds))
