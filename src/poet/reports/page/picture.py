"""A still picture of a plan: RAM over time above, where each tensor is below. No browser needed."""

import io
import warnings
from typing import TYPE_CHECKING

from poet.errors import MissingPackage, PoetError
from poet.reports.page.levels import levels
from poet.reports.page.palette import KINDS, STATES, TensorState
from poet.reports.page.scales import bytes_scale, seconds_scale, shortened
from poet.reports.page.view import PlanView
from poet.values.graph import printable
from poet.values.quantities import amount_text, short_bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HATCHES = {"/": "///", "\\": "\\\\\\", "|": "|||", "x": "xxx", ".": "..."}
_MOST_LABELS = 48
_ALARM = "#b3261e"


def picture(view: PlanView) -> bytes:
    """A PNG. Needs matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage("a picture", "matplotlib") from None
    if not view.history.events:
        raise PoetError(
            f"there is nothing to draw: the plan is {view.plan.status} "
            f"({printable(view.plan.reason)})"
        )
    with rc_context({"hatch.linewidth": 0.6}), warnings.catch_warnings():
        # A name may hold letters that the font lacks; the picture shows boxes for them.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(12, 10.5), dpi=140, layout="constrained")
        FigureCanvasAgg(figure)
        above, below = figure.subplots(2, 1, height_ratios=[1, 1.7])
        _draw_ram(above, view)
        _draw_map(below, view)
        report = view.report
        figure.suptitle(
            f"{shortened(printable(view.plan.graph.name), 60)}: "
            f"{amount_text(report.joules, 'J')}, {amount_text(report.seconds, 's')}, "
            f"peak {short_bytes_text(report.peak_bytes)}",
            parse_math=False,
        )
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()


def _draw_ram(axes: "Axes", view: PlanView) -> None:
    found = levels(view.history, "seconds")
    size, unit = bytes_scale(view.report.peak_bytes)
    second, second_unit = seconds_scale(view.history.seconds)
    x = [place / second for place in found.places]
    below = [0.0] * len(x)
    for kind, edge in found.stacked_bytes().items():
        paint, upper = KINDS[kind], [level / size for level in edge]
        axes.fill_between(
            x,
            below,
            upper,
            step="post",
            facecolor=paint.light,
            edgecolor="white",
            linewidth=0,
            hatch=_HATCHES.get(paint.pattern),
            label=paint.label,
        )
        below = upper
    axes.step(x, below, where="post", color="#17212b", linewidth=0.8)
    budget = view.plan.budget.ram_bytes
    if budget is not None and budget <= 2 * view.report.peak_bytes:
        label = f"budget {short_bytes_text(budget)}"
        axes.axhline(budget / size, color=_ALARM, linestyle="--", label=label)
    peak, at = view.report.peak_bytes / size, view.peak_seconds / second
    axes.plot([at], [peak], "o", color="#17212b", markersize=5)
    axes.annotate(
        f"peak {short_bytes_text(view.report.peak_bytes)}, {shortened(view.peak_text, 70)}",
        (at, peak),
        xytext=(0, 8),
        textcoords="offset points",
        ha="left" if at < x[-1] / 2 else "right",
        fontsize=8,
        parse_math=False,
    )
    axes.set_xlim(0, x[-1] or 1)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.15 * peak))
    axes.set_xlabel(f"time in {second_unit}")
    axes.set_ylabel(f"RAM in {unit}")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _draw_map(axes: "Axes", view: PlanView) -> None:
    from matplotlib.collections import PolyCollection

    tensors, history = view.plan.graph.tensors, view.history
    rows = view.large_rows
    half = 0.5 if len(rows) > 90 else 0.42
    boxes: dict[TensorState, list[list[tuple[float, float]]]] = {state: [] for state in STATES}
    for y, i in enumerate(rows):
        for state, start, end in history.slot_spans[i]:
            low, high = y - half, y + half
            boxes[state].append([(start, low), (end, low), (end, high), (start, high)])
    for state, paint in STATES.items():
        if boxes[state]:
            axes.add_collection(
                PolyCollection(
                    boxes[state],
                    facecolor=paint.light,
                    edgecolor="white",
                    linewidth=0,
                    hatch=_HATCHES.get(paint.pattern),
                    label=paint.label,
                )
            )
    ticks = range(0, len(rows), max(1, -(-len(rows) // _MOST_LABELS)))
    axes.set_yticks(
        list(ticks),
        [shortened(printable(tensors[rows[y]].name), 28) for y in ticks],
        fontsize=7,
        parse_math=False,
    )
    axes.set_xlim(0, len(history.events))
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axes.set_xlabel("instruction")
    folded = len(view.rows) - len(rows)
    note = f" ({folded:,} small ones folded)" if folded else ""
    axes.set_ylabel(f"tensor, by first use{note}")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
