"""The page: one HTML file with everything inside, which opens anywhere and asks nobody.

Words and tables are written here; two charts are drawn by the scripts in this folder from a payload
of JSON.
"""

from collections.abc import Iterable

from poet.errors import MissingPackage
from poet.reports.page import sections
from poet.reports.page.document import document, own_file, without_charts
from poet.reports.page.markup import Markup, join, tag
from poet.reports.page.palette import KINDS, STATES, Paint
from poet.reports.page.payload import encoded
from poet.reports.page.view import PlanView
from poet.reports.page.wear import wear
from poet.values.graph import printable
from poet.values.quantities import short_bytes_text

_SCRIPTS = ("amounts.js", "units.js", "ram.js", "map.js", "page.js", "framed.js")


def page(view: PlanView) -> str:
    """The whole file."""
    scripts = without_charts()
    if view.history.events:
        scripts = [_plotly(), "\n".join(own_file(name) for name in _SCRIPTS)]
    parts = [sections.header(view), sections.warnings(view)]
    if view.has_schedule:
        parts += [sections.tiles(view), sections.proof(view)]
        if view.history.events:
            parts += [_ram(view), _map(view)]
        parts += [sections.split(view), sections.costly(view), sections.comparison(view)]
        parts += [sections.ladder(view), wear(view), sections.asked_and_guaranteed(view)]
    else:
        parts += [sections.failure(view)]
        if view.plan.bound is not None:
            parts.append(sections.proof(view))
        parts.append(sections.ladder(view))
        parts += [sections.asked_and_guaranteed(view), sections.comparison(view)]
    title = f"{printable(view.plan.graph.name)}: a plan by POET"
    data = tag("script", Markup(encoded(view)), type="application/json", id="data")
    return document(title, join(*parts), scripts, data if view.history.events else None)


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingPackage("a page", "plotly") from None
    return str(get_plotlyjs())


def _ram(view: PlanView) -> Markup:
    used = {kind for change in view.history.changes for kind, _ in change.deltas_bytes}
    peak = f"The peak of {short_bytes_text(view.report.peak_bytes)} is at {view.peak_text}."
    return tag(
        "section",
        tag("h2", "RAM over the step"),
        tag(
            "div",
            _switch("ram", "seconds"),
            _whole_step(),
            class_="controls",
        ),
        tag(
            "figure",
            tag("div", id="ram", class_="chart"),
            _legend(paint for kind, paint in KINDS.items() if kind in used),
            tag("figcaption", peak, " ", tag("span", id="ram-note"), class_="note"),
        ),
        tag(
            "div",
            tag("label", "Step through", for_="cursor"),
            tag(
                "input",
                type="range",
                id="cursor",
                min="0",
                max=str(len(view.history.events) - 1),
                value=str(view.report.peak_instruction or 0),
            ),
            class_="cursor",
        ),
        tag("div", id="readout", class_="readout"),
        class_="card",
        id="ram-section",
    )


def _switch(chart: str, pressed: str) -> Markup:
    buttons = [
        tag(
            "button",
            label,
            type="button",
            data_chart=chart,
            data_axis=axis,
            aria_pressed="true" if axis == pressed else "false",
        )
        for axis, label in (("seconds", "by time"), ("slots", "by instruction"))
    ]
    return tag("div", *buttons, class_="switch", role="group", aria_label="Horizontal axis")


def _whole_step() -> Markup:
    return tag("button", "Whole step", type="button", data_reset=True, class_="quiet")


def _map(view: PlanView) -> Markup:
    tensors, history = view.plan.graph.tensors, view.history
    present = {tensors[i].role for i in view.rows}
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", checked=True, name="kind", value=str(n)),
            " ",
            paint.label,
            class_="chip",
        )
        for n, (kind, paint) in enumerate(KINDS.items())
        if kind in present
    ]
    peak = view.report.peak_bytes
    sizes = [(0, "all sizes"), (view.fold_bytes, "0.1 % of the peak")]
    sizes += [(peak // 100, "1 % of the peak"), (peak // 10, "10 % of the peak")]
    options = [
        tag(
            "option",
            label if not nbytes else f"from {short_bytes_text(nbytes)} ({label})",
            value=str(nbytes),
            selected=n == 1,
        )
        for n, (nbytes, label) in enumerate(sizes)
    ]
    used = {span.state for spans in history.slot_spans for span in spans}
    zoom = [
        tag("button", sign, type="button", data_zoom=factor, aria_label=label, class_="quiet")
        for sign, factor, label in (
            ("+", "0.5", "Zoom into the rows"),
            ("−", "2", "Zoom out of the rows"),
        )
    ]
    return tag(
        "section",
        tag("h2", "Where each tensor is"),
        tag(
            "div",
            _switch("map", "slots"),
            _whole_step(),
            tag("div", *zoom, class_="zoom"),
            class_="controls",
        ),
        tag(
            "div",
            tag("fieldset", tag("legend", "Roles"), *boxes),
            tag("label", "Sizes ", tag("select", *options, id="sizes")),
            tag("label", "Name ", tag("input", type="search", id="name", placeholder="contains")),
            class_="controls",
        ),
        tag("p", id="folded", class_="note", role="status"),
        tag(
            "figure",
            tag("div", id="map", class_="chart"),
            _legend(
                (paint for state, paint in STATES.items() if state in used),
                "nowhere: not made yet, or freed",
            ),
            tag(
                "figcaption",
                "A row is a tensor, in the order of first use; the step runs from left to right. "
                "Hover a row for its name; drag to zoom; double-click to see all again.",
                class_="note",
            ),
        ),
        class_="card",
        id="map-section",
    )


def _legend(paints: Iterable[Paint], nothing: str | None = None) -> Markup:
    entries = [
        tag(
            "li",
            tag(
                "span",
                class_="swatch",
                style=f"--light:{paint.light};--dark:{paint.dark}",
                data_pattern=paint.pattern or None,
            ),
            paint.label,
        )
        for paint in paints
    ]
    if nothing is not None:
        entries.append(tag("li", tag("span", class_="swatch empty"), nothing))
    return tag("ul", *entries, class_="legend")
