"""The sections of the page that are words and tables. They need no script to be read."""

from collections.abc import Iterable, Sequence

from poet.reports.page.document import theme_button
from poet.reports.page.figures import TOP, OpFigures
from poet.reports.page.markup import Child, Markup, join, tag
from poet.reports.page.view import PlanView, bound_text, device_text
from poet.values.graph import printable
from poet.values.quantities import (
    amount_text,
    bytes_text,
    limit_text,
    share_text,
    short_bytes_text,
)
from poet.values.schedule import Goal, Transfers

_TRANSFERS: dict[Transfers, str] = {
    "serial": "serial: compute waits for each",
    "overlap": "overlap: they run beside compute",
    "free": "free: they take energy but no time, as in the paper's model",
}
_GOALS: dict[Goal, str] = {"joules": "energy", "seconds": "time", "bytes": "RAM"}
_STATUS = {
    "optimal": "proven best in this op order",
    "feasible": "valid schedule",
    "infeasible": "proven impossible",
    "unknown": "no schedule found",
}


def header(view: PlanView) -> Markup:
    """What this is about, and how it ended, at a glance."""
    plan = view.plan
    status = plan.status
    if view.complaints:
        badge = tag("span", "not valid", class_="badge bad")
    else:
        if view.has_schedule and status not in ("optimal", "feasible"):
            status = "feasible"  # a schedule that claims nothing, and holds
        kind = {"optimal": "good", "feasible": "fine"}.get(status, "bad")
        badge = tag("span", _STATUS[status], class_=f"badge {kind}")
    return tag(
        "header",
        tag(
            "div",
            tag("p", "One training step, planned by POET", class_="kicker"),
            tag("h1", printable(plan.graph.name)),
            tag("p", "costs: ", device_text(plan.costs), " ", badge, class_="where"),
        ),
        theme_button(),
    )


def warnings(view: PlanView) -> Markup:
    """What a replay found wrong."""
    if not view.complaints:
        return Markup()
    items = [tag("li", printable(text)) for text in view.complaints]
    return tag(
        "section",
        tag("h2", "This plan does not hold"),
        tag("p", "The referee replayed it and found:"),
        tag("ul", *items),
        tag("p", "The figures below are of the replay, as far as it went.", class_="note"),
        class_="card alarm",
        role="alert",
    )


def failure(view: PlanView) -> Markup:
    """The page's heart where there is no schedule."""
    plan = view.plan
    proven = plan.status == "infeasible"
    said = (
        "This was proven: no schedule meets what was asked."
        if proven
        else "This proves nothing: more time, RAM or another method may find one."
    )
    return tag(
        "section",
        tag("h2", "There is no schedule"),
        tag("p", printable(plan.reason) or "No reason was given.", class_="reason"),
        tag("p", said),
        class_="card alarm",
    )


def tiles(view: PlanView) -> Markup:
    """Joules, seconds and peak, large, each beside keep-all."""
    report, budget, kept = view.report, view.plan.budget, view.keep_all
    energy = time = peak = "no keep-all to compare with"
    if kept is not None:
        energy = _against(report.joules, kept.joules, amount_text(kept.joules, "J"))
        time = _against(report.seconds, kept.seconds, amount_text(kept.seconds, "s"))
        peak = _against(report.peak_bytes, kept.peak_bytes, short_bytes_text(kept.peak_bytes))
    room = "no RAM budget"
    if budget.ram_bytes:
        used = report.peak_bytes / budget.ram_bytes
        room = f"{share_text(used)} of the budget of {short_bytes_text(budget.ram_bytes)}"
    limit = "no deadline"
    if budget.deadline_seconds is not None:
        limit = f"deadline {amount_text(budget.deadline_seconds, 's')}"
    made = f"{report.recomputed_ops:,} recomputed, {report.page_ins:,} paged in"
    return tag(
        "div",
        _tile("Energy", amount_text(report.joules, "J"), energy, made),
        _tile("Time", amount_text(report.seconds, "s"), time, limit),
        _tile("RAM peak", short_bytes_text(report.peak_bytes), peak, room),
        class_="tiles",
    )


def _against(value: float, kept: float, kept_text: str) -> str:
    return (
        f"{share_text(value / kept)} of keep-all's {kept_text}" if kept else "keep-all takes none"
    )


def _tile(label: str, value: str, *lines: str) -> Markup:
    number, _, unit = value.partition(" ")
    return tag(
        "div",
        tag("h2", label),
        tag("p", number, " ", tag("small", unit), class_="big"),
        *(tag("p", line, class_="note") for line in lines),
        class_="card tile",
    )


def proof(view: PlanView) -> Markup:
    return tag("p", bound_text(view), class_="card proof", id="proof")


def asked_and_guaranteed(view: PlanView) -> Markup:
    plan, report, budget, kept = view.plan, view.report, view.plan.budget, view.keep_all
    asked = [
        ("model", printable(plan.graph.name)),
        ("costs of", device_text(plan.costs)),
        ("RAM budget", limit_text(budget.ram_bytes)),
        ("store", limit_text(budget.store_bytes)),
        (
            "deadline",
            "none"
            if budget.deadline_seconds is None
            else amount_text(budget.deadline_seconds, "s"),
        ),
        ("transfers", _TRANSFERS[budget.transfers]),
        ("make small", _GOALS[plan.minimize]),
        ("recompute", "allowed" if budget.recompute else "forbidden"),
        ("page", "allowed" if budget.paging else "forbidden"),
    ]
    given = []
    if view.has_schedule:
        given += [
            ("energy", amount_text(report.joules, "J")),
            ("time", amount_text(report.seconds, "s")),
            ("RAM peak", f"{bytes_text(report.peak_bytes)} at {view.peak_text}"),
            ("store used", bytes_text(report.store_peak_bytes)),
            (
                "moved",
                f"{report.page_outs:,} page-outs ({bytes_text(report.page_out_bytes)}), "
                f"{report.page_ins:,} page-ins ({bytes_text(report.page_in_bytes)})",
            ),
            (
                "schedule",
                f"{len(plan.schedule):,} instructions: {len(plan.graph.ops):,} ops, "
                f"{report.recomputed_ops:,} recomputed",
            ),
        ]
    if plan.floor_bytes is not None:
        given.append(("RAM floor", f"{bytes_text(plan.floor_bytes)}: no schedule can use less"))
    if kept is not None:
        given.append(
            (
                "keep-all",
                f"{amount_text(kept.joules, 'J')}, {amount_text(kept.seconds, 's')}, "
                f"{bytes_text(kept.peak_bytes)}",
            )
        )
    if plan.solver:
        took = "" if plan.solve_seconds is None else f", {plan.solve_seconds:.2f} s"
        given.append(("made by", printable(plan.solver) + took))
    return tag(
        "section",
        tag("div", tag("h2", "What was asked"), _list(asked), class_="card"),
        tag(
            "div",
            tag("h2", "What is guaranteed" if view.has_schedule else "What is known"),
            _list(given),
            class_="card",
        ),
        class_="pair",
    )


def _list(rows: Iterable[tuple[str, str]]) -> Markup:
    return tag("dl", *(join(tag("dt", label), tag("dd", text)) for label, text in rows))


def ladder(view: PlanView) -> Markup:
    """RAM from the floor to keep-all, as bars on one scale."""
    plan, kept = view.plan, view.keep_all
    rungs = [
        ("floor", plan.floor_bytes, "floor"),
        ("this plan", view.report.peak_bytes if view.has_schedule else None, "plan"),
        ("budget", plan.budget.ram_bytes, "budget"),
        ("keep-all", None if kept is None else kept.peak_bytes, "kept"),
    ]
    known = [(label, nbytes, kind) for label, nbytes, kind in rungs if nbytes is not None]
    others = [nbytes for _, nbytes, kind in known if kind != "budget"]
    if not others:
        return Markup()
    # A board's whole RAM may dwarf the step: its bar is then cut, and says so.
    most = max(others)
    most = max(most, min(plan.budget.ram_bytes or 0, 2 * most)) or 1
    rows = [
        (
            label,
            nbytes / most,
            short_bytes_text(nbytes) + (" (bar cut)" if nbytes > most else ""),
            kind,
        )
        for label, nbytes, kind in sorted(known, key=lambda rung: rung[1])
    ]
    return tag(
        "section", tag("h2", "RAM: from what must be to what could be"), bars(rows), class_="card"
    )


def bars(rows: Iterable[tuple[str, float, str, str]]) -> Markup:
    """Rows of label, share of the scale, text and kind."""
    return tag(
        "table",
        tag(
            "tbody",
            *(
                tag(
                    "tr",
                    tag("th", tag("span", label), scope="row"),
                    tag("td", _bar(share, kind), class_="wide"),
                    tag("td", text, class_="right"),
                )
                for label, share, text, kind in rows
            ),
        ),
        class_="bars",
    )


def _bar(share: float, kind: str = "plan") -> Markup:
    width = max(0.0, min(1.0, share)) * 100
    inner = tag("span", style=f"width:{width:.2f}%", class_=f"bar {kind}")
    return tag("span", inner, class_="track")


def split(view: PlanView) -> Markup:
    """Where energy and time go."""
    report, transfers = view.report, view.plan.budget.transfers
    rows = []
    for share in view.shares:
        joules = share.joules / report.joules if report.joules else 0.0
        counts = transfers != "free" or share.label in ("first runs", "recomputation", "idle")
        seconds = share.seconds / report.seconds if report.seconds and counts else 0.0
        count = "" if share.count is None else f"{share.count:,}"
        kind = share.label.replace(" ", "-")
        rows.append(
            [
                share.label,
                count,
                amount_text(share.joules, "J"),
                join(_bar(joules, kind), share_text(joules)),
                amount_text(share.seconds, "s") if counts else "not counted",
                join(_bar(seconds, kind), share_text(seconds)) if counts else "",
            ]
        )
    rows.append(
        ["the step", "", amount_text(report.joules, "J"), "", amount_text(report.seconds, "s"), ""]
    )
    note = {
        "serial": "Transfers and compute take turns: the seconds add up to the step.",
        "overlap": "Transfers run beside compute, so that busy seconds may add up to more than the "
        "step; idle is the time in which compute waits.",
        "free": "Transfers take energy but no time in this model.",
    }[transfers]
    headings = ("part", "times", "energy", "of the step", "time", "of the step")
    return tag(
        "section",
        tag("h2", "Where energy and time go"),
        table(headings, rows, "lrrlrl", "split"),
        tag("p", note, class_="note"),
        class_="card",
    )


def costly(view: PlanView) -> Markup:
    """The ops that take most, by joules and by seconds."""
    by = {
        "joules": sorted(view.ops, key=lambda op: -op.joules)[:TOP],
        "seconds": sorted(view.ops, key=lambda op: -op.seconds)[:TOP],
    }
    buttons = [
        tag(
            "button",
            f"by {label}",
            type="button",
            data_show=f"top-{key}",
            aria_pressed="true" if key == "joules" else "false",
        )
        for key, label in (("joules", "energy"), ("seconds", "time"))
    ]
    lists = [
        tag("div", _op_table(view, ops, key), id=f"top-{key}", hidden=key == "seconds")
        for key, ops in by.items()
    ]
    return tag(
        "section",
        tag("h2", "The ops that take most, and why"),
        tag("div", *buttons, class_="switch", role="group", aria_label="Order of the ops"),
        *lists,
        class_="card",
    )


def _op_table(view: PlanView, ops: Sequence[OpFigures], key: str) -> Markup:
    total = {"joules": view.report.joules, "seconds": view.report.compute_seconds}[key]
    rows: list[Sequence[Child]] = []
    for op in ops:
        share = getattr(op, key) / total if total else 0.0
        rows.append(
            [
                join(tag("b", op.name), " ", tag("span", f"op {op.op}, {op.phase}", class_="note")),
                amount_text(op.joules, "J"),
                amount_text(op.seconds, "s"),
                join(_bar(share), share_text(share)),
                f"{op.runs:,}",
                short_bytes_text(op.workspace_bytes),
                op.calls or "–",
                op.why,
            ]
        )
    of = "of the energy" if key == "joules" else "of compute time"
    headings = ("op", "energy", "time", of, "runs", "workspace", "calls", "why")
    return table(headings, rows, "lrrlrrll", "ops")


def comparison(view: PlanView) -> Markup:
    """The other ways to get a schedule, where they were tried."""
    if not view.compared:
        return Markup()
    most = max((row.joules or 0.0 for row in view.compared), default=0.0) or 1.0
    rows: list[Sequence[Child]] = [
        [
            tag("b", printable(row.method)) if row.method == "poet" else printable(row.method),
            printable(row.status),
            "" if row.joules is None else amount_text(row.joules, "J"),
            "" if row.joules is None else _bar(row.joules / most),
            "" if row.seconds is None else amount_text(row.seconds, "s"),
            "" if row.peak_bytes is None else short_bytes_text(row.peak_bytes),
            "" if row.recomputed is None else f"{row.recomputed:,}",
            "" if row.paged_bytes is None else short_bytes_text(row.paged_bytes),
            "" if row.solve_seconds is None else f"{row.solve_seconds:.2f} s",
            printable(row.reason),
        ]
        for row in view.compared
    ]
    headings = (
        "method", "status", "energy", "", "time", "RAM peak", "recomputed", "paged", "solved in",
        "remark",
    )  # fmt: skip
    return tag(
        "section",
        tag("h2", "Against other methods"),
        table(headings, rows, "llrlrrrrrl", "compared"),
        class_="card",
    )


def table(
    headings: Sequence[str], rows: Sequence[Sequence[Child]], sides: str, name: str
) -> Markup:
    """A table that scrolls inside its own box. `sides` has an l or an r for each column."""
    kinds = ["right" if side == "r" else None for side in sides]
    head = [
        tag("th", text, scope="col", class_=kind)
        for text, kind in zip(headings, kinds, strict=True)
    ]
    body = [
        tag(
            "tr",
            *(tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)),
        )
        for row in rows
    ]
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_=name)
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=name)
