"""Fit: what a training step takes, the least it can take, and at which price, before it is run.

`foreseen` answers in seconds: keep-all is replayed and split into parts at its peak; each place
where parameters may live has a floor that no schedule can go below, and the smallest budget that
the quick makers found a schedule for; some budgets between them are planned for a moment each, for
their price in energy and time. `poet.plan` takes more time, and finds less or cheaper.

Largest batches are looked for in `batches`.
"""

import time
from collections.abc import Iterator, Sequence

import msgspec

from poet.errors import PoetError
from poet.planner.proof.floor import memory_floor
from poet.planning.advice import smallest_budget
from poet.planning.peak import Parts, Peak, peak_of
from poet.planning.plan import answer
from poet.planning.problem import Problem
from poet.planning.question import MIN, Question, Terms
from poet.planning.residency import in_bytes, places_of, questions
from poet.values.graph import MAX_BYTES
from poet.values.plan import PlanInterrupted
from poet.values.progress import CountProgress
from poet.values.quantities import amount_text, bytes_text, parse_bytes, short_bytes_text
from poet.values.schedule import Effort, Residency

PLACES: dict[Residency, str] = {
    "resident": "in RAM",
    "paged": "paged",
    "streamed": "streamed in tiles",
}
"""Where parameters and optimizer state are between steps, for people."""
_SMALLEST_SECONDS = 1.0
"""For the smallest budget in one place."""
_POINTS = 2
"""Budgets that are planned in each place."""


class Least(msgspec.Struct, frozen=True, kw_only=True):
    """The least RAM with parameters in one place."""

    params: Residency
    floor_bytes: int
    """No schedule can use less."""
    smallest_bytes: int | None
    """A schedule was made in so much; None: the quick makers found none."""
    reason: str = ""
    """Why there is none in any budget, where that is proven."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes in some RAM, as planned in a moment."""

    ram_bytes: int
    params: Residency
    joules: float
    seconds: float
    energy: float
    """Times keep-all's."""
    time: float
    """Times keep-all's."""


class LargestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch within the budget. `at_most` is a batch that was tried and is too large,
    by one where the search came to its end."""

    params: Residency
    batch: int
    at_most: int | None
    peak_bytes: int
    kept_all: bool
    """With everything kept in RAM, or with ops recomputed or paged."""


class Fit(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="poet-fit/1"):
    """What a training step takes, and the least it can take."""

    model: str
    optimizer: str
    device: str
    batch: int | None
    ram_bytes: int | None
    keep_all_bytes: int
    peak_at: str
    parts: Parts
    keep_all_joules: float
    keep_all_seconds: float
    least: tuple[Least, ...]
    prices: tuple[Price, ...]
    largest: tuple[LargestBatch, ...] = ()
    kernels_tried: bool = False
    """Whether the workspace has what kernels take for themselves, as they were tried here."""
    solve_seconds: float = 0.0

    @property
    def floor_bytes(self) -> int:
        """No schedule can use less, wherever parameters are."""
        return min(each.floor_bytes for each in self.least)

    @property
    def smallest_bytes(self) -> int | None:
        """The smallest budget that a schedule was made for, wherever parameters are."""
        found = [each.smallest_bytes for each in self.least if each.smallest_bytes is not None]
        return min(found, default=None)

    @property
    def verdict(self) -> str:
        """Whether it fits the budget, in a sentence."""
        if self.ram_bytes is None:
            return ""
        ram = short_bytes_text(self.ram_bytes)
        if self.keep_all_bytes <= self.ram_bytes:
            return f"fits in {ram} with everything kept in RAM"
        for each in self.least:
            if each.smallest_bytes is not None and each.smallest_bytes <= self.ram_bytes:
                return f"fits in {ram} with a plan, parameters {PLACES[each.params]}"
        reasons = [each.reason for each in self.least if each.floor_bytes <= self.ram_bytes]
        if reasons and all(reasons):
            return f"does not fit in {ram}: {reasons[0]}"
        if self.floor_bytes > self.ram_bytes:
            return f"does not fit in {ram}: no schedule takes less than {self.floor_bytes:,} bytes"
        return f"no schedule was found in {ram} at a glance; poet.plan looks longer"

    def __str__(self) -> str:
        """Tables for people."""
        parts = msgspec.structs.asdict(self.parts)
        batch = "" if self.batch is None else f", batch {self.batch:,}"
        rows = [
            ("step", f"{self.model} with {self.optimizer}{batch}, on {self.device}"),
            ("all kept in RAM", f"{bytes_text(self.keep_all_bytes)}, the most at {self.peak_at}"),
            *((f"  {_label(name)}", bytes_text(nbytes)) for name, nbytes in parts.items()),
        ]
        if self.verdict:
            rows.append(("budget", self.verdict))
        tables = [_aligned(rows)]
        heads = ("parameters and state", "no schedule takes less than", "a schedule was made in")
        least = [
            (
                PLACES[each.params],
                bytes_text(each.floor_bytes),
                each.reason or "none found"
                if each.smallest_bytes is None
                else bytes_text(each.smallest_bytes),
            )
            for each in self.least
        ]
        tables.append(_aligned([heads, *least]))
        prices = [
            (
                bytes_text(each.ram_bytes),
                PLACES[each.params],
                f"{each.energy:.2f}x, {amount_text(each.joules, 'J')}",
                f"{each.time:.2f}x, {amount_text(each.seconds, 's')}",
            )
            for each in self.prices
        ]
        tables.append(_aligned([("RAM", "parameters", "energy", "time"), *prices]))
        if self.largest:
            found = [(_largest_label(each), _batch_text(each)) for each in self.largest]
            tables.append(_aligned([("largest batch in that budget", ""), *found]))
        if not self.kernels_tried:
            tables.append("What kernels take for themselves while they run comes on top.")
        return "\n\n".join(tables)


def foreseen(
    problem: Problem,
    asked: Terms,
    seconds: float,
    *,
    optimizer: str,
    batch: int | None = None,
    kernels_tried: bool = False,
    progress: CountProgress | None = None,
) -> Fit:
    """What the step of a problem takes. `seconds` are for prices: the rest takes what it takes."""
    if asked.ram == MIN:
        raise PoetError('ram="min" says nothing here: the least RAM is what is told anyway')
    report = progress or (lambda what, done, count: None)
    started = time.monotonic()
    report("keep-all", 0, 3)
    asked = in_bytes(problem, asked)
    roomy = msgspec.structs.replace(asked, ram=MAX_BYTES, reserved_bytes=0)
    whole = kept_in_ram(problem, asked)
    at_peak = peak_of(whole)
    report("the least RAM", 1, 3)
    found: dict[Residency, Question] = {}
    for params in places_of(problem, asked):
        there = msgspec.structs.replace(roomy, params=params)
        found[params] = next(iter(questions(problem, there)))
    least = {params: least_of(question, params) for params, question in found.items()}
    report("prices", 2, 3)
    prices = tuple(_prices(found, least, at_peak, seconds))
    report("prices", 3, 3)
    board = asked.board
    ram_bytes = board.available_bytes if board else None
    if asked.ram is not None:
        ram_bytes = parse_bytes(asked.ram, "RAM budget")
    return Fit(
        model=problem.graph.name,
        optimizer=optimizer,
        device=_device_text(asked),
        batch=batch,
        ram_bytes=ram_bytes,
        keep_all_bytes=at_peak.peak_bytes,
        peak_at=at_peak.op,
        parts=at_peak.parts,
        keep_all_joules=at_peak.joules,
        keep_all_seconds=at_peak.seconds,
        least=tuple(least.values()),
        prices=prices,
        kernels_tried=kernels_tried,
        solve_seconds=time.monotonic() - started,
    )


def kept_in_ram(problem: Problem, asked: Terms) -> Question:
    """The question with parameters in RAM and no limit."""
    roomy = msgspec.structs.replace(
        asked, ram=MAX_BYTES, reserved_bytes=0, params="resident", deadline=None
    )
    return next(iter(questions(problem, roomy))).within(None)


def least_of(question: Question, params: Residency) -> Least:
    """The floor of a question, and a small budget with a schedule."""
    floor = memory_floor(question.graph, question.costs, question.budget)
    until = time.monotonic() + _SMALLEST_SECONDS
    graph, budget = question.graph, question.budget
    stored = sum(graph.tensors[i].nbytes for i, place in budget.start.items() if place != "ram")
    reason = ""
    if budget.store_bytes is not None and stored > budget.store_bytes:
        reason = f"{stored:,} bytes are to be in the store, which has {budget.store_bytes:,}"
    return Least(
        params=params,
        reason=reason,
        floor_bytes=floor.nbytes,
        smallest_bytes=smallest_budget(question.within(1), None, until),
    )


def _prices(
    found: dict[Residency, Question],
    least: dict[Residency, Least],
    whole: Peak,
    seconds: float,
) -> Iterator[Price]:
    """Prices at budgets in each place that has a schedule below the place before, from keep-all
    down, for as long as there is time."""
    until = time.monotonic() + seconds
    yield Price(
        ram_bytes=whole.peak_bytes,
        params="resident",
        joules=whole.joules,
        seconds=whole.seconds,
        energy=1.0,
        time=1.0,
    )
    above = whole.peak_bytes
    budgets: list[tuple[Residency, int]] = []
    for params, each in least.items():
        low = each.smallest_bytes
        if low is None or low >= above:
            continue
        budgets += [
            (params, round(above * (low / above) ** (nth / _POINTS)))
            for nth in range(1, _POINTS + 1)
        ]
        above = low
    for nth, (params, ram_bytes) in enumerate(budgets):
        left = until - time.monotonic()
        if left <= 0:
            return
        effort = Effort(time_limit_seconds=left / (len(budgets) - nth), relative_gap=0.01)
        try:
            plan = answer(found[params].within(ram_bytes), effort)
        except PlanInterrupted as stopped:
            plan = stopped.plan
        if plan.joules is None or plan.seconds is None:
            continue
        yield Price(
            ram_bytes=ram_bytes,
            params=params,
            joules=plan.joules,
            seconds=plan.seconds,
            energy=plan.joules / whole.joules if whole.joules else 1.0,
            time=plan.seconds / whole.seconds if whole.seconds else 1.0,
        )


def _device_text(asked: Terms) -> str:
    board = asked.board
    if board is None:
        return "as the problem's costs have it"
    name = board.name or board.title
    return f"this machine, at the rates of a {name}" if asked.in_torch else name


def _label(field: str) -> str:
    one = field.removesuffix("_bytes").replace("_", " ")
    return one if one.endswith(("state", "space")) else f"{one}s"


def _largest_label(found: LargestBatch) -> str:
    if found.kept_all:
        return "all kept in RAM"
    return f"with a plan, parameters {PLACES[found.params]}"


def _batch_text(found: LargestBatch) -> str:
    if not found.batch:
        return "none: a single sample is too much"
    text = f"{found.batch:,} ({bytes_text(found.peak_bytes)})"
    if found.at_most is None:
        return f"{text} at least"
    return text if found.at_most == found.batch + 1 else f"{text}; {found.at_most:,} is too many"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
