"""Progress: what long work tells whoever waits for it."""

from collections.abc import Callable

import msgspec


class SearchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a schedule maker has come."""

    seconds: float
    joules: float | None
    bound_joules: float
    placing: bool = False
    """Whether it is addresses that are looked for, for a schedule that is found."""


CountProgress = Callable[[str, int, int], None]
"""Told what is being done, and how many parts of it are done, of how many."""
