"""Charts for notebooks: RAM over time and the residency map as one Plotly figure.

The page draws the same two with its own scripts, since there they must answer to filters; this is
the quick look that `poet.plot(plan)` gives.
"""

from html import escape
from typing import TYPE_CHECKING, Any

from poet.errors import MissingPackage, PoetError
from poet.reports.page.levels import levels
from poet.reports.page.palette import KINDS, STATES
from poet.reports.page.scales import bytes_scale, seconds_scale, shortened
from poet.reports.page.view import PlanView, look_at
from poet.values.graph import printable
from poet.values.plan import Plan
from poet.values.quantities import amount_text, short_bytes_text
from poet.values.schedule import Compute

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

ROW_PIXELS = 13
MOST_PIXELS = 620
LABEL_LETTERS = 24


def plot(plan: Plan) -> "Figure":
    """RAM over time above, where each tensor is below. Needs plotly."""
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        raise MissingPackage("plotting", "plotly") from None
    if not plan.schedule:
        raise PoetError(
            f"there is nothing to plot: the plan is {plan.status} ({printable(plan.reason)})"
        )
    view = look_at(plan)
    rows = view.large_rows
    map_pixels = max(160, min(MOST_PIXELS, ROW_PIXELS * len(rows)))
    ram_pixels = 300
    share = ram_pixels / (ram_pixels + map_pixels)
    figure = make_subplots(
        rows=2,
        cols=1,
        row_heights=[share, 1 - share],
        vertical_spacing=60 / (ram_pixels + map_pixels),
    )
    for trace in _ram_traces(view):
        figure.add_trace(trace, row=1, col=1)
    for trace in _map_traces(view, rows):
        figure.add_trace(trace, row=2, col=1)
    _lay_out(figure, view, rows, ram_pixels + map_pixels)
    return figure


def _step_text(plan: Plan, at: int | None) -> str:
    if at is None:
        return "start or end of the step"
    instruction = plan.schedule[at]
    if isinstance(instruction, Compute):
        return f"{at}: {plan.graph.op_text(instruction.op)}"
    return f"{at}: {plan.graph.tensor_text(instruction.tensor)}"


def _ram_traces(view: PlanView) -> list[dict[str, Any]]:
    found = levels(view.history, "seconds")
    size, _ = bytes_scale(view.report.peak_bytes)
    second, _ = seconds_scale(view.history.seconds)
    x = [place / second for place in found.places]
    traces: list[dict[str, Any]] = []
    for kind, edge in found.stacked_bytes().items():
        paint = KINDS[kind]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": paint.label,
                "x": x,
                "y": [level / size for level in edge],
                "line": {"shape": "hv", "width": 0.5, "color": "white"},
                "fill": "tonexty" if traces else "tozeroy",
                "fillcolor": paint.light,
                "fillpattern": {"shape": paint.pattern, "bgcolor": paint.light, "fgcolor": "white"},
                "hoverinfo": "skip",
                "legend": "legend",
            }
        )
    total = found.total_bytes
    texts = [
        f"{escape(_step_text(view.plan, at))}<br>{short_bytes_text(level)} in RAM"
        for at, level in zip(found.instructions, total, strict=True)
    ]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "total",
            "x": x,
            "y": [level / size for level in total],
            "line": {"shape": "hv", "width": 1, "color": "#17212b"},
            "hovertext": texts,
            "hoverinfo": "text",
            "showlegend": False,
        }
    )
    return traces


def _map_traces(view: PlanView, rows: list[int]) -> list[dict[str, Any]]:
    tensors = view.plan.graph.tensors
    traces: dict[str, dict[str, Any]] = {
        state: {
            "type": "bar",
            "orientation": "h",
            "name": paint.label,
            "x": [],
            "base": [],
            "y": [],
            "width": 0.86 if len(rows) <= 90 else 1,
            "hovertext": [],
            "hoverinfo": "text",
            "textposition": "none",
            "marker": {
                "color": paint.light,
                "line": {"width": 0},
                "pattern": {"shape": paint.pattern, "fgcolor": "white", "fillmode": "overlay"},
            },
            "legend": "legend2",
        }
        for state, paint in STATES.items()
    }
    for y, i in enumerate(rows):
        name = f"{escape(printable(tensors[i].name))}<br>{short_bytes_text(tensors[i].nbytes)}"
        for state, start, end in view.history.slot_spans[i]:
            trace = traces[state]
            trace["base"].append(start)
            trace["x"].append(end - start)
            trace["y"].append(y)
            where = f"instructions {start:.0f} to {end - 1:.0f}"
            trace["hovertext"].append(f"{name}<br><b>{STATES[state].label}</b>, {where}")
    return [trace for trace in traces.values() if trace["y"]]


def _lay_out(figure: "Figure", view: PlanView, rows: list[int], pixels: int) -> None:
    plan, report = view.plan, view.report
    size, byte_unit = bytes_scale(report.peak_bytes)
    second, second_unit = seconds_scale(view.history.seconds)
    title = (
        f"{escape(printable(plan.graph.name))}: {amount_text(report.joules, 'J')}, "
        f"{amount_text(report.seconds, 's')}, peak {short_bytes_text(report.peak_bytes)}"
    )
    every = -(-len(rows) * ROW_PIXELS // MOST_PIXELS) or 1
    ticks = list(range(0, len(rows), every))
    names = [shortened(printable(plan.graph.tensors[rows[y]].name), LABEL_LETTERS) for y in ticks]
    figure.update_layout(
        template="plotly_white",
        title={"text": title, "x": 0.01},
        height=pixels + 170,
        barmode="overlay",
        hovermode="closest",
        legend={"x": 1.01, "y": 1, "title": {"text": "bytes of"}, "traceorder": "normal"},
        legend2={"x": 1.01, "y": 0.55, "title": {"text": "a tensor is"}},
        margin={"l": 180, "r": 20, "t": 60, "b": 50},
    )
    figure.update_xaxes(title_text=f"time in {second_unit}", row=1, col=1)
    figure.update_yaxes(title_text=f"RAM in {byte_unit}", rangemode="tozero", row=1, col=1)
    end = len(view.history.events)
    figure.update_xaxes(title_text="instruction", range=[0, end], row=2, col=1)
    figure.update_yaxes(
        range=[len(rows) - 0.5, -0.5],
        tickvals=ticks,
        ticktext=[escape(name) for name in names],
        tickfont={"size": 10},
        showgrid=False,
        row=2,
        col=1,
    )
    budget = plan.budget.ram_bytes
    if budget is not None and budget <= 2 * report.peak_bytes:
        figure.add_hline(
            y=budget / size,
            line={"dash": "dash", "color": "#b3261e"},
            annotation_text=f"budget {short_bytes_text(budget)}",
            row=1,
            col=1,
        )
    figure.add_annotation(
        x=view.peak_seconds / second,
        y=report.peak_bytes / size,
        text=f"peak {short_bytes_text(report.peak_bytes)}",
        row=1,
        col=1,
    )
