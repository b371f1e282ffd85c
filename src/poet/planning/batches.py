"""Batches: how many samples a step may have within a RAM budget.

Each batch size that is tried is captured. What a step needs grows with the batch along a line, near
enough, so the next size to try is where the line through the last two meets the budget; sizes that
fit and sizes that do not close in on each other. A batch is called the largest if it fits and the
next one was tried and does not.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from poet.planning.fit import LargestBatch, kept_in_ram, least_of
from poet.planning.problem import Problem
from poet.planning.question import Question, Terms
from poet.planning.residency import places_of, questions
from poet.values.graph import MAX_BYTES
from poet.values.progress import CountProgress
from poet.values.schedule import Residency

MOST_BATCH = 1 << 20
_MOST_TRIES = 10
"""Captures for one answer. Three or four are usual."""

Need = Callable[[Problem], tuple[int, Residency] | None]
"""The bytes that a step needs, and where parameters are then; None: not known."""


class _Tried(NamedTuple):
    batch: int
    nbytes: int
    params: Residency


def largest_batches(
    at: Callable[[int], Problem],
    batch: int,
    asked: Terms,
    ram_bytes: int,
    progress: CountProgress | None = None,
) -> tuple[LargestBatch, ...]:
    """The largest batch with all kept in RAM, and with a plan. `asked` has the budget in bytes."""
    known: dict[int, Problem] = {}

    def step(size: int) -> Problem:
        if size not in known:
            if progress is not None:
                progress(f"a batch of {size:,}", len(known), max(_MOST_TRIES, len(known)))
            known[size] = at(size)
        return known[size]

    def all_kept(problem: Problem) -> tuple[int, Residency]:
        return kept_in_ram(problem, asked).keep_all_bytes, "resident"

    def planned(problem: Problem) -> tuple[int, Residency] | None:
        """The smallest budget of the first place that fits, or of the last."""
        last: tuple[int, Residency] | None = None
        for params in places_of(problem, asked):
            question = _question(problem, asked, params)
            smallest = least_of(question, params).smallest_bytes
            if smallest is not None:
                last = min(smallest, last[0]) if last else smallest, params
                if smallest <= ram_bytes:
                    break
        return last

    kept = _largest(step, all_kept, batch, ram_bytes)
    start = max(batch, kept.batch)
    return (
        LargestBatch(**kept._asdict(), kept_all=True),
        LargestBatch(**_largest(step, planned, start, ram_bytes)._asdict(), kept_all=False),
    )


def _question(problem: Problem, asked: Terms, params: Residency) -> Question:
    there = msgspec.structs.replace(asked, params=params)
    return next(iter(questions(problem, there)))


class _Largest(NamedTuple):
    params: Residency
    batch: int
    at_most: int | None
    peak_bytes: int


def _largest(step: Callable[[int], Problem], need: Need, first: int, ram_bytes: int) -> _Largest:
    tried: list[_Tried] = []
    size: int | None = first
    while size is not None and len(tried) < _MOST_TRIES:
        nbytes, params = need(step(size)) or (MAX_BYTES, "resident")
        tried.append(_Tried(size, nbytes, params))
        size = _next(tried, ram_bytes)
    low, high = _around(tried, ram_bytes)
    return _Largest(low.params, low.batch, None if high is None else high.batch, low.nbytes)


def _around(tried: list[_Tried], ram_bytes: int) -> tuple[_Tried, _Tried | None]:
    """The largest batch that fits, and the smallest that does not."""
    fitting = [each for each in tried if each.nbytes <= ram_bytes]
    over = [each for each in tried if each.nbytes > ram_bytes]
    nothing = _Tried(0, 0, "resident")
    return max(fitting, default=nothing), min(over, default=None)


def _next(tried: list[_Tried], ram_bytes: int) -> int | None:
    """The batch to try next; None where the largest is found."""
    low, high = _around(tried, ram_bytes)
    if low.batch >= MOST_BATCH or (high is not None and high.batch <= low.batch + 1):
        return None
    if high is None:
        size = _on_line(tried, ram_bytes) or 2 * low.batch
        return max(low.batch + 1, min(size, 16 * low.batch, MOST_BATCH))
    if low.batch == 0:
        size = _on_line(tried, ram_bytes) or high.batch // 2
    else:
        size = _on_line([low, high], ram_bytes) or (low.batch + high.batch) // 2
    return max(low.batch + 1, min(size, high.batch - 1))


def _on_line(tried: list[_Tried], ram_bytes: int) -> int | None:
    """Where the line through the last two that are known meets the budget."""
    known = [each for each in tried if each.nbytes < MAX_BYTES][-2:]
    if len(known) < 2 or known[0].nbytes == known[1].nbytes:
        return None
    (a, a_bytes, _), (b, b_bytes, _) = known
    size = a + (ram_bytes - a_bytes) * (b - a) // (b_bytes - a_bytes)
    return size if size > 0 else None
