"""The view: all that a page about one plan shows, as one value, before anyone draws it.

Every figure comes from the referee's replay, never from what the plan says of itself. The only
claims that pass through are the ones a replay cannot see: the bound and who vouches for it.
"""

from math import nan

import msgspec

from poet.baselines.keep_all import kept_all
from poet.devices import device_names, find_device
from poet.planning.rows import Row
from poet.referee.verdict import Report
from poet.reports.explain import complaints, peak_text
from poet.reports.page.figures import CostShare, OpFigures, cost_shares, costly_ops
from poet.reports.page.history import StepHistory, record
from poet.reports.page.rows import fold_bytes, row_order
from poet.values.device import Costs
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.quantities import amount_text, goal_text, share_text
from poet.values.schedule import Goal


class ComparisonRows(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison, as `poet compare --json` prints it."""

    rows: tuple[Row, ...]


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, its replay, and what follows from both."""

    plan: Plan
    report: Report
    history: StepHistory
    keep_all: Report | None
    """The same step with everything kept in RAM."""
    shares: tuple[CostShare, ...]
    ops: tuple[OpFigures, ...]
    rows: tuple[int, ...]
    """Of the residency map: tensors in the order of first use."""
    fold_bytes: int
    complaints: tuple[str, ...]
    compared: tuple[Row, ...] = ()

    @property
    def has_schedule(self) -> bool:
        return bool(self.plan.schedule)

    @property
    def large_rows(self) -> list[int]:
        """The rows that are not folded at first."""
        tensors = self.plan.graph.tensors
        return [i for i in self.rows if tensors[i].nbytes >= self.fold_bytes]

    @property
    def peak_text(self) -> str:
        return peak_text(self.plan, self.report)

    @property
    def peak_seconds(self) -> float:
        """When RAM is highest, by the clock."""
        found = (m.seconds for m in self.report.timeline if m.ram_bytes == self.report.peak_bytes)
        return next(found, nan)


def look_at(plan: Plan, compared: tuple[Row, ...] = ()) -> PlanView:
    """Replay a plan and gather what a page shows of it."""
    report, history = record(plan)
    return PlanView(
        plan=plan,
        report=report,
        history=history,
        keep_all=kept_all(plan.graph, plan.costs, plan.budget),
        shares=tuple(cost_shares(plan, report, history)),
        ops=tuple(costly_ops(plan, report, history)),
        rows=tuple(row_order(plan.graph, history)),
        fold_bytes=fold_bytes(report.peak_bytes),
        complaints=_complaints(plan, report),
        compared=compared,
    )


def _complaints(plan: Plan, report: Report) -> tuple[str, ...]:
    if not plan.schedule and plan.status in ("infeasible", "unknown"):
        return ()
    return tuple(complaints("this plan", plan, report))


_LEAST: dict[Goal, str] = {
    "joules": "No schedule in this op order can use less than {least}",
    "seconds": "No schedule in this op order can be faster than {least}",
    "bytes": "No schedule in this op order can fit in less than {least}",
}
_VOUCHED = {
    "certified": "certified: POET checked this bound itself, from the dual values",
    "solver": "the solver's word; POET has not checked it",
}


def bound_text(view: PlanView) -> str:
    """What is proven, in one or two sentences."""
    plan, report = view.plan, view.report
    if plan.bound is None:
        return "Nothing is proven about how much better a schedule could be."
    value: float = {
        "joules": report.joules, "seconds": report.seconds, "bytes": report.peak_bytes,
    }[plan.minimize]  # fmt: skip
    least = _LEAST[plan.minimize].format(least=goal_text(plan.minimize, plan.bound))
    vouched = _VOUCHED.get(plan.bound_source or "", "")
    any_order = plan.bound_any_order_joules
    beside = "" if any_order is None else f" In any order: {amount_text(any_order, 'J')}."
    if not view.has_schedule:
        return f"{least} ({vouched}).{beside}"
    gap = max(0.0, (value - plan.bound) / value) if value else 0.0
    percent = share_text(gap, 2 if gap < 0.01 else 1)
    as_good = gap == 0.0 if plan.minimize == "bytes" else gap < 5e-5
    within = "this one is that good" if as_good else f"this one is within {percent}"
    return f"{least}; {within} ({vouched}).{beside}"


def device_text(costs: Costs) -> str:
    """The board, with its full name where POET knows it; else where the costs are from."""
    if costs.device in device_names():
        return f"{costs.device} ({find_device(costs.device).title})"
    return printable(costs.device)
