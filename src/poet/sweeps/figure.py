"""Figure: one curve of a sweep as a small drawing."""

from math import log

from poet.planning.solve import PLANNER
from poet.reports.frontier_files import STYLES, TITLES, curves, top_percent
from poet.reports.page.markup import Markup, join, tag
from poet.sweeps.results import CurveResults
from poet.values.graph import printable
from poet.values.quantities import amount_text, short_bytes_text

WIDTH, HEIGHT = 340, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 8, 6, 38
_EDGE = 5
"""Marks on the edge are not cut."""
_MANY = 20
"""Budgets that are so many times the smallest are drawn on a logarithmic axis."""


class _Scales:
    """Where amounts are in the drawing."""

    def __init__(self, least: int, most: int, low: float, high: float) -> None:
        self.least, self.most, self.low, self.high = least, max(most, least + 1), low, high
        self.is_wide = most > _MANY * max(1, least)
        self.width, self.height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def x(self, ram_bytes: int) -> float:
        share = (ram_bytes - self.least) / (self.most - self.least)
        if self.is_wide:
            least = max(1, self.least)
            share = log(max(1, ram_bytes) / least) / log(self.most / least)
        return _EDGE + share * (self.width - 2 * _EDGE)

    def y(self, percent: float) -> float:
        share = (percent - self.low) / (self.high - self.low)
        return self.height - _EDGE - share * (self.height - 2 * _EDGE)


def figure(curve: CurveResults) -> Markup:
    """Energy against RAM: steps, since between two budgets nothing is known but that the smaller
    one's schedule fits."""
    found = curve.frontier()
    lines = {name: points for name, points in curves(found).items() if points}
    if not lines or not curve.keep_all_joules:
        return tag("p", "No method has a schedule at these budgets.", class_="note")
    high, beyond = top_percent(found)
    shares = [joules / curve.keep_all_joules for points in lines.values() for _, joules in points]
    low = min(100.0, 100 * min(shares))
    scales = _Scales(found.points[0].ram_bytes, found.points[-1].ram_bytes, low, high)
    ordered = sorted(lines, key=lambda name: name == PLANNER)  # the last lies on top
    plot = tag(
        "svg",
        *(_line(name, lines[name], curve, scales) for name in ordered),
        x=str(_LEFT), y=str(_TOP), width=str(scales.width), height=str(scales.height),
    )  # fmt: skip
    label = f"energy against RAM, {printable(curve.place)}, {len(found.points)} budgets"
    drawn = tag(
        "svg", _axes(scales), plot,
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label, class_="small",
    )  # fmt: skip
    return join(drawn, tag("p", printable(beyond), class_="note beyond") if beyond else None)


def _line(
    name: str, points: list[tuple[int, float]], curve: CurveResults, scales: _Scales
) -> Markup:
    places = [
        (scales.x(ram_bytes), scales.y(100 * joules / curve.keep_all_joules))
        for ram_bytes, joules in points
    ]
    (x, y), *rest = places
    path = f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)
    marks = [
        tag(
            "circle",
            tag(
                "title",
                f"{TITLES[name]}, {ram_bytes:,} bytes: {amount_text(joules, 'J')}, "
                f"{joules / curve.keep_all_joules:.2%}",
            ),
            cx=f"{x:.1f}", cy=f"{y:.1f}", r="3" if name == PLANNER else "2",
        )
        for (x, y), (ram_bytes, joules) in zip(places, points, strict=True)
    ]  # fmt: skip
    return tag(
        "g",
        tag("path", d=path, class_="curve", data_dash=STYLES[name][1]),
        *marks,
        class_=f"line {name}" + (" planner" if name == PLANNER else ""),
    )


def _axes(scales: _Scales) -> Markup:
    bottom, right = _TOP + scales.height, _LEFT + scales.width
    parts = []
    for percent in (scales.low, (scales.low + scales.high) / 2, scales.high):
        y = _TOP + scales.y(percent)
        parts.append(tag("path", d=f"M{_LEFT} {y:.1f}H{right}", class_="grid"))
        text = f"{percent:,.0f} %" if scales.high - scales.low > 8 else f"{percent:,.1f} %"
        parts.append(tag("text", text, x=str(_LEFT - 5), y=f"{y + 3.5:.1f}", text_anchor="end"))
    parts.append(tag("path", d=f"M{_LEFT} {bottom}H{right}", class_="axis"))
    ends = ((scales.least, "start", _LEFT), (scales.most, "end", right))
    for ram_bytes, anchor, x in ends:
        text = short_bytes_text(ram_bytes)
        parts.append(tag("text", text, x=str(x), y=str(bottom + 15), text_anchor=anchor))
    title = "RAM" + (", logarithmic" if scales.is_wide else "")
    middle = str((_LEFT + right) // 2)
    parts.append(tag("text", title, x=middle, y=str(bottom + 30), text_anchor="middle"))
    return tag("g", *parts, class_="axes")
