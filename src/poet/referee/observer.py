"""Observers: whoever wants to see a replay happen, not only what it came to.

The referee alone knows what an instruction does. An observer is told: where everything is at the
start, then of each instruction that the rules allow what it did to which tensors, and when. The
telling ends where the replay ends, so that what cannot happen is never told.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from poet.referee.clocks import Instant
from poet.values.graph import InPlace

Place = Literal["ram", "store", "both"]
PLACES: dict[tuple[bool, bool], Place | None] = {
    (True, True): "both",
    (True, False): "ram",
    (False, True): "store",
    (False, False): None,
}
"""By whether a tensor is in RAM and whether it is in the store."""
Places = Mapping[int, Place | None]
"""By tensor; None is nowhere."""


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """A run of an op. Bytes come at `begin` and go at `end`."""

    op: int
    recomputed: bool
    made: tuple[int, ...]
    """The outputs that were missing, wherever the run puts them."""
    brought: tuple[int, ...]
    """Those of them that take bytes of their own in RAM."""
    second_copies: tuple[int, ...]
    """Outputs that were in RAM already: the copy made now is workspace."""
    taken_over: tuple[InPlace, ...]
    """Outputs that sit in the bytes of an input, which are theirs from `end` on."""
    leaving: tuple[int, ...]
    """Consumed inputs whose bytes nobody takes over."""
    streamed_in: tuple[int, ...]
    workspace_bytes: int
    begin: Instant
    end: Instant
    places: Places
    """Afterwards, of every tensor that the run made, consumed, streamed or overwrote."""


class Paged(msgspec.Struct, frozen=True, kw_only=True):
    """A page-out or a page-in. The bytes of a page-in come when it is `issued`."""

    tensor: int
    issued: Instant
    begin: Instant
    end: Instant
    places: Places
    """Afterwards, of this tensor and of the one that it overwrote in the store."""


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """A free. The bytes go at `end`, which transfers under way may delay."""

    tensor: int
    end: Instant
    place: Place | None


class Observer:
    """Override what you want to hear. `at` is the instruction's place in the schedule."""

    def on_start(self, places: Places) -> None:
        """Where the tensors are that exist when the step starts."""

    def on_compute(self, at: int, run: Computed) -> None: ...

    def on_page_out(self, at: int, page: Paged) -> None: ...

    def on_page_in(self, at: int, page: Paged) -> None: ...

    def on_free(self, at: int, free: Freed) -> None: ...
