"""BoardProfile: what each call takes on a microcontroller, and what the board makes of it.

Where `Profile` is of the ops of one graph on one machine, this is of calls: a kernel on given
shapes, by its signature (`poet.calls.signature`). So it gives costs for every graph of a model:
with ops merged, apart, or with their updates fused. It is a value: read and written as JSON.
"""

from functools import cached_property
from typing import Literal

import msgspec

from poet.values.device import MAX_AMOUNT, Device
from poet.values.graph import check_range

Origin = Literal["counted", "measured", "fitted"]
"""Instructions that an emulator counted; a board's own clock; from other calls of the kind."""


class CallCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel on given shapes: instructions, or the seconds of a real board."""

    signature: str
    kind: str
    shapes: str
    origin: Origin
    instructions: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.instructions is None) == (self.seconds is None):
            raise ValueError("a call has either instructions or seconds")
        for field in ("instructions", "seconds"):
            value = getattr(self, field)
            if value is not None:
                check_range(field, value, MAX_AMOUNT)


class TiledCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An op piece by piece, in some blocks: how many times the instructions of its calls whole."""

    op: str
    way: str
    """What the op and the way are alike by (`poet.calls.signature`)."""
    blocks: int
    times: float

    def __post_init__(self) -> None:
        check_range("blocks", self.blocks, MAX_AMOUNT)
        check_range("times", self.times, MAX_AMOUNT)


class BoardProfile(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    dict=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="poet-board-profile/1",
):
    """The calls of a model on a board. `device` has the weights that make instructions seconds and
    joules, `compiler` says what the kernels were built with."""

    model: str
    device: Device
    compiler: str
    calls: tuple[CallCost, ...]
    tiled: tuple[TiledCost, ...] = ()

    def __post_init__(self) -> None:
        if len({call.signature for call in self.calls}) < len(self.calls):
            raise ValueError("a call is given twice")
        if any(call.instructions is not None for call in self.calls):
            self.device.instruction_seconds()

    @cached_property
    def by_signature(self) -> dict[str, CallCost]:
        return {call.signature: call for call in self.calls}

    @cached_property
    def tiled_by_op(self) -> dict[str, dict[str, list[tuple[int, float]]]]:
        """Blocks and times of each way, in order of blocks, by op and way."""
        found: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for row in sorted(self.tiled, key=lambda row: row.blocks):
            found.setdefault(row.op, {}).setdefault(row.way, []).append((row.blocks, row.times))
        return found

    def seconds(self, call: CallCost) -> float:
        """What a call takes on the board."""
        if call.seconds is not None:
            return call.seconds
        assert call.instructions is not None
        return call.instructions * self.device.instruction_seconds()
