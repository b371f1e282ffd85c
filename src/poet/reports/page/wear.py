"""Wear: what a step writes to the store, tensor by tensor, and what C writes beside it."""

from poet.reports.explain import wear_rows
from poet.reports.page.markup import Markup, join, tag
from poet.reports.page.sections import bars
from poet.reports.page.view import PlanView
from poet.values.graph import printable
from poet.values.quantities import bytes_text, short_bytes_text

_MOST = 10
"""Tensors with a bar of their own."""


def wear(view: PlanView) -> Markup:
    """Bars of bytes a step; nothing where nothing is written and no C is planned."""
    beside = [(label, text) for label, text in wear_rows(view.plan) if label != "written"]
    written = view.plan.written
    if not written and not beside:
        return Markup()
    tensors = view.plan.graph.tensors
    order = sorted(written.items(), key=lambda item: (-item[1], item[0]))
    rows = [(printable(tensors[i].name), nbytes) for i, nbytes in order[:_MOST]]
    rest = order[_MOST:]
    if rest:
        rows.append((f"{len(rest):,} more", sum(nbytes for _, nbytes in rest)))
    most = max((nbytes for _, nbytes in rows), default=1) or 1
    total = f"{bytes_text(sum(written.values()))} a step: flash and cards wear with each."
    return tag(
        "section",
        tag("h2", "What a step writes to the store"),
        tag("p", total, class_="note"),
        bars((label, nbytes / most, short_bytes_text(nbytes), "plan") for label, nbytes in rows),
        tag("dl", *(join(tag("dt", label), tag("dd", text)) for label, text in beside)),
        class_="card",
        id="wear",
    )
