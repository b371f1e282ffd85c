"""Profile: what every op of one graph took on one machine, and what the costs made of it.

It is a value: read and written as JSON, and as good as `Costs` wherever those are asked for. Who
measures is `poet.profiling`; this module needs no torch.
"""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from poet.values.device import MAX_AMOUNT, PLAIN, Costs, Device
from poet.values.graph import MAX_BYTES, Graph, check_range

OUTLIER = 2.0
"""A repeat is an outlier from this many medians on."""


class Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Repeats of one thing: the median, the fastest and slowest tenth, and how many stood out."""

    seconds: float
    low_seconds: float
    high_seconds: float
    outliers: int = 0

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            check_range(field, getattr(self, field), MAX_AMOUNT)

    @classmethod
    def of(cls, repeats: Sequence[float]) -> "Timing":
        ordered = sorted(repeats)
        last = len(ordered) - 1
        median = (ordered[last // 2] + ordered[(last + 1) // 2]) / 2
        return cls(
            seconds=median,
            low_seconds=ordered[last // 10],
            high_seconds=ordered[last - last // 10],
            outliers=sum(each > OUTLIER * median for each in ordered),
        )

    @property
    def spread(self) -> float:
        """The width of the middle four fifths as a share of the median."""
        return (self.high_seconds - self.low_seconds) / self.seconds if self.seconds else 0.0


class StoreSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pages of several sizes in and out of a store, alone, while compute waits."""

    where: str
    sizes_bytes: tuple[int, ...]
    page_ins: tuple[Timing, ...]
    page_outs: tuple[Timing, ...]

    def __post_init__(self) -> None:
        counts = {len(self.sizes_bytes), len(self.page_ins), len(self.page_outs)}
        if len(counts) > 1 or not self.sizes_bytes:
            raise ValueError("sizes_bytes, page_ins and page_outs must be as many, and some")
        for size in self.sizes_bytes:
            check_range("sizes_bytes", size, MAX_BYTES)
        if list(self.sizes_bytes) != sorted(set(self.sizes_bytes)):
            raise ValueError("sizes_bytes must grow")

    def in_seconds(self, nbytes: int) -> float:
        return _between(nbytes, self.sizes_bytes, [each.seconds for each in self.page_ins])

    def out_seconds(self, nbytes: int) -> float:
        return _between(nbytes, self.sizes_bytes, [each.seconds for each in self.page_outs])


class Profile(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="poet-profile/1",
):
    """Measurements of one graph on one machine.

    `device` is the machine as a board: its rates are what the kernels reached on probes of their
    own, so that analytic costs can be had for it, too. `step` is the whole step with everything
    kept in RAM; the ops' medians are scaled to add up to its median in `costs`, since what falls
    between them belongs to the step. `energy` says in words where the joules come from.
    """

    machine: str
    threads: int
    torch: str
    energy: str
    repeats: int
    device: Device
    step: Timing
    ops: tuple[Timing, ...]
    store: StoreSpeed
    costs: Costs

    def __post_init__(self) -> None:
        if len(self.ops) != len(self.costs.ops):
            raise ValueError(
                f"there are timings of {len(self.ops)} ops and costs of {len(self.costs.ops)}"
            )

    def check_belongs(self, graph: Graph) -> None:
        """Refuse a profile of another graph."""
        self.costs.check_belongs(graph)

    @property
    def workspaces_bytes(self) -> tuple[int, ...]:
        return tuple(variants[PLAIN].workspace_bytes for variants in self.costs.ops)


def _between(at: int, places: Sequence[int], values: Sequence[float]) -> float:
    """On the broken line through the points; before it level, after it in proportion."""
    if at <= places[0]:
        return values[0]
    if at >= places[-1]:
        return values[-1] * at / places[-1]
    right = bisect_left(places, at)
    left = right - 1
    share = (at - places[left]) / (places[right] - places[left])
    return values[left] + share * (values[right] - values[left])
