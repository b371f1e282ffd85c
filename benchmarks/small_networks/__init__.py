"""`firmware-fifty`: small networks that people bring to a microcontroller, trained on one.

Each is captured, planned for an nRF52840 in three quarters of what it takes, written as C, trained
for some steps on the emulated board, and its weights are compared with PyTorch's, by the measure of
`poet emulate`: what rounding does to this very network. The table is written to
docs/results-firmware-networks.md. What has been found out is kept in build/small-networks; remove
that to start anew.
"""

import sys
import warnings
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from benchmarks.small_networks import images, maps, signals, sound, tables, tokens
from benchmarks.small_networks.network import Network
from benchmarks.small_networks.trial import SHARE, STEPS, TARGET, Outcome, tried
from poet.reports.tables import print_table

ROOT = Path(__file__).parents[2]
KEPT, PAGE = ROOT / "build/small-networks", ROOT / "docs/results-firmware-networks.md"
ENTRIES: tuple[Network, ...] = (
    *signals.ENTRIES, *sound.ENTRIES, *images.ENTRIES, *maps.ENTRIES, *tables.ENTRIES,
    *tokens.ENTRIES,
)  # fmt: skip
_HEADS = (
    "network", "task", "optimizer", "parameters", "ops", "peak", "moved", "again",
    "instructions a step", "loss", "apart", "of rounding", "verdict",
)  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    KEPT.mkdir(parents=True, exist_ok=True)
    for at, network in enumerate(ENTRIES):
        file = KEPT / f"{network.name}.json"
        if not file.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                file.write_bytes(msgspec.json.encode(tried(network)))
        found = _kept(network)
        print(f"{at + 1} of {len(ENTRIES)}: {network.name}: {found.verdict} {found.why}",
              file=sys.stderr)  # fmt: skip
        write_page()  # true also of a run that is stopped
    rows = [_row(network, _kept(network)) for network in ENTRIES]
    print_table(
        Console(), [(head, "left" if head in _HEADS[:3] else "right") for head in _HEADS], rows
    )
    failed = [network.name for network in ENTRIES if _kept(network).verdict != "trained"]
    if failed:
        raise SystemExit(f"not trained as PyTorch does: {', '.join(failed)}")


def _kept(network: Network) -> Outcome:
    file = KEPT / f"{network.name}.json"
    if not file.exists():
        return Outcome(verdict="not run")
    return msgspec.json.decode(file.read_bytes(), type=Outcome)


def write_page() -> None:
    outcomes = [_kept(network) for network in ENTRIES]
    PAGE.write_text(_page([_row(*pair) for pair in zip(ENTRIES, outcomes, strict=True)], outcomes))


def _row(network: Network, found: Outcome) -> list[str]:
    if found.verdict in ("refused", "not run"):
        return [network.name, network.task, network.optimizer, *[""] * 9, found.verdict]
    return [
        network.name, network.task, network.optimizer.replace("&", " "), f"{found.parameters:,}",
        str(found.ops), f"{found.peak_bytes / 1000:.1f} KB", f"{found.moved_bytes / 1000:.1f} KB",
        str(found.recomputed), f"{found.instructions:,}",
        f"{found.first_loss:.4f} → {found.last_loss:.4f}", f"{found.apart:.1e}",
        f"{found.worst_ratio:.2f}", found.verdict,
    ]  # fmt: skip


def _page(rows: list[list[str]], outcomes: list[Outcome]) -> str:
    trained = sum(x.verdict == "trained" for x in outcomes)
    waiting = sum(x.verdict == "not run" for x in outcomes)
    others = len(rows) - trained - waiting
    rest = f", {waiting} have not been run with these sources yet" if waiting else ""
    marks = ["---" if head in _HEADS[:3] else "--:" for head in _HEADS]
    lines = [
        "# Small networks on a microcontroller",
        "",
        f"{len(rows)} networks as people bring them to sensors and small cameras, with the losses "
        f"and optimizers that they are trained with: {trained} trained on an emulated {TARGET} "
        f"within the rounding of PyTorch, {others} did not{rest}. Each was captured as it is "
        f"written in `benchmarks/small_networks`, planned for the board in {SHARE} of the RAM that "
        f"keeping everything takes, written as C, and trained for {STEPS} steps on three batches "
        "in turn. Made by `python -m benchmarks firmware-fifty`.",
        "",
        "`peak` is that of the plan; `moved` what a step pages out to the card and back, `again` "
        "how many ops it computes a second time. `apart` is how far the changes of all weights are "
        "from those of PyTorch, as a share of them. `of rounding` is the measure of `poet emulate` "
        "([firmware.md](firmware.md)): how many times as far from a run in float64 the worst "
        "tensor is as rounding explains; up to 10 is within it.",
        "",
        "|" + "|".join(_HEADS) + "|",
        "|" + "|".join(marks) + "|",
        *("|" + "|".join(row) + "|" for row in rows),
        "",
    ]
    return "\n".join(lines)


BENCHMARKS = {"firmware-fifty": main}
