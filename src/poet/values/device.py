"""Device: what a board has. Costs: what each op and each transfer of one graph costs there.

A `Device` comes from a TOML file in which every figure carries its source, or the reasoning behind
an estimate. `Costs` belong to one graph, by fingerprint, and hold all that the referee needs to
turn a schedule into seconds and joules; they may come from a model of the device or from
measurements.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from poet.values.graph import MAX_BYTES, Graph, check_range

MAX_AMOUNT = 1e18
"""The most seconds or joules of one thing: far beyond any board, and sums of them stay finite."""
LEAST_SPEED = 0.01
"""The least share of its speed that compute or a transfer can keep beside the other."""
SECTOR_BYTES = 512
"""What the card of a microcontroller reads and writes at once."""
PLAIN = "plain"
"""The variant every op has: all inputs and outputs in RAM."""


CLASS_FIGURES = ("class_flops_per_second", "class_bytes_per_second", "class_overhead_seconds")


class Device(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="poet-device/1",
):
    """A board. `overlap`: transfers run beside compute; `duplex`: page-ins beside page-outs.

    `clock_hz` and `cycles_per_instruction` make seconds of instructions that were counted.
    `energy_flops_per_second` is the rate at which compute energy is charged where that differs from
    the rate at which time is (the released POET code does so for one board).
    Classes of work (`poet.costs.classes`) may have rates and a time to start of their own, where
    they differ from the one for all. `compute_speed_in_overlap` and `transfer_speed_in_overlap` are
    the shares of their speeds that compute and transfers keep while both run; all of it where not
    given.
    """

    name: str = ""
    title: str
    ram_bytes: int
    reserved_bytes: int
    store_bytes: int
    flops_per_second: float
    compute_watts: float
    clock_hz: float | None = None
    cycles_per_instruction: float | None = None
    energy_flops_per_second: float | None = None
    memory_bytes_per_second: float | None = None
    op_overhead_seconds: float | None = None
    class_flops_per_second: dict[str, float] = {}
    class_bytes_per_second: dict[str, float] = {}
    class_overhead_seconds: dict[str, float] = {}
    compute_speed_in_overlap: float | None = None
    transfer_speed_in_overlap: float | None = None
    page_in_latency_seconds: float
    page_in_bytes_per_second: float
    page_in_watts: float
    page_out_latency_seconds: float
    page_out_bytes_per_second: float
    page_out_watts: float
    idle_watts: float
    overlap: bool
    duplex: bool
    sources: dict[str, str] = {}
    estimates: dict[str, str] = {}

    def __post_init__(self) -> None:
        for field, value in self.figures.items():
            if isinstance(value, bool):
                continue
            check_range(field, value, MAX_BYTES if field.endswith("_bytes") else inf)
            positive = field in ("ram_bytes", "clock_hz", "cycles_per_instruction")
            if value == 0 and (field.endswith("_per_second") or positive):
                raise ValueError(f"{field} is 0; it must be more than 0")
        for field in CLASS_FIGURES:
            for name, figure in getattr(self, field).items():
                if not 0 < figure < inf:
                    raise ValueError(f"{field} of {name!r} is {figure}; it must be > 0")
        for field in ("compute_speed_in_overlap", "transfer_speed_in_overlap"):
            _check_speed(field, getattr(self, field))
        if self.reserved_bytes >= self.ram_bytes:
            raise ValueError(
                f"reserved_bytes is {self.reserved_bytes}, which leaves nothing of ram_bytes "
                f"{self.ram_bytes}"
            )
        for field in (*self.sources, *self.estimates):
            if field not in self.explained:
                raise ValueError(f"a source or estimate is given for {field!r}, not a figure here")

    @property
    def figures(self) -> dict[str, float]:
        """The numbers that describe the board, by field name; those not given are left out."""
        values = msgspec.structs.asdict(self)
        words = ("name", "title", "sources", "estimates", *CLASS_FIGURES)
        return {f: v for f, v in values.items() if f not in words and v is not None}

    @property
    def explained(self) -> tuple[str, ...]:
        """The fields that a board of POET's has a source or a reason for: the figures, and the
        figures of classes, a table as a whole."""
        return (*self.figures, *(field for field in CLASS_FIGURES if getattr(self, field)))

    @property
    def available_bytes(self) -> int:
        """The RAM that is left for tensors."""
        return self.ram_bytes - self.reserved_bytes

    def instruction_seconds(self) -> float:
        """How long an instruction takes, on the whole."""
        if self.clock_hz is None or self.cycles_per_instruction is None:
            raise ValueError(
                f"{self.title} does not say its clock_hz and cycles_per_instruction, which make "
                "seconds of instructions"
            )
        return self.cycles_per_instruction / self.clock_hz

    def page_in_seconds(self, nbytes: int, transfers: int = 1) -> float:
        """How long so many bytes take to come in, in one transfer or several."""
        return transfers * self.page_in_latency_seconds + nbytes / self.page_in_bytes_per_second

    def page_out_seconds(self, nbytes: int, transfers: int = 1) -> float:
        """The same for bytes that go out."""
        return transfers * self.page_out_latency_seconds + nbytes / self.page_out_bytes_per_second


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor that an op reads from, or writes to, the store piece by piece while it runs.

    `nbytes` counts all bytes moved (a tensor read twice counts twice); `seconds` and `joules` are
    the price of moving them.
    """

    tensor: int
    nbytes: int
    seconds: float
    joules: float

    def __post_init__(self) -> None:
        _check_amounts(self)


class Run(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One way to run an op. `seconds` and `joules` are compute only; streams have their own.

    `reads` name inputs that come straight from the store, `writes` outputs that go straight there;
    neither takes RAM beyond `workspace_bytes`.
    """

    seconds: float
    joules: float
    workspace_bytes: int = 0
    reads: tuple[Stream, ...] = ()
    writes: tuple[Stream, ...] = ()

    def __post_init__(self) -> None:
        _check_amounts(self)
        for streams in (self.reads, self.writes):
            if len({stream.tensor for stream in streams}) != len(streams):
                raise ValueError("a variant streams one tensor twice the same way")

    @property
    def stream_bytes(self) -> int:
        return sum(stream.nbytes for stream in (*self.reads, *self.writes))

    @property
    def stream_joules(self) -> float:
        return sum(stream.joules for stream in (*self.reads, *self.writes))


class Transfer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it costs to move one whole tensor."""

    in_seconds: float
    in_joules: float
    out_seconds: float
    out_joules: float

    def __post_init__(self) -> None:
        _check_amounts(self)


class Costs(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="poet-costs/1",
):
    """Prices of one graph on one device: each op's variants, each tensor's transfers.

    Seconds are those of an op or a transfer alone. Where both run at once, each keeps the share of
    its speed that `compute_speed_in_overlap` and `transfer_speed_in_overlap` say.
    `sector` is what `SECTOR_BYTES` by themselves cost: no schedule moves them, but C does, so that
    a power cut loses nothing. None where nobody knows.
    """

    graph: str
    """The fingerprint of the graph these costs belong to."""
    device: str
    """Where they hold, in words or as a board's name."""
    ops: tuple[dict[str, Run], ...]
    tensors: tuple[Transfer, ...]
    idle_watts: float = 0.0
    duplex: bool = False
    compute_speed_in_overlap: float = 1.0
    transfer_speed_in_overlap: float = 1.0
    sector: Transfer | None = None

    def __post_init__(self) -> None:
        check_range("idle_watts", self.idle_watts, MAX_AMOUNT)
        for field in ("compute_speed_in_overlap", "transfer_speed_in_overlap"):
            _check_speed(field, getattr(self, field))
        for k, variants in enumerate(self.ops):
            if PLAIN not in variants:
                raise ValueError(f"op {k} has no {PLAIN!r} variant, only {sorted(variants)}")
            plain = variants[PLAIN]
            if plain.reads or plain.writes:
                raise ValueError(f"op {k}: the {PLAIN!r} variant cannot stream")

    @property
    def keep_all_seconds(self) -> float:
        """Compute time of the step when everything is kept in RAM."""
        return sum(variants[PLAIN].seconds for variants in self.ops)

    @property
    def keep_all_joules(self) -> float:
        """Energy of the step when everything is kept in RAM and nothing is moved."""
        compute = sum(variants[PLAIN].joules for variants in self.ops)
        return compute + self.idle_watts * self.keep_all_seconds

    def check_belongs(self, graph: Graph) -> None:
        """Refuse costs of another graph, or ones that do not fit it."""
        if self.graph != graph.fingerprint:
            raise ValueError(
                f"the costs are for the graph with fingerprint {self.graph}, this one has "
                f"{graph.fingerprint}"
            )
        for what, have, want in (
            ("ops", len(self.ops), len(graph.ops)),
            ("tensors", len(self.tensors), len(graph.tensors)),
        ):
            if have != want:
                raise ValueError(f"there are costs for {have} {what}; the graph has {want}")
        for k, (op, variants) in enumerate(zip(graph.ops, self.ops, strict=True)):
            for name, run in variants.items():
                for stream, side, allowed in (
                    *((s, "reads", op.inputs) for s in run.reads),
                    *((s, "writes", op.outputs) for s in run.writes),
                ):
                    if stream.tensor not in allowed:
                        raise ValueError(
                            f"variant {name!r} of {graph.op_text(k)} {side} tensor "
                            f"{stream.tensor} as a stream, but the op does not"
                        )


def _check_speed(field: str, share: float | None) -> None:
    if share is not None and not LEAST_SPEED <= share <= 1:
        raise ValueError(f"{field} is {share}; it must be from {LEAST_SPEED} to 1")


def _check_amounts(value: Stream | Run | Transfer) -> None:
    amounts: Iterable[tuple[str, object]] = msgspec.structs.asdict(value).items()
    for field, amount in amounts:
        if not isinstance(amount, int | float) or field == "tensor":
            continue
        check_range(field, amount, MAX_BYTES if field.endswith("bytes") else MAX_AMOUNT)
