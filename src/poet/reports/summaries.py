"""Summaries: what a run of training came to, and what had been predicted of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from poet.values.quantities import bytes_text, goal_text, limit_text
from poet.values.schedule import Goal

if TYPE_CHECKING:
    from poet.reports.tables import Align


class TrainingSummary(msgspec.Struct, frozen=True, kw_only=True):
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
    """None, like joules, where the plan follows rates: those may be of quite another machine."""
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


def training_rows(summary: TrainingSummary) -> list[tuple[str, str]]:
    """The summary for people: labels and texts, in reading order."""
    before = "" if summary.resumed_from is None else f", {summary.resumed_from} of them before"
    loss = "no step was made"
    if summary.first_loss is not None and summary.last_loss is not None:
        loss = f"{summary.first_loss:.4f} at first, {summary.last_loss:.4f} at last"
    rows = [
        ("trained", f"{summary.model}, {summary.steps} steps{before}"),
        ("data", summary.data),
        ("loss", loss),
        ("RAM budget", limit_text(summary.ram_bytes)),
        ("paged", f"{bytes_text(summary.paged_bytes)} in all"),
    ]
    written = (("checkpoint", summary.checkpoint), ("weights", summary.weights))
    return [*rows, *((label, path) for label, path in written if path is not None)]


PREDICTION_COLUMNS: "tuple[tuple[str, Align], ...]" = (
    ("a step", "left"),
    ("predicted", "right"),
    ("real", "right"),
    ("off by", "right"),
)


def prediction_rows(summary: TrainingSummary) -> list[Sequence[str]]:
    """Predicted and real, side by side. Nothing where no step was made."""
    if summary.step_seconds is None:
        return []
    pairs: tuple[tuple[str, Goal, float | None, float | None], ...] = (
        ("time", "seconds", summary.predicted_seconds, summary.step_seconds),
        ("RAM peak", "bytes", summary.predicted_peak_bytes, summary.peak_bytes),
        ("paged", "bytes", summary.predicted_paged_bytes, summary.step_paged_bytes),
        ("energy", "joules", summary.predicted_joules, summary.step_joules),
    )
    rows: list[Sequence[str]] = []
    for label, goal, predicted, real in pairs:
        if real is None:
            continue
        if predicted is None:
            rows.append((label, "", goal_text(goal, real), ""))
            continue
        off = f"{predicted / real - 1:+.1%}" if real else ("+0.0%" if not predicted else "")
        rows.append((label, goal_text(goal, predicted), goal_text(goal, real), off))
    return rows


def source_rows(summary: TrainingSummary) -> list[tuple[str, str]]:
    """Where the figures come from; where time was not predicted, what would do that."""
    energy = ("real energy", summary.energy)
    if summary.predicted_seconds is not None:
        return [("predicted", f"by {summary.costs}"), energy]
    return [
        ("planned", f"by {summary.costs}, which say nothing of this machine's time"),
        ("to predict it", "poet profile … -o profile.json, then --costs profile.json"),
        energy,
    ]
