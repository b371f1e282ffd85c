"""Source: Python text in which nothing stands that was not looked at.

A tape is Python that is written from a graph, and a graph may come from a file. So no text is ever
pasted: `written` fills the gaps of a template that is POET's own, and refuses whatever is neither
a number, an ordinary identifier, nor text that was made here. Constants go through `literal`.
"""

import keyword
from collections.abc import Iterable
from math import isfinite
from typing import Any

from poet.errors import PoetError


class Source(str):
    """Text that this module has made."""

    __slots__ = ()


def written(template: str, *parts: int | str) -> Source:
    """The template with its gaps, `{}`, filled: by numbers, identifiers and `Source`."""
    return Source(template.format(*map(_checked, parts)))


def joined(parts: Iterable[Source]) -> Source:
    """Several, with commas between them."""
    return Source(", ".join(map(_checked, parts)))


def literal(value: Any) -> Source:
    """A constant of plain JSON as Python spells it."""
    if value is None or isinstance(value, bool | str):
        return Source(repr(value))
    if isinstance(value, int | float) and isfinite(value):
        return Source(repr(value))
    raise PoetError(f"{str(value)[:60]!r} is not a constant that a step can have")


def is_name(text: str) -> bool:
    """Whether a text can only be a name: an identifier in ASCII that is no word of Python's."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


def _checked(part: Any) -> str:
    if isinstance(part, Source):
        return part
    if type(part) is int and part >= 0:
        return str(part)
    if isinstance(part, str) and is_name(part):
        return part
    raise PoetError(f"{str(part)[:60]!r} cannot stand in the source of a step: it is no name")
