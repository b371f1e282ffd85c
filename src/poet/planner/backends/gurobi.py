"""Gurobi, an extra: used when gurobipy is installed and asked for."""

from dataclasses import replace
from typing import Any

import numpy as np

from poet.errors import MissingPackage
from poet.planner.backends import Answer, Limits, SolveStatus
from poet.planner.model.matrix import Floats, Milp

_STATUS: dict[int, SolveStatus] = {
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

    def session(self, milp: Milp, limits: Limits) -> "GurobiSession":
        return GurobiSession(self, milp, limits)

    def solve_linear(self, milp: Milp, limits: Limits) -> Answer:
        model, variables, rows = self._loaded(milp, limits, integer=False)
        _optimize(model, limits)
        status = _STATUS.get(model.Status, "failed")
        if status != "optimal":
            return Answer(status=status)
        low, high = rows
        duals = np.zeros(milp.row_low.size)
        for kept, constraints in (low, high):
            duals[kept] += constraints.Pi
        return Answer(status=status, values=variables.X, duals=duals, objective=float(model.ObjVal))

    def solve_integer(self, milp: Milp, limits: Limits) -> Answer:
        model, variables, _ = self._loaded(milp, limits, integer=True)
        model.Params.MIPGap = limits.relative_gap
        if limits.nodes is not None:
            model.Params.NodeLimit = limits.nodes
        if limits.cutoff is not None:
            model.Params.Cutoff = limits.cutoff
        _optimize(model, limits)
        found = model.SolCount > 0
        return Answer(
            status=_STATUS.get(model.Status, "failed"),
            values=variables.X if found else None,
            objective=float(model.ObjVal) if found else None,
            bound=float(model.ObjBound),
        )

    def close(self) -> None:
        """Nothing was started beside."""

    def _loaded(self, milp: Milp, limits: Limits, integer: bool) -> tuple[Any, Any, Any]:
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
        kinds = np.where(milp.integer & integer, gurobi.GRB.INTEGER, gurobi.GRB.CONTINUOUS)
        variables = model.addMVar(
            milp.cost.size, lb=milp.low, ub=milp.high, obj=milp.cost, vtype=kinds
        )
        low = np.flatnonzero(np.isfinite(milp.row_low))
        high = np.flatnonzero(np.isfinite(milp.row_high))
        rows = (
            (low, model.addConstr(milp.matrix[low] @ variables >= milp.row_low[low])),
            (high, model.addConstr(milp.matrix[high] @ variables <= milp.row_high[high])),
        )
        return model, variables, rows


def _optimize(model: Any, limits: Limits) -> None:
    model.optimize(lambda inner, _: inner.terminate() if limits.stop() else None)


class GurobiSession:
    """Solves anew each time: simple, and enough for an extra."""

    def __init__(self, backend: Gurobi, milp: Milp, limits: Limits) -> None:
        self.backend, self.milp, self.limits = backend, milp, limits

    def solve(self, low: Floats, high: Floats, seconds: float) -> Answer:
        milp = replace(self.milp, low=low, high=high)
        return self.backend.solve_linear(milp, replace(self.limits, seconds=seconds))
