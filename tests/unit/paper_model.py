"""The original paper's mixed-integer program, copied small and literally: an oracle for the tests.

T×T binary matrices: R (op i runs in stage t), S_ram and S_aux (tensor i is in RAM, in the store,
when stage t begins), M_in and M_out (it is paged in, out, during stage t), Checkmate's FREE (tensor
i leaves RAM after op k in stage t; Jain et al., MLSys 2020), and U (RAM while op k runs). One
output an op, nothing at the start or the end, transfers cost joules but no time.

What had to be interpreted:

- When a page-in counts. Here it serves its own stage and its bytes count from the stage's start.
  The released code lets it serve from the next stage on and counts it from there; `as_released`
  does the same. Either way the bytes are there before the first op that uses them.
- What FREE covers. Checkmate frees after op k its inputs and its own output; the released code its
  inputs only. `as_released` follows the code.
- A tensor that is paged in, recomputed and kept at once is counted each time. That is wasteful, and
  left as it is.

Every schedule of this model is one of ours (formulation, §8), at the same joules or fewer. Kept
tensors stay kept. A page-in becomes a load just before the first reader, in this stage or a later
one, where RAM holds the tensor in the model already; a page-in, recomputation or second copy of
what is in RAM is left out. The first page-out becomes the write after the first production, at the
same price. FREE drops after a producer or a reader ran. So U is never less than what we count.

Literal, not fast: seconds for about 20 ops.
"""

from importlib import import_module
from math import gcd, inf
from typing import Any, NamedTuple

from poet.values.device import PLAIN, Costs
from poet.values.graph import Graph

MIP_GAP = 1e-9


class Rows:
    """Columns and rows handed to HiGHS one by one."""

    def __init__(self) -> None:
        highspy: Any = import_module("highspy")
        self.highs: Any = highspy.Highs()
        self.integer: Any = highspy.HighsVarType.kInteger
        self.optimal: Any = highspy.HighsModelStatus.kOptimal
        self.infeasible: Any = highspy.HighsModelStatus.kInfeasible
        self.highs.setOptionValue("output_flag", False)
        # Presolve of HiGHS 1.15.1 has called wrong answers optimal.
        self.highs.setOptionValue("presolve", "off")
        self.highs.setOptionValue("mip_rel_gap", MIP_GAP)
        self.highs.setOptionValue("mip_abs_gap", 0.0)
        self.highs.setOptionValue("threads", 1)
        self.columns = 0

    def binary(self, joules: float = 0.0, possible: bool = True, forced: bool = False) -> int:
        column = self.number(1.0 if possible else 0.0, joules, 1.0 if forced else 0.0)
        self.highs.changeColIntegrality(column, self.integer)
        return column

    def number(self, most: float, joules: float = 0.0, least: float = 0.0) -> int:
        self.highs.addCol(joules, least, most, 0, [], [])
        self.columns += 1
        return self.columns - 1

    def row(self, least: float, terms: list[tuple[int, float]], most: float) -> None:
        total: dict[int, float] = {}
        for column, factor in terms:
            total[column] = total.get(column, 0.0) + factor
        self.highs.addRow(least, most, len(total), list(total), list(total.values()))

    def minimum(self, seconds: float | None) -> float | None:
        if seconds is not None:
            self.highs.setOptionValue("time_limit", seconds)
        self.highs.run()
        status = self.highs.getModelStatus()
        info = self.highs.getInfo()
        if status == self.infeasible:
            return None
        if seconds is not None:
            return (
                float(info.objective_function_value) if info.primal_solution_status == 2 else None
            )
        if status != self.optimal:
            raise RuntimeError(f"HiGHS ended with {status}")
        return float(self.highs.getInfo().objective_function_value)


def paper_joules(
    graph: Graph,
    costs: Costs,
    ram_bytes: int,
    deadline_seconds: float | None = None,
    *,
    as_released: bool = False,
    time_limit_seconds: float | None = None,
) -> float | None:
    """The least joules in the paper's model; None if it has no schedule.

    With a time limit, the best found by then, or None if none was.
    """
    rows, _ = paper_rows(graph, costs, ram_bytes, deadline_seconds, as_released=as_released)
    return rows.minimum(time_limit_seconds)


class Blocks(NamedTuple):
    """The columns of the matrices, by stage and op."""

    compute: list[list[int]]
    in_ram: list[list[int]]
    in_store: list[list[int]]
    page_in: list[list[int]]
    page_out: list[list[int]]


def paper_rows(
    graph: Graph,
    costs: Costs,
    ram_bytes: int,
    deadline_seconds: float | None,
    *,
    as_released: bool,
) -> tuple[Rows, Blocks]:
    """The program, not solved."""
    _check_plain(graph, costs)
    ops, rows = range(len(graph.ops)), Rows()
    runs = [variants[PLAIN] for variants in costs.ops]
    unit = gcd(*(tensor.nbytes for tensor in graph.tensors)) or 1
    size = [tensor.nbytes // unit for tensor in graph.tensors]

    compute = [[rows.binary(runs[i].joules, i <= t, i == t) for i in ops] for t in ops]
    in_ram = [[rows.binary(0.0, i < t) for i in ops] for t in ops]
    in_store = [[rows.binary(0.0, i < t) for i in ops] for t in ops]
    page_in = [[rows.binary(costs.tensors[i].in_joules, i <= t) for i in ops] for t in ops]
    page_out = [[rows.binary(costs.tensors[i].out_joules, i <= t) for i in ops] for t in ops]

    for t in ops:
        for v in ops:
            for i in graph.ops[v].inputs:
                sources = [(compute[t][i], 1.0), (in_ram[t][i], 1.0)]
                if not as_released:
                    sources.append((page_in[t][i], 1.0))
                rows.row(0.0, [*sources, (compute[t][v], -1.0)], inf)
            rows.row(0.0, [(in_store[t][v], 1.0), (page_in[t][v], -1.0)], inf)
            rows.row(0.0, [(in_ram[t][v], 1.0), (page_out[t][v], -1.0)], inf)
            if t > 0:
                before = [compute[t - 1][v], in_ram[t - 1][v], page_in[t - 1][v]]
                rows.row(0.0, [*((c, 1.0) for c in before), (in_ram[t][v], -1.0)], inf)
                stored = [in_store[t - 1][v], page_out[t - 1][v]]
                rows.row(0.0, [*((c, 1.0) for c in stored), (in_store[t][v], -1.0)], inf)

    for t in ops:
        kept_on = in_ram[t + 1] if t + 1 < len(ops) else None
        used = [rows.number(float(ram_bytes // unit)) for _ in ops]
        start = [(used[0], -1.0), (compute[t][0], float(size[0]))]
        start += [(in_ram[t][i], float(size[i])) for i in ops]
        if not as_released:
            start += [(page_in[t][i], float(size[i])) for i in ops]
        rows.row(0.0, start, 0.0)
        for k in ops[:-1]:
            terms = [(used[k], 1.0), (used[k + 1], -1.0), (compute[t][k + 1], float(size[k + 1]))]
            for i in (*graph.ops[k].inputs, *(() if as_released else (k,))):
                free = _free(rows, graph, compute[t], kept_on, i, k)
                terms.append((free, -float(size[i])))
            rows.row(0.0, terms, 0.0)

    if deadline_seconds is not None:
        seconds = [(compute[t][i], runs[i].seconds) for t in ops for i in ops if i <= t]
        rows.row(-inf, seconds, deadline_seconds)
    return rows, Blocks(compute, in_ram, in_store, page_in, page_out)


def _free(
    rows: Rows, graph: Graph, compute: list[int], kept_on: list[int] | None, i: int, k: int
) -> int:
    """FREE = 1 exactly if op k runs, i is not kept into the next stage, and no later op of this
    one reads it: no hazard. Hazards are 1 - R[t, k] + S_ram[t+1, i] + Σ R[t, later readers]."""
    free = rows.binary()
    hazards = [(compute[k], -1.0)]
    if kept_on is not None:
        hazards.append((kept_on[i], 1.0))
    hazards += [(compute[j], 1.0) for j in graph.readers[i] if j > k]
    most = float(len(hazards))
    rows.row(0.0, [(free, 1.0), *hazards], inf)  # 1 - FREE <= hazards
    rows.row(1.0 - most, [(free, -most), *((c, -f) for c, f in hazards)], inf)
    return free


def _check_plain(graph: Graph, costs: Costs) -> None:
    if graph.given or any(op.outputs != (k,) or op.in_place for k, op in enumerate(graph.ops)):
        raise ValueError("the paper's model knows graphs in which op i makes tensor i, and no more")
    if any(len(v) > 1 or v[PLAIN].workspace_bytes for v in costs.ops) or costs.idle_watts:
        raise ValueError("the paper's model knows neither variants, workspace nor idle watts")
