"""HiGHS in this process, through highspy. One thread a solve: the planner runs several at once.

A linear program is left alone until it is solved or its time is over; an integer program asks now
and then whether it should stop, and in between solves linear programs of its own that nobody can
break off. So only small programs are solved where they have to be waited for (highs.py).

Helper processes load this module: it imports neither scipy nor the model.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import highspy
import numpy as np

from poet.planner.backends import Answer, Limits, SolveStatus

if TYPE_CHECKING:
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


@dataclass(frozen=True)
class Program:
    """A mixed-integer program in plain arrays, its matrix column by column."""

    cost: "Floats"
    low: "Floats"
    high: "Floats"
    integer: np.ndarray[tuple[int], np.dtype[np.bool_]]
    starts: np.ndarray[tuple[int], np.dtype[np.int32]]
    rows: np.ndarray[tuple[int], np.dtype[np.int32]]
    values: "Floats"
    row_low: "Floats"
    row_high: "Floats"


def program_of(milp: "Milp") -> Program:
    columns = milp.matrix.tocsc()
    return Program(
        cost=milp.cost,
        low=milp.low,
        high=milp.high,
        integer=milp.integer,
        starts=columns.indptr,
        rows=columns.indices,
        values=columns.data,
        row_low=milp.row_low,
        row_high=milp.row_high,
    )


def solve_linear(program: Program, limits: Limits) -> Answer:
    solver = _loaded(program, limits, integer=False)
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


def solve_integer(program: Program, limits: Limits) -> Answer:
    solver = _loaded(program, limits, integer=True)
    solver.setOptionValue("mip_rel_gap", limits.relative_gap)
    if limits.nodes is not None:
        solver.setOptionValue("mip_max_nodes", limits.nodes)
    if limits.cutoff is not None:
        solver.setOptionValue("objective_bound", limits.cutoff)

    def interrupt(event: highspy.HighsCallbackEvent) -> None:
        if limits.stop():
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


class Session:
    """Warm starts: each solve continues from the basis of the one before."""

    def __init__(self, program: Program, limits: Limits) -> None:
        self.solver = _loaded(program, limits, integer=False)
        self.solver.setOptionValue("solver", "simplex")
        self.solver.setOptionValue("presolve", "off")
        self.low, self.high = program.low.copy(), program.high.copy()

    def solve(self, low: "Floats", high: "Floats", seconds: float) -> Answer:
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


def _loaded(program: Program, limits: Limits, integer: bool) -> highspy.Highs:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", limits.log_file is not None)
    solver.setOptionValue("log_to_console", False)
    if limits.log_file is not None:
        solver.setOptionValue("log_file", limits.log_file)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", limits.seed)
    solver.setOptionValue("time_limit", max(0.0, limits.seconds))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = program.cost.size, program.row_low.size
    model.col_cost_ = program.cost
    model.col_lower_, model.col_upper_ = program.low, program.high
    model.row_lower_, model.row_upper_ = program.row_low, program.row_high
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = program.starts
    model.a_matrix_.index_ = program.rows
    model.a_matrix_.value_ = program.values
    if integer:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[int(whole)] for whole in program.integer]
    solver.passModel(model)
    return solver
