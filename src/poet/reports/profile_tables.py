"""A profile for people: step, store, slowest ops, and where analytic costs are wrong."""

from collections import defaultdict

import msgspec

from poet.costs.analytic import analytic, main_kind
from poet.values.device import PLAIN, Costs, Device
from poet.values.graph import Graph
from poet.values.profile import Profile, StoreSpeed, Timing
from poet.values.quantities import amount_text, bytes_text

WRONG = 2.0
"""Analytic costs are called wrong from this factor on."""
WORTH_NAMING = 0.01
"""Kinds of ops that take a smaller share of the step are not worth a line."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """All ops whose main call is of one kind, as measured and as the analytic model has them."""

    kind: str
    ops: int
    seconds: float
    analytic_seconds: float
    share: float

    @property
    def ratio(self) -> float:
        """Analytic over measured."""
        return self.analytic_seconds / self.seconds if self.seconds else 1.0

    @property
    def is_wrong(self) -> bool:
        return self.share >= WORTH_NAMING and not 1 / WRONG <= self.ratio <= WRONG


def judged(graph: Graph, measured: Costs, device: Device) -> list[Judged]:
    """Kinds of ops, those that take longest first."""
    modelled = analytic(graph, device)
    count: dict[str, int] = defaultdict(int)
    real: dict[str, float] = defaultdict(float)
    claimed: dict[str, float] = defaultdict(float)
    for k in range(len(graph.ops)):
        kind = main_kind(graph, k, device)
        count[kind] += 1
        real[kind] += measured.ops[k][PLAIN].seconds
        claimed[kind] += modelled.ops[k][PLAIN].seconds
    step = sum(real.values())
    found = [
        Judged(
            kind=kind,
            ops=count[kind],
            seconds=real[kind],
            analytic_seconds=claimed[kind],
            share=real[kind] / step if step else 0.0,
        )
        for kind in count
    ]
    return sorted(found, key=lambda each: -each.seconds)


def profile_rows(profile: Profile, graph: Graph) -> list[tuple[str, str]]:
    """The whole in a few lines."""
    modelled = analytic(graph, profile.device).keep_all_seconds
    store, device = profile.store, profile.device
    rows = [
        ("machine", f"{profile.machine}; torch {profile.torch}"),
        ("step", f"{_timing_text(profile.step)}, all kept in RAM"),
        ("by rates alone", amount_text(modelled, "s")),
        ("store", f"{store.where}: {_speed_text(store)}"),
        (
            "both at once",
            f"compute keeps {device.compute_speed_in_overlap or 1:.0%} of its speed, transfers "
            f"{device.transfer_speed_in_overlap or 1:.0%}: transfers "
            + ("run beside compute" if device.overlap else "and compute take turns"),
        ),
        ("energy", f"{profile.energy}: {device.compute_watts:.3g} W computing"),
    ]
    extra = max(profile.workspaces_bytes, default=0)
    if extra:
        k = profile.workspaces_bytes.index(extra)
        rows.append(("largest workspace", f"{bytes_text(extra)}, {graph.op_text(k)}"))
    return rows


def op_rows(profile: Profile, graph: Graph, count: int) -> list[list[str]]:
    """The slowest ops: name, kind, milliseconds, share, spread, outliers, workspace."""
    step = sum(each.seconds for each in profile.ops)
    slowest = sorted(range(len(profile.ops)), key=lambda k: -profile.ops[k].seconds)
    return [
        [
            graph.op_text(k),
            main_kind(graph, k, profile.device).removeprefix("aten."),
            f"{profile.ops[k].seconds * 1e3:.2f}",
            f"{profile.ops[k].seconds / step if step else 0.0:.1%}",
            f"{profile.ops[k].spread:.0%}",
            str(profile.ops[k].outliers or ""),
            f"{profile.workspaces_bytes[k]:,} B",
        ]
        for k in slowest[:count]
    ]


def judged_rows(found: list[Judged]) -> list[list[str]]:
    """Kinds worth naming: ops, measured and analytic milliseconds, their ratio."""
    return [
        [
            each.kind.removeprefix("aten."),
            str(each.ops),
            f"{each.seconds * 1e3:.2f}",
            f"{each.share:.1%}",
            f"{each.analytic_seconds * 1e3:.2f}",
            f"{each.ratio:.2f}" + (" !" if each.is_wrong else ""),
        ]
        for each in found
        if each.share >= WORTH_NAMING
    ]


def _timing_text(timing: Timing) -> str:
    text = (
        f"{amount_text(timing.seconds, 's')} (four fifths between "
        f"{amount_text(timing.low_seconds, 's')} and {amount_text(timing.high_seconds, 's')}"
    )
    return f"{text}; {timing.outliers} outliers)" if timing.outliers else f"{text})"


def _speed_text(store: StoreSpeed) -> str:
    size = store.sizes_bytes[-1]
    out, back = (
        f"{size / each[-1].seconds / 1e9:.2f} GB/s" if each[-1].seconds else "in no time"
        for each in (store.page_outs, store.page_ins)
    )
    small = amount_text(store.page_ins[0].seconds, "s")
    return f"{out} out, {back} in, a small page {small}"
