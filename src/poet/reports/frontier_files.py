"""Frontier files: the same points as a table (.csv), as values (.json) and as pictures.

`.html` is interactive and self-contained: it holds plotly's script and needs no network. `.png` and
`.svg` are still pictures by matplotlib. Curves are steps: between two budgets nothing is known but
that the smaller one's schedule fits.
"""

import csv
import io
from math import log10
from pathlib import Path
from typing import Any

import msgspec

from poet.errors import MissingPackage, PoetError
from poet.planning.frontier import Frontier
from poet.planning.solve import PLANNER
from poet.values.files import write_text

SUFFIXES = (".html", ".csv", ".json", ".png", ".svg")
STYLES: dict[str, tuple[str, str, str]] = {
    # name: colour (Okabe and Ito's, which colour-blind people can tell apart), dash, marker
    "poet": ("#d55e00", "solid", "o"),
    "keep-all": ("#7f7f7f", "dot", "s"),
    "paging": ("#0072b2", "solid", "^"),
    "chen-sqrt": ("#009e73", "dash", "v"),
    "chen-greedy": ("#009e73", "solid", "D"),
    "revolve": ("#cc79a7", "dash", "P"),
    "checkmate": ("#e69f00", "solid", "X"),
    "dtr": ("#56b4e9", "solid", "<"),
    "capuchin": ("#0072b2", "dash", ">"),
    "pofo": ("#cc79a7", "solid", "p"),
    "torch-budget": ("#8c6d31", "dash", "h"),
}
TITLES = {
    "poet": "POET",
    "keep-all": "keep all (PyTorch)",
    "paging": "paging only (optimal)",
    "chen-sqrt": "Chen √n",
    "chen-greedy": "Chen greedy",
    "revolve": "revolve",
    "checkmate": "Checkmate",
    "dtr": "DTR",
    "capuchin": "Capuchin",
    "pofo": "POFO",
    "torch-budget": "PyTorch memory budget",
}
_DRAWN = 0.92
"""The share of all points that the picture has room for."""
_MPL_DASHES = {"solid": "-", "dot": ":", "dash": "--"}


def check_kind(path: Path) -> None:
    """Refuse, before any work is done, a kind of file that cannot be written."""
    if path.suffix not in SUFFIXES:
        raise PoetError(f"cannot write {path}: it must end in one of {', '.join(SUFFIXES)}")
    if path.suffix == ".html":
        _plotly()
    elif path.suffix in (".png", ".svg"):
        _matplotlib()


def write_frontier(found: Frontier, path: Path, force: bool = False) -> None:
    check_kind(path)
    write_text(content_of(found, path.suffix), path, force)


def content_of(found: Frontier, suffix: str) -> str | bytes:
    """The file of one of the kinds in `SUFFIXES`."""
    if suffix == ".csv":
        return _csv(found)
    if suffix == ".json":
        return msgspec.json.format(msgspec.json.encode(found))
    if suffix == ".html":
        return _html(found)
    return _picture(found, suffix.removeprefix("."))


def curves(found: Frontier) -> dict[str, list[tuple[int, float]]]:
    """For each method the budgets at which it has a schedule, and its joules there."""
    return {
        name: [
            (point.ram_bytes, row.joules)
            for point in found.points
            if (row := point.row(name)) is not None and row.joules is not None
        ]
        for name in found.methods
    }


def _csv(found: Frontier) -> str:
    lines = io.StringIO()
    fields = [
        "ram_bytes", "method", "status", "joules", "of_keep_all", "seconds", "peak_bytes",
        "recomputed", "paged_bytes", "bound_joules", "gap", "solve_seconds", "reason",
    ]  # fmt: skip
    table = csv.DictWriter(lines, fields, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for point in found.points:
        for row in point.rows:
            share = None if row.joules is None else row.joules / found.keep_all_joules
            values = msgspec.structs.asdict(row)
            table.writerow({"ram_bytes": point.ram_bytes, "of_keep_all": share, **values})
    return lines.getvalue()


_MANY = 20
"""Budgets that are so many times the smallest are drawn on a logarithmic axis."""


def _scale(found: Frontier) -> tuple[float, str]:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if found.keep_all_bytes >= size:
            return size, unit
    return 1.0, "bytes"


def top_percent(found: Frontier) -> tuple[float, str]:
    """The highest percentage to draw, and in words who is beyond it.

    One method that takes eight times the energy would press all others together.
    """
    shares = {
        name: [joules / found.keep_all_joules * 100 for _, joules in points]
        for name, points in curves(found).items()
        if points
    }
    every = sorted(share for each in shares.values() for share in each)
    if not every:
        return 110.0, ""
    most = every[min(len(every) - 1, int(_DRAWN * len(every)))]
    top = 100 + 1.15 * (max(most, *shares.get(PLANNER, [100.0]), 105.0) - 100)
    beyond = [
        f"{TITLES[name]} (up to {max(each):,.0f} %)"
        for name, each in shares.items()
        if max(each) > top
    ]
    return top, f"Beyond the top: {', '.join(beyond)}" if beyond else ""


def figure(found: Frontier) -> Any:
    """The frontier as a plotly figure."""
    graphs = _plotly()
    size, unit = _scale(found)
    made = graphs.Figure()
    for name, points in curves(found).items():
        if not points:
            continue
        colour, dash, _ = STYLES[name]
        made.add_scatter(
            x=[ram / size for ram, _ in points],
            y=[joules / found.keep_all_joules * 100 for _, joules in points],
            name=TITLES[name],
            mode="lines+markers",
            line={
                "color": colour,
                "dash": dash,
                "shape": "hv",
                "width": 4 if name == PLANNER else 2,
            },
            marker={"size": 9 if name == PLANNER else 6},
            customdata=[[f"{ram:,}", f"{joules:.6g}"] for ram, joules in points],
            hovertemplate=(
                "%{fullData.name}<br>%{customdata[0]} bytes of RAM<br>%{customdata[1]} J, "
                "%{y:.2f} % of keep-all<extra></extra>"
            ),
        )
    is_wide = found.points[-1].ram_bytes > _MANY * found.points[0].ram_bytes
    if (knee := found.knee) is not None:
        place = knee.ram_bytes / size
        made.add_vline(x=place, line={"dash": "dot", "width": 1})
        made.add_annotation(
            x=log10(place) if is_wide else place, y=1.0, yref="paper", text="knee",
            showarrow=False, xanchor="left", yanchor="top",
        )  # fmt: skip
    top, beyond = top_percent(found)
    grid = {"gridcolor": "rgba(128,128,128,0.3)", "zeroline": False}
    made.update_layout(
        title={
            "text": f"{_plain(found.place)}<br>energy of a training step against RAM",
            "subtitle": {"text": beyond},
            "font": {"size": 16},
        },
        xaxis={
            "title": f"RAM budget ({unit})",
            **({"type": "log"} if is_wide else {"rangemode": "tozero"}),
            **grid,
        },
        yaxis={
            "title": "energy (% of keeping everything in RAM)",
            "range": [100 - 0.04 * (top - 100), top],
            **grid,
        },
        legend={"orientation": "h", "yref": "container", "y": 0.0, "yanchor": "bottom"},
        hovermode="closest",
        template="plotly_white",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"t": 90, "r": 15, "l": 60, "b": 150},
    )
    return made


def _html(found: Frontier) -> str:
    page: str = figure(found).to_html(
        include_plotlyjs=True,
        full_html=True,
        default_height="92vh",
        config={"responsive": True, "displaylogo": False},
        post_script=_FOLLOW_SCHEME,
    )
    head = (
        f"<head><title>{_plain(found.graph)}: energy against memory</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>:root{color-scheme:light dark}body{margin:0;background:Canvas}</style>"
    )
    return page.replace("<html>", '<html lang="en">', 1).replace("<head>", head, 1)


_FOLLOW_SCHEME = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function follow() {
  Plotly.relayout("{plot_id}", {"font.color": dark.matches ? "#dddddd" : "#333333"});
}
dark.addEventListener("change", follow);
follow();
"""


def _picture(found: Frontier, kind: str) -> bytes:
    pyplot = _matplotlib()
    size, unit = _scale(found)
    drawn, axes = pyplot.subplots(figsize=(8, 5), dpi=150)
    for name, points in curves(found).items():
        if not points:
            continue
        colour, dash, marker = STYLES[name]
        axes.plot(
            [ram / size for ram, _ in points],
            [joules / found.keep_all_joules * 100 for _, joules in points],
            label=TITLES[name],
            color=colour,
            linestyle=_MPL_DASHES[dash],
            marker=marker,
            markersize=7 if name == PLANNER else 5,
            linewidth=2.5 if name == PLANNER else 1.3,
            drawstyle="steps-post",
            zorder=10 if name == PLANNER else 2,
        )
    if (knee := found.knee) is not None:
        axes.axvline(knee.ram_bytes / size, color="#999999", linestyle=":", linewidth=1)
        axes.annotate(
            "knee", (knee.ram_bytes / size, 1.0), xycoords=("data", "axes fraction"),
            xytext=(3, -12), textcoords="offset points", color="#666666", fontsize=9,
        )  # fmt: skip
    axes.set_xlabel(f"RAM budget ({unit})")
    axes.set_ylabel("energy (% of keeping everything in RAM)")
    axes.set_title(f"{_plain(found.place)}: energy of a training step")
    axes.set_xlim(left=0)
    top, beyond = top_percent(found)
    axes.set_ylim(100 - 0.04 * (top - 100), top)
    if beyond:
        drawn.text(0.99, 0.01, beyond, ha="right", fontsize=7, color="#666666")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    drawn.tight_layout()
    content = io.BytesIO()
    drawn.savefig(content, format=kind)
    pyplot.close(drawn)
    return content.getvalue()


def _plain(text: str) -> str:
    """A name without what a browser or matplotlib would take for markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("$", "")


def _plotly() -> Any:
    try:
        import plotly.graph_objects as graphs
    except ModuleNotFoundError:
        raise MissingPackage("an .html", "plotly") from None
    return graphs


def _matplotlib() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as pyplot
    except ModuleNotFoundError:
        raise MissingPackage("a picture", "matplotlib") from None
    return pyplot
