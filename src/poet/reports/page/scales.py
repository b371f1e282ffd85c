"""Scales: the unit in which an axis is written, by the largest amount on it; and short names."""

from typing import NamedTuple


class Scale(NamedTuple):
    """`unit` amounts to `size` of the base unit."""

    size: float
    unit: str


_BYTES = (Scale(2**40, "TiB"), Scale(2**30, "GiB"), Scale(2**20, "MiB"), Scale(2**10, "KiB"))
_SECONDS = (Scale(1.0, "s"), Scale(1e-3, "ms"), Scale(1e-6, "µs"))


def bytes_scale(most_bytes: int) -> Scale:
    return next((scale for scale in _BYTES if most_bytes >= scale.size), Scale(1, "B"))


def seconds_scale(most_seconds: float) -> Scale:
    return next((s for s in _SECONDS if most_seconds >= s.size), Scale(1e-9, "ns"))


def shortened(text: str, most: int) -> str:
    """A long name without its middle."""
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
