"""Printed text against the page's: words and whole numbers to the letter, figures by their meaning.

Sums in another order round differently, and every processor has its own order: it decides how wide
PyTorch adds up and which of two plans of the same energy a solver meets first. A figure that this
can touch is one of the kinds in `TOUCHED`, and may be so many times larger or smaller than the
page's. Everything else, byte counts above all, must be the page's own.
"""

import re
from typing import NamedTuple

NUMBER = r"(?P<figure>\d[\d,]*\.\d+(?:e[+-]\d+)?)"


class Kind(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    apart: float
    """The most that the larger may be of the smaller."""


def _kind(name: str, before: str, after: str, apart: float) -> Kind:
    return Kind(name, re.compile(rf"(?m){before}{NUMBER}{after}"), apart)


TOUCHED = (
    _kind("a loss", r"^loss of step \d+ +", "$", 1.00001),
    # As far apart as two plans may be that the planner takes for equally good, and a last digit.
    _kind("joules or seconds", r"(?<![\d.,])", r"(?= [nµmkMG]?[Js]\b)", 1.001),
    _kind("a share of keep-all's", r"(?<![\d.,])(?=\d+\.\d\d%)", "(?=%)", 1.001),
    # Rounding and nothing else, of which only the size means something.
    _kind("a distance from PyTorch", "", r"(?= of their change apart$)", 2.0),
    _kind("rounding by rounding", "", r"(?= times PyTorch's$)", 2.0),
)


class Figure(NamedTuple):
    at: int
    kind: Kind
    text: str

    @property
    def value(self) -> float:
        return float(self.text.replace(",", ""))

    def is_near(self, other: "Figure") -> bool:
        low, high = sorted((self.value, other.value))
        return high == low or high <= self.kind.apart * low


def figures(text: str) -> list[Figure]:
    """Those that rounding can touch, as they stand in the text."""
    found = (
        Figure(match.start("figure"), kind, match["figure"])
        for kind in TOUCHED
        for match in kind.pattern.finditer(text)
    )
    return sorted(found, key=lambda figure: figure.at)


def words(text: str) -> str:
    """The text with the kinds of such figures in their places."""
    for figure in reversed(figures(text)):
        end = figure.at + len(figure.text)
        text = f"{text[: figure.at]}<{figure.kind.name}>{text[end:]}"
    return text


def far_apart(found: str, told: str) -> list[str]:
    """The figures that differ in meaning, of two texts with the same `words`."""
    return [
        f"{mine.kind.name}: {mine.text}, on the page {other.text}"
        for mine, other in zip(figures(found), figures(told), strict=True)
        if not mine.is_near(other)
    ]
