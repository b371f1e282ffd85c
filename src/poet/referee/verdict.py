"""The verdict: what the referee says of a plan, and whether the plan's claims agree with it."""

from collections.abc import Iterator
from math import isclose
from typing import Literal

import msgspec

from poet.referee.clocks import Moment
from poet.values.plan import Plan
from poet.values.schedule import OPTIMAL_GAP

Rule = Literal[
    "recompute-forbidden",
    "paging-forbidden",
    "not-recomputable",
    "random-order",
    "nothing-missing",
    "input-missing",
    "not-in-ram",
    "not-stored",
    "already-in-ram",
    "pinned",
    "ram",
    "store",
    "never-run",
    "wrong-end",
    "deadline",
]

LIMITS = ("ram", "store", "deadline")
"""Rules that do not end a replay."""

TOLERANCE = 1e-9
"""How far, relatively, a claimed sum of floats may be from the replayed one."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """The first broken rule. `instruction` is None for the state at the step's start or end."""

    instruction: int | None
    rule: Rule
    op: int | None = None
    tensor: int | None = None
    message: str


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of the plan that its replay does not bear out."""

    field: str
    claimed: float | str
    replayed: float | str | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule really does. `seconds` is the makespan under the budget's transfers;
    `compute_seconds` and `transfer_seconds` are how long each side is busy."""

    violation: Violation | None
    joules: float
    seconds: float
    peak_bytes: int
    peak_instruction: int | None
    compute_joules: float
    transfer_joules: float
    idle_joules: float
    compute_seconds: float
    transfer_seconds: float
    store_peak_bytes: int
    recomputed_ops: int
    page_ins: int
    page_outs: int
    page_in_bytes: int
    page_out_bytes: int
    streamed: dict[int, tuple[int, int]]
    """For each tensor that ops stream, the bytes that they read from the store and write to it."""
    timeline: tuple[Moment, ...]
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def streamed_in_bytes(self) -> int:
        return sum(read for read, _ in self.streamed.values())

    @property
    def streamed_out_bytes(self) -> int:
        return sum(written for _, written in self.streamed.values())

    @property
    def streamed_bytes(self) -> int:
        return self.streamed_in_bytes + self.streamed_out_bytes

    @property
    def valid(self) -> bool:
        return self.violation is None

    @property
    def claims_match(self) -> bool:
        return not self.mismatches


def mismatches(plan: Plan, report: Report) -> Iterator[Mismatch]:
    """The claims that the replay, or plain arithmetic on the plan's own numbers, contradicts."""
    if not plan.schedule and plan.status in ("infeasible", "unknown"):
        return
    if report.violation is not None and report.violation.rule not in LIMITS:
        return  # the replay ended early: its totals say nothing of the whole
    for field, claimed, replayed in (
        ("joules", plan.joules, report.joules),
        ("seconds", plan.seconds, report.seconds),
        ("peak_bytes", plan.peak_bytes, report.peak_bytes),
        ("baseline_joules", plan.baseline_joules, plan.costs.keep_all_joules),
    ):
        exact = isinstance(replayed, int)
        if claimed is not None and not isclose(
            claimed, replayed, rel_tol=0 if exact else TOLERANCE
        ):
            yield Mismatch(field=field, claimed=claimed, replayed=replayed)
    if plan.floor_bytes is not None and plan.floor_bytes > report.peak_bytes and report.valid:
        yield Mismatch(field="floor_bytes", claimed=plan.floor_bytes, replayed=report.peak_bytes)
    reached = {"joules": report.joules, "seconds": report.seconds, "bytes": report.peak_bytes}
    value, gap = reached[plan.minimize], None
    if plan.bound is not None:
        gap = (value - plan.bound) / value if value else 0.0
        if gap < -TOLERANCE:
            yield Mismatch(field=f"bound_{plan.minimize}", claimed=plan.bound, replayed=value)
    if plan.gap is not None and (gap is None or not isclose(plan.gap, gap, abs_tol=TOLERANCE)):
        yield Mismatch(field="gap", claimed=plan.gap, replayed=gap)
    closed = 0.0 if plan.minimize == "bytes" else OPTIMAL_GAP * (1 + TOLERANCE)
    if plan.status == "optimal" and (gap is None or gap > closed):
        yield Mismatch(field="status", claimed=plan.status, replayed="feasible")
    if plan.status == "infeasible" and report.valid:
        yield Mismatch(field="status", claimed=plan.status, replayed="feasible")
