"""Page: a sweep as small multiples in one HTML file, which opens anywhere and asks nobody.

A figure for each model and device: energy against RAM, a line for each method. Below it, for who
wants figures, a table with every cell, also those without a schedule. Figures are drawn here; what
moves is done by the browser without a script.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import groupby

from poet.planning.solve import PLANNER
from poet.reports.frontier_files import STYLES, TITLES
from poet.reports.page.document import document, theme_button, without_charts
from poet.reports.page.markup import Child, Markup, join, tag
from poet.reports.page.sections import table
from poet.sweeps.figure import figure
from poet.sweeps.results import Cell, CurveResults, Outcome, Results
from poet.values.graph import printable
from poet.values.quantities import amount_text, short_bytes_text

_WORDS: dict[Outcome, str] = {
    "found": "with a schedule",
    "infeasible": "proven infeasible",
    "none found": "where none was found",
    "lost": "lost",
    "not asked yet": "not asked yet",
}


def page(results: Results, name: str) -> str:
    """The whole file."""
    methods = list(dict.fromkeys(m for curve in results.curves for m in curve.methods))
    models = Counter(curve.model for curve in results.curves)
    groups = groupby(results.curves, key=lambda c: c.model if models[c.model] > 1 else "")
    body = join(
        _header(results, name),
        _warning(results),
        _legend(methods),
        *(_model(model, list(curves)) for model, curves in groups),
    )
    return document(
        f"{printable(name)}: a sweep by POET",
        body,
        without_charts(),
        style=(resources.files(__package__) / "page.css").read_text(encoding="utf-8")
        + "\n".join(_style(method) for method in methods),
    )


def _style(method: str) -> str:
    """A method's colour, and how its box in the legend hides it. Methods are POET's own names."""
    colour, _, _ = STYLES[method]
    hidden = f"main:has(#show-{method}:not(:checked)) .line.{method} {{ display: none; }}"
    return f".{method} {{ --paint: {colour}; }}\n{hidden}\n"


def _header(results: Results, name: str) -> Markup:
    counts = [
        f"{results.count(outcome):,} {text}"
        for outcome, text in _WORDS.items()
        if results.count(outcome)
    ]
    return tag(
        "header",
        tag(
            "div",
            tag("p", "A sweep by POET: energy of a training step against RAM", class_="kicker"),
            tag("h1", printable(name)),
            tag("p", f"{len(results.cells):,} cells: {', '.join(counts)}.", class_="where"),
        ),
        theme_button(),
    )


def _warning(results: Results) -> Markup:
    texts = [*results.surprises]
    if results.interrupted:
        texts.insert(0, "The sweep was interrupted: the same command goes on.")
    if not texts:
        return Markup()
    items = [tag("li", printable(text)) for text in texts]
    return tag("section", tag("h2", "To know"), tag("ul", *items), class_="card alarm")


def _legend(methods: Iterable[str]) -> Markup:
    entries = [
        tag(
            "li",
            tag(
                "label",
                tag("input", type="checkbox", checked=True, id=f"show-{method}"),
                _sample(method),
                TITLES[method],
            ),
        )
        for method in methods
    ]
    note = (
        "Energy as a share of what it takes with everything kept in RAM. Between two budgets "
        "nothing is known but that the smaller one's schedule fits. Point at a mark for its "
        "figures."
    )
    return tag(
        "section",
        tag("h2", "Methods"),
        tag("ul", *entries, class_="legend"),
        tag("p", note, class_="note"),
        class_="card methods",
    )


def _sample(method: str) -> Markup:
    line = tag("path", d="M0 6H28", class_="curve", data_dash=STYLES[method][1])
    return tag(
        "svg", line, viewBox="0 0 28 12", width="28", height="12", aria_hidden="true",
        class_=f"{method} sample" + (" planner" if method == PLANNER else ""),
    )  # fmt: skip


def _model(model: str, curves: Sequence[CurveResults]) -> Markup:
    """A model on its devices, or several that have one each."""
    several = not model
    return tag(
        "section",
        tag("h2", "Models with one device, or costs of their own" if several else printable(model)),
        tag("div", *(_curve(curve, several) for curve in curves), class_="multiples"),
        class_="card",
    )


def _curve(curve: CurveResults, is_named: bool) -> Markup:
    title = curve.device or curve.costs
    if is_named:
        title = curve.model + (f" on {curve.device}" if curve.device else "")
    trouble = printable(curve.trouble)
    drawn = tag("p", trouble, class_="note") if trouble else figure(curve)
    kept = (
        f"All in RAM: {short_bytes_text(curve.keep_all_bytes)}, "
        f"{amount_text(curve.keep_all_joules, 'J')}."
    )
    return tag(
        "figure",
        tag("h3", printable(title)),
        drawn,
        tag("figcaption", kept, class_="note"),
        _cells(curve) if curve.points else None,
    )


def _cells(curve: CurveResults) -> Markup:
    headings = ["RAM", *(TITLES[method] for method in curve.methods)]
    rows: list[Sequence[Child]] = [
        [f"{point.ram_bytes:,}", *(_cell(cell, curve) for cell in point.cells)]
        for point in curve.points
    ]
    lost = [
        tag("li", f"{cell.row.method} at {point.ram_bytes:,}: {printable(cell.row.reason)}")
        for point in curve.points
        for cell in point.cells
        if cell.outcome == "lost"
    ]
    return tag(
        "details",
        tag("summary", "Figures"),
        table(headings, rows, "r" * len(headings), f"{curve.model} {curve.device}".strip()),
        tag("ul", *lost, class_="note") if lost else None,
    )


def _cell(cell: Cell, curve: CurveResults) -> Child:
    row = cell.row
    if row.joules is None or not curve.keep_all_joules:
        return tag("span", cell.outcome, class_="note", title=printable(row.reason))
    text = f"{row.joules / curve.keep_all_joules:.2%}"
    if row.method != PLANNER or row.gap is None:
        return text
    return join(tag("b", text), f" (gap {row.gap:.2%})")
