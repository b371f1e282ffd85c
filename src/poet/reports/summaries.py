"""Outcomes: what a run of training came to, and what had been predicted of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from poet.values.quantities import amount_text, bytes_text

if TYPE_CHECKING:
    from poet.reports.tables import Align


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of training came to. Losses and times are of the steps made this time.

    Seconds, joules and `step_paged_bytes` are those of a step, by the median.
    """

    model: str
    data: str
    steps: int
    """In all, those before a resume too."""
    first_loss: float | None
    last_loss: float | None
    step_seconds: float | None
    predicted_seconds: float | None
    peak_bytes: int
    predicted_peak_bytes: int
    ram_bytes: int | None
    paged_bytes: int
    """Written to and read from the store, in all steps."""
    step_paged_bytes: int | None = None
    predicted_paged_bytes: int | None = None
    step_joules: float | None = None
    predicted_joules: float | None = None
    energy: str = ""
    """Where the joules of real steps come from."""
    costs: str = ""
    """Where the costs behind the predictions come from."""
    resumed_from: int | None = None
    """The step of the checkpoint that it went on from."""
    interrupted: bool = False
    checkpoint: str | None = None
    weights: str | None = None


def outcome_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """The outcome for people: labels and texts, in reading order."""
    before = "" if outcome.resumed_from is None else f", {outcome.resumed_from} of them before"
    loss = "no step was made"
    if outcome.first_loss is not None and outcome.last_loss is not None:
        loss = f"{outcome.first_loss:.4f} at first, {outcome.last_loss:.4f} at last"
    rows = [
        ("trained", f"{outcome.model}, {outcome.steps} steps{before}"),
        ("data", outcome.data),
        ("loss", loss),
        ("RAM budget", "no limit" if outcome.ram_bytes is None else bytes_text(outcome.ram_bytes)),
        ("paged", f"{bytes_text(outcome.paged_bytes)} in all"),
    ]
    written = (("checkpoint", outcome.checkpoint), ("weights", outcome.weights))
    return [*rows, *((label, path) for label, path in written if path is not None)]


COMPARED: "tuple[tuple[str, Align], ...]" = (
    ("a step", "left"),
    ("predicted", "right"),
    ("real", "right"),
    ("off by", "right"),
)


def compared_rows(outcome: Outcome) -> list[Sequence[str]]:
    """Predicted and real, side by side. Nothing where no step was made."""
    if outcome.step_seconds is None:
        return []
    pairs = (
        ("time", _seconds, outcome.predicted_seconds, outcome.step_seconds),
        ("RAM peak", _bytes, outcome.predicted_peak_bytes, outcome.peak_bytes),
        ("paged", _bytes, outcome.predicted_paged_bytes, outcome.step_paged_bytes),
        ("energy", _joules, outcome.predicted_joules, outcome.step_joules),
    )
    rows: list[Sequence[str]] = []
    for label, text, predicted, real in pairs:
        if predicted is None or real is None:
            continue
        off = f"{predicted / real - 1:+.1%}" if real else ("+0.0%" if not predicted else "")
        rows.append((label, text(predicted), text(real), off))
    return rows


def _seconds(amount: float) -> str:
    return amount_text(amount, "s")


def _joules(amount: float) -> str:
    return amount_text(amount, "J")


def _bytes(amount: float) -> str:
    return bytes_text(int(amount))
