"""Floors: the least RAM that a training step takes, and how far running piece by piece lowers it.

For each network of the zoo, trained by SGD with its parameters on the card of an nRF52840: what the
op with the largest working set takes where only parameters are read in tiles, the same where ops
may run piece by piece, and the smallest budget that a schedule was made and replayed for there.
Peer: parameters in tiles alone. Limit: a tenth of it, where that is more than 64 KB.
"""

from rich.console import Console

from poet.planner.proof.floor import memory_floor
from poet.planning.advice import enough_bytes
from poet.planning.problem import read_problem
from poet.planning.question import Question, terms
from poet.planning.residency import questions
from poet.reports.tables import print_table
from poet.zoo import MODELS

LEAST = 64_000


def floors() -> None:
    console, rows, failed = Console(), [], []
    for name in MODELS:
        asked = terms("nrf52840", params="streamed")
        tiles, pieces = questions(read_problem(name, "sgd"), asked)
        before, after = _floor(tiles), _floor(pieces)
        small = pieces.within(1)
        found = enough_bytes([small])
        least = min(found or before, before)
        rows.append([
            name, f"{before:,}", f"{after:,}", f"{least:,}", f"{before / least:.1f}x",
            "10x" if before > LEAST else "",
        ])  # fmt: skip
        if before > LEAST and least * 10 > before:
            failed.append(name)
    columns = ["model", "parameters in tiles", "floor in pieces", "smallest budget", "", "limit"]
    print_table(console, [(name, "left" if name == "model" else "right") for name in columns], rows)
    if failed:
        raise SystemExit(f"a limit is not met: {', '.join(failed)}")


def _floor(asked: Question) -> int:
    return memory_floor(asked.graph, asked.costs, asked.budget).nbytes


BENCHMARKS = {"floors": floors}
