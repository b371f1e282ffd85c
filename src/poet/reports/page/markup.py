"""Markup: HTML that is safe because of its type.

Plain text becomes markup only by being escaped, so a name from a plan cannot become a tag, whoever
forgets what. `tag` is all there is.
"""

from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Markup | None


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """`tag("p", "a < b", class_="note")`. An attribute may be true (bare), or None (left out).

    Underscores in attribute names stand for dashes; one at the end is dropped.
    """
    written = "".join(
        f" {_attribute(key)}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inside = join(*children)
    return Markup(f"<{name}{written}>{inside}" + ("" if name in _VOID else f"</{name}>"))


_VOID = ("input", "meta", "br")


def join(*children: Child) -> Markup:
    """Children one after the other, those that are plain text escaped."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else escape(child)
            for child in children
            if child is not None
        )
    )


def _attribute(key: str) -> str:
    return key.removesuffix("_").replace("_", "-")
