"""Schedule: the machine language of a training step. Budget: what is asked of one.

Four instructions are the whole language. `Compute` runs an op; `PageOut` copies a tensor to the
store and `PageIn` copies it back; only `Free`, and an op that consumes its input, remove one from
RAM. Everything that makes a schedule makes this, and everything that uses one reads only this.
"""

from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from poet.values.device import PLAIN, Costs
from poet.values.graph import MAX_BYTES, Graph, HasGraph, check_range, graph_of
from poet.values.progress import SearchProgress

Transfers = Literal["serial", "overlap", "free"]
Start = Literal["ram", "store", "both"]
End = Literal["ram", "store", "both", "either"]
Status = Literal["optimal", "feasible", "infeasible", "unknown"]
BoundSource = Literal["certified", "solver"]
Goal = Literal["joules", "seconds", "bytes"]
Residency = Literal["resident", "paged", "streamed"]
"""Where parameters and optimizer state are between steps, in the order in which it is tried."""
Params = Literal["auto", "resident", "paged", "streamed"]

OPTIMAL_GAP = 1e-4
PERSISTENT = ("parameter", "buffer", "optimizer_state")
"""The roles of what is there from one step to the next."""


class Compute(
    msgspec.Struct,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="do",
    tag="compute",
):
    """Run an op, in one of its variants."""

    op: int
    variant: str = PLAIN


class PageOut(
    msgspec.Struct,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    tag_field="do",
    tag="page_out",
):
    """Copy a tensor from RAM to the store."""

    tensor: int


class PageIn(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="do", tag="page_in"
):
    """Copy a tensor from the store to RAM."""

    tensor: int


class Free(
    msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="do", tag="free"
):
    """Remove a tensor from RAM. A copy in the store stays."""

    tensor: int


Instruction = Compute | PageOut | PageIn | Free
Schedule = tuple[Instruction, ...]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of a schedule. None means no limit.

    `start` says where each tensor without a producer is when the step starts; `end` where a tensor
    must be when it ends (`either`: at least one of the two). A tensor not in `end` is not wanted.
    `pinned` are tensors that somebody else holds in RAM, so that to move them frees nothing: they
    start in RAM, or come there when they are made, and stay, unless an op consumes them.
    """

    ram_bytes: int | None = None
    store_bytes: int | None = None
    deadline_seconds: float | None = None
    transfers: Transfers = "serial"
    start: dict[int, Start] = {}
    end: dict[int, End] = {}
    pinned: tuple[int, ...] = ()
    recompute: bool = True
    paging: bool = True

    def __post_init__(self) -> None:
        for field in ("ram_bytes", "store_bytes"):
            nbytes = getattr(self, field)
            if nbytes is not None:
                check_range(field, nbytes, MAX_BYTES)
        if self.deadline_seconds is not None:
            check_range("deadline_seconds", self.deadline_seconds)
        for field, kind, values in (
            ("transfers", Transfers, [self.transfers]),
            ("start", Start, self.start.values()),
            ("end", End, self.end.values()),
        ):
            for value in values:
                if value not in get_args(kind):
                    raise ValueError(f"{field} is {value!r}; it must be one of {get_args(kind)}")
        for i in self.pinned:
            if self.start.get(i) == "store":
                raise ValueError(f"tensor {i} is pinned in RAM, but it does not start there")
        if len(set(self.pinned)) < len(self.pinned):
            raise ValueError("pinned names a tensor twice")

    def check_belongs(self, graph: Graph) -> None:
        """Refuse a budget that does not say where this graph's tensors start, or names others."""
        for field, ids in (("end", self.end), ("pinned", self.pinned)):
            for i in ids:
                if not 0 <= i < len(graph.tensors):
                    last = len(graph.tensors) - 1
                    raise ValueError(f"{field} names tensor {i}; the graph has tensors 0 to {last}")
        wrong = self.start.keys() - set(graph.given)
        if wrong:
            raise ValueError(f"start names tensor {min(wrong)}, which does not exist at the start")
        missing = set(graph.given) - self.start.keys()
        if missing:
            raise ValueError(f"start does not say where {graph.tensor_text(min(missing))} is")
        leaving = {i for i in self.pinned if self.end.get(i) == "store"}
        if leaving and (leaving := leaving.difference(*(op.consumed for op in graph.ops))):
            name = graph.tensor_text(min(leaving))
            raise ValueError(f"{name} is pinned in RAM, but is asked to end in the store")


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how hard a schedule maker may try.

    With a `work_limit` work is counted instead of timed, and the answer repeats for a seed.
    """

    time_limit_seconds: float = 60.0
    relative_gap: float = OPTIMAL_GAP
    threads: int = 1
    seed: int = 0
    work_limit: int | None = None
    solver: str = "highs"
    solver_log: str | None = None
    """A folder for the solver's own logs, one file a solve."""
    progress: Callable[[SearchProgress], None] | None = None


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """What every schedule maker returns. No schedule is a status with a reason, never None.

    `feasible` is the maker's word until the referee has replayed the schedule; `infeasible` means
    proven; `unknown` that this maker found none, for the reason given.
    """

    status: Status
    schedule: Schedule = ()
    reason: str = ""
    bound_joules: float | None = None
    bound_source: BoundSource | None = None
    any_order_joules: float | None = None
    """What no schedule undercuts, in whatever order of ops; certified."""
    first_seconds: float | None = None
    prices: "Prices | None" = None


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C while schedules were looked for; `solution` is the best until then."""

    def __init__(self, solution: Solution) -> None:
        super().__init__()
        self.solution = solution


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a little more would save, by the dual values of the relaxation behind the bound."""

    joules_per_byte: float
    joules_per_second: float


Maker = Callable[[Graph, Costs, Budget, Effort], Solution]
"""The signature that all ways to get a schedule share."""


def places(
    graph: Graph | HasGraph, residency: Residency = "resident"
) -> tuple[dict[int, Start], dict[int, End]]:
    """Where tensors start and must end, by role: the usual `start` and `end` of a Budget.

    Parameters, buffers and optimizer state start in RAM (`resident`) or in the store (`paged`,
    `streamed`), and they, or what they become, end there. Inputs start in RAM and are not wanted
    after. Outputs end in RAM.
    """
    graph = graph_of(graph)
    home: Literal["ram", "store"] = "ram" if residency == "resident" else "store"
    start: dict[int, Start] = {}
    end: dict[int, End] = {}
    for i in graph.given:
        persists = graph.tensors[i].role in PERSISTENT
        start[i] = home if persists else "ram"
        if persists:
            end[graph.heir.get(i, i)] = home
    for i, tensor in enumerate(graph.tensors):
        if tensor.role == "output":
            end.setdefault(i, "ram")
    return start, end


def not_kept(graph: Graph | HasGraph, budget: Budget) -> int | None:
    """The first parameter, buffer, state or output that a budget does not want at the end.

    A step by such a budget is no training: what it computes is thrown away.
    """
    _, end = places(graph)
    return min(end.keys() - budget.end.keys(), default=None)
