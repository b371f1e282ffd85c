"""HiGHS, through highspy. One thread a solve: the planner runs several solves at once."""

import highspy
import numpy as np

from poet.planner.backends import Answer, Limits, SolveStatus
from poet.planner.model.matrix import Floats, Milp

_STATUS: dict[highspy.HighsModelStatus, SolveStatus] = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kUnboundedOrInfeasible: "infeasible",
    highspy.HighsModelStatus.kTimeLimit: "stopped",
    highspy.HighsModelStatus.kIterationLimit: "stopped",
    highspy.HighsModelStatus.kSolutionLimit: "stopped",
    highspy.HighsModelStatus.kInterrupt: "stopped",
    highspy.HighsModelStatus.kObjectiveBound: "stopped",
    highspy.HighsModelStatus.kObjectiveTarget: "stopped",
}


class Highs:
    def session(self, milp: Milp, limits: Limits) -> "HighsSession":
        return HighsSession(milp, limits)

    def solve_linear(self, milp: Milp, limits: Limits) -> Answer:
        solver = _loaded(milp, limits, integer=False)
        solver.setOptionValue("solver", "simplex")
        solver.run()
        status = _STATUS.get(solver.getModelStatus(), "failed")
        solution = solver.getSolution()
        if status != "optimal":
            duals = np.array(solution.row_dual) if solution.dual_valid else None
            return Answer(status=status, duals=duals)
        return Answer(
            status=status,
            values=np.array(solution.col_value),
            duals=np.array(solution.row_dual),
            objective=solver.getInfo().objective_function_value,
        )

    def solve_integer(self, milp: Milp, limits: Limits, start: Floats | None = None) -> Answer:
        solver = _loaded(milp, limits, integer=True)
        solver.setOptionValue("mip_rel_gap", limits.relative_gap)
        if limits.nodes is not None:
            solver.setOptionValue("mip_max_nodes", limits.nodes)
        if limits.cutoff is not None:
            solver.setOptionValue("objective_bound", limits.cutoff)
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = start
            solver.setSolution(solution)
        if limits.stop is not None:
            stop = limits.stop

            def interrupt(event: highspy.HighsCallbackEvent) -> None:
                if stop():
                    event.interrupt()

            solver.cbMipInterrupt.subscribe(interrupt)
        solver.run()
        info = solver.getInfo()
        status = _STATUS.get(solver.getModelStatus(), "failed")
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        return Answer(
            status=status,
            values=np.array(solver.getSolution().col_value) if found else None,
            objective=info.objective_function_value if found else None,
            bound=info.mip_dual_bound,
        )


class HighsSession:
    """Warm starts: each solve continues from the basis of the one before."""

    def __init__(self, milp: Milp, limits: Limits) -> None:
        self.solver = _loaded(milp, limits, integer=False)
        self.solver.setOptionValue("solver", "simplex")
        self.solver.setOptionValue("presolve", "off")
        self.low, self.high = milp.low.copy(), milp.high.copy()
        self.clock = 0.0

    def solve(self, low: Floats, high: Floats, seconds: float) -> Answer:
        solver = self.solver
        changed = np.flatnonzero((low != self.low) | (high != self.high)).astype(np.int32)
        if changed.size:
            solver.changeColsBounds(changed.size, changed, low[changed], high[changed])
            self.low, self.high = low.copy(), high.copy()
        # HiGHS counts the seconds of all runs of one solver together.
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.0, seconds))
        solver.run()
        status = _STATUS.get(solver.getModelStatus(), "failed")
        solution = solver.getSolution()
        ray = None
        if status == "infeasible":
            read, found, values = solver.getDualRay()  # type: ignore[attr-defined]
            ray = np.array(values) if read == highspy.HighsStatus.kOk and found else None
        return Answer(
            status=status,
            values=np.array(solution.col_value) if status == "optimal" else None,
            duals=np.array(solution.row_dual) if solution.dual_valid or ray is not None else None,
            objective=solver.getInfo().objective_function_value,
            ray=ray,
        )


def _loaded(milp: Milp, limits: Limits, integer: bool) -> highspy.Highs:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", limits.log_file is not None)
    solver.setOptionValue("log_to_console", False)
    if limits.log_file is not None:
        solver.setOptionValue("log_file", limits.log_file)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", limits.seed)
    solver.setOptionValue("time_limit", max(0.0, limits.seconds))
    columns = milp.matrix.tocsc()
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns.shape[1], columns.shape[0]
    model.col_cost_ = milp.cost
    model.col_lower_, model.col_upper_ = milp.low, milp.high
    model.row_lower_, model.row_upper_ = milp.row_low, milp.row_high
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = columns.indptr
    model.a_matrix_.index_ = columns.indices
    model.a_matrix_.value_ = columns.data
    if integer:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[int(whole)] for whole in milp.integer]
    solver.passModel(model)
    return solver
