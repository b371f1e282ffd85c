"""The view: all that a page about one plan shows, as one value, before anyone draws it.

Every figure comes from the referee's replay, never from what the plan says of itself. The only
claims that pass through are the ones a replay cannot see: the bound and who vouches for it.
"""

from math import nan

import msgspec

from poet.baselines.keep_all import keep_all
from poet.devices import device_names, find_device
from poet.planning.compare import Row
from poet.referee.replay import check
from poet.referee.verdict import Report
from poet.reports.explain import complaints, peak_text
from poet.reports.page.figures import OpFigures, Part, costly_ops, split
from poet.reports.page.residency import first_uses, fold_bytes
from poet.reports.page.walk import Walk, walk
from poet.values.device import Costs
from poet.values.graph import printable
from poet.values.plan import Plan, draft
from poet.values.quantities import amount_text, bytes_text
from poet.values.schedule import Effort, Goal


class KeptAll(msgspec.Struct, frozen=True, kw_only=True):
    """The same step with everything kept in RAM, as the referee replays it."""

    joules: float
    seconds: float
    peak_bytes: int


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison, as `poet compare --json` prints it."""

    rows: tuple[Row, ...]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, its replay, and what follows from both."""

    plan: Plan
    report: Report
    walk: Walk
    keep_all: KeptAll | None
    parts: tuple[Part, ...]
    ops: tuple[OpFigures, ...]
    row_order: tuple[int, ...]
    fold_bytes: int
    complaints: tuple[str, ...]
    compared: tuple[Row, ...] = ()

    @property
    def has_schedule(self) -> bool:
        return bool(self.plan.schedule)

    @property
    def peak_text(self) -> str:
        return peak_text(self.plan, self.report)

    @property
    def peak_seconds(self) -> float:
        """When RAM is highest, by the clock."""
        found = (m.seconds for m in self.report.timeline if m.ram_bytes == self.report.peak_bytes)
        return next(found, nan)


def look_at(plan: Plan, compared: tuple[Row, ...] = ()) -> View:
    """Replay a plan and gather what a page shows of it."""
    report, walked = walk(plan)
    return View(
        plan=plan,
        report=report,
        walk=walked,
        keep_all=_keep_all(plan),
        parts=tuple(split(plan, report, walked)),
        ops=tuple(costly_ops(plan, report, walked)),
        row_order=tuple(first_uses(plan.graph, walked)),
        fold_bytes=fold_bytes(report.peak_bytes),
        complaints=_complaints(plan, report),
        compared=compared,
    )


def _complaints(plan: Plan, report: Report) -> tuple[str, ...]:
    if not plan.schedule and plan.status in ("infeasible", "unknown"):
        return ()
    return tuple(complaints("this plan", plan, report))


def _keep_all(plan: Plan) -> KeptAll | None:
    solution = keep_all(plan.graph, plan.costs, plan.budget, Effort())
    if not solution.schedule:
        return None
    unlimited = msgspec.structs.replace(
        plan.budget, ram_bytes=None, store_bytes=None, deadline_seconds=None
    )
    report = check(draft(plan.graph, plan.costs, unlimited, solution.schedule))
    if not report.valid:
        return None
    return KeptAll(joules=report.joules, seconds=report.seconds, peak_bytes=report.peak_bytes)


_LEAST: dict[Goal, str] = {
    "joules": "No schedule can use less than {least}",
    "seconds": "No schedule can be faster than {least}",
    "bytes": "No schedule can fit in less than {least}",
}
_VOUCHED = {
    "certified": "certified: POET checked this bound itself, from the dual values",
    "solver": "the solver's word; POET has not checked it",
}


def bound_text(view: View) -> str:
    """What is proven, in one or two sentences."""
    plan, report = view.plan, view.report
    if plan.bound is None:
        return "Nothing is proven about how much better a schedule could be."
    value: float = {
        "joules": report.joules, "seconds": report.seconds, "bytes": report.peak_bytes,
    }[plan.minimize]  # fmt: skip
    least = _LEAST[plan.minimize].format(least=goal_text(plan.minimize, plan.bound))
    vouched = _VOUCHED.get(plan.bound_source or "", "")
    if not view.has_schedule:
        return f"{least} ({vouched})."
    gap = max(0.0, (value - plan.bound) / value) if value else 0.0
    within = "this one is that good" if gap < 5e-5 else f"this one is within {_percent(gap)}"
    return f"{least}; {within} ({vouched})."


def goal_text(goal: Goal, amount: float) -> str:
    """An amount of whatever is minimised."""
    if goal == "bytes":
        return bytes_text(int(amount))
    return amount_text(amount, "J" if goal == "joules" else "s")


def _percent(share: float) -> str:
    return f"{share:.2%}".replace("%", " %") if share < 0.01 else f"{share:.1%}".replace("%", " %")


def device_text(costs: Costs) -> str:
    """The board, with its full name where POET knows it; else where the costs are from."""
    if costs.device in device_names():
        return f"{costs.device} ({find_device(costs.device).title})"
    return printable(costs.device)
