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
    """Bars, each a share of what is written in all; nothing where nothing is and no C is meant."""
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
    total = sum(written.values())
    note = f"{bytes_text(total)} a step, which wears flash and cards."
    return tag(
        "section",
        tag("h2", "What a step writes to the store"),
        tag("p", note, class_="note"),
        bars(
            (label, nbytes / (total or 1), short_bytes_text(nbytes), "plan")
            for label, nbytes in rows
        ),
        tag("dl", *(join(tag("dt", label), tag("dd", text)) for label, text in beside)),
        class_="card",
        id="wear",
    )
