"""Real models, from their configurations, trained under a plan and compared with eager PyTorch.

`models`: small versions of what people train, from timm and transformers, with random weights. Each
is captured, planned at 60 % of its RAM with a folder for pages, and trained for two steps on two
batches; losses, weights, buffers and the random state are compared bit for bit. What is refused is
shown with the message. The table is written to docs/results-models.md.

Each model has a process of its own, forked from one that has imported the libraries. What has been
found out is kept in build/models; remove that to start anew. timm is asked where it is there
(`pip install --no-deps timm`, see `torchvision_absent`).
"""

import os
import re
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import msgspec
import torch
from rich.console import Console

import poet.tracer.pipeline  # noqa: F401  now, and not in each process
from benchmarks.models import audio, heads, named, text, timm_nets, vision
from benchmarks.models.entry import Entry
from benchmarks.models.trial import SHARE, STEPS, Outcome, tried
from poet.reports.tables import print_table
from poet.values.quantities import bytes_text

ROOT = Path(__file__).parents[2]
KEPT, PAGE = ROOT / "build/models", ROOT / "docs/results-models.md"
PLAN_SECONDS = 2.0
"""For each plan."""
ENTRIES: tuple[Entry, ...] = (
    *timm_nets.ENTRIES, *text.ENTRIES, *heads.ENTRIES, *vision.ENTRIES, *audio.ENTRIES,
    *named.ENTRIES,
)  # fmt: skip


def main() -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    entries = [entry for entry in ENTRIES if entry.library != "timm" or find_spec("timm")]
    _import_all(entries)
    outcomes = []
    for at, entry in enumerate(entries):
        kept = KEPT / (re.sub(r"\W+", "-", f"{entry.family} {entry.name}") + ".json")
        if not kept.exists():
            kept.write_bytes(msgspec.json.encode(_apart(entry)))
        outcomes.append(msgspec.json.decode(kept.read_bytes(), type=Outcome))
        told = f"{outcomes[-1].verdict}, {outcomes[-1].seconds:.0f} s"
        print(f"{at + 1} of {len(entries)}: {entry.name}: {told}", file=sys.stderr)
    rows = [_row(*pair) for pair in zip(entries, outcomes, strict=True)]
    heads = ("model", "family", "ops", "keep-all", "budget", "peak", "seconds", "verdict")
    print_table(
        Console(), [(head, "left" if head in heads[:2] else "right") for head in heads], rows
    )
    PAGE.write_text(_page(heads, rows, entries, outcomes))


def _import_all(entries: list[Entry]) -> None:
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if any(entry.library == "timm" for entry in entries):
        timm_nets.imported()


def _apart(entry: Entry) -> Outcome:
    """What becomes of a model, in a process of its own."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        warnings.simplefilter("ignore")
        try:
            outcome = tried(entry, PLAN_SECONDS)
        except BaseException as error:
            outcome = Outcome("failed", f"{type(error).__name__}: {error}")
        with os.fdopen(writing, "wb") as file:
            file.write(msgspec.json.encode(outcome))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        told = file.read()
    _, status = os.waitpid(process, 0)
    if not told:
        return Outcome("failed", f"its process ended with {os.waitstatus_to_exitcode(status)}")
    return msgspec.json.decode(told, type=Outcome)


def _row(entry: Entry, outcome: Outcome) -> list[str]:
    return [
        entry.name,
        entry.family,
        *("" if x is None else f"{x:,}" for x in (outcome.ops,)),
        *(
            "" if x is None else bytes_text(x)
            for x in (outcome.keep_all_bytes, outcome.budget_bytes, outcome.peak_bytes)
        ),
        f"{outcome.seconds:.1f}",
        outcome.verdict,
    ]


def _page(
    heads: tuple[str, ...], rows: list[list[str]], entries: list[Entry], outcomes: list[Outcome]
) -> str:
    count = {v: sum(o.verdict == v for o in outcomes) for v in ("bit-equal", "refused")}
    others = len(outcomes) - sum(count.values())
    lines = [
        "# Real models",
        "",
        f"{len(entries)} models of timm and transformers, small, from their configurations, with "
        f"random weights: {count['bit-equal']} bit-equal to eager PyTorch, {count['refused']} "
        f'refused, {others} different or failed. Each was captured, planned at `ram="{SHARE}"` '
        f"with a folder for pages in {PLAN_SECONDS:.0f} s, and trained for {STEPS} steps on "
        "different batches with AdamW, or SGD with momentum (CNNs); losses, weights, buffers and "
        f"the random state were compared bit for bit, with one thread, torch {torch.__version__}.",
        "",
        "Made by `python -m benchmarks models`, which keeps what it has found in `build/models`. "
        "Seconds are those of both trainings, captures and plans together, on a shared machine. A "
        "`keep-all` peak is what the step takes when nothing is freed early, with everything in "
        "RAM; the budget includes the store's buffers.",
        "",
        "|" + "|".join(heads) + "|",
        "|" + "|".join("---" if head in heads[:2] else "--:" for head in heads) + "|",
        *("|" + "|".join(row) + "|" for row in rows),
        "",
        "## What was refused",
        "",
        *(
            f"- **{entry.name}**: {outcome.said}"
            for entry, outcome in zip(entries, outcomes, strict=True)
            if outcome.verdict != "bit-equal"
        ),
    ]
    return "\n".join(lines) + "\n"


BENCHMARKS = {"models": main}
