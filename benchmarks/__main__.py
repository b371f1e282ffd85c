"""`python -m benchmarks [NAME …]` runs all benchmarks, or those named.

`--problems N` says how many problems `claims` tries, `--model NAME` whose rows
`firmware-arenas` makes.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial

from benchmarks import (
    bert_base,
    board_costs,
    boards,
    capture,
    claims,
    compiled,
    firmware,
    firmware_kills,
    floors,
    fuzz,
    instructions,
    kills,
    models,
    peaks,
    planner,
    predict,
    referee,
    results,
    service_fuzz,
    service_kills,
    service_load,
    small_networks,
    stores,
    sweeps,
    thousands,
    training,
    trust,
)

REGISTRY: dict[str, Callable[[], None]] = {
    "referee": referee.main,
    **planner.BENCHMARKS,
    **capture.BENCHMARKS,
    **training.BENCHMARKS,
    **compiled.BENCHMARKS,
    "stores": stores.main,
    **peaks.BENCHMARKS,
    **kills.BENCHMARKS,
    **fuzz.BENCHMARKS,
    **claims.BENCHMARKS,
    **trust.BENCHMARKS,
    **predict.BENCHMARKS,
    **firmware.BENCHMARKS,
    **firmware_kills.BENCHMARKS,
    **instructions.BENCHMARKS,
    **small_networks.BENCHMARKS,
    **bert_base.BENCHMARKS,
    **floors.BENCHMARKS,
    **board_costs.BENCHMARKS,
    **boards.BENCHMARKS,
    **thousands.BENCHMARKS,
    **models.BENCHMARKS,
    **sweeps.BENCHMARKS,
    **results.BENCHMARKS,
    **service_fuzz.BENCHMARKS,
    **service_kills.BENCHMARKS,
    **service_load.BENCHMARKS,
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--problems", type=int, help="how many problems `claims` tries")
    parser.add_argument("--model", action="append", help="whose rows `firmware-arenas` makes")
    asked = parser.parse_args(words)
    unknown = [name for name in asked.names if name not in REGISTRY]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(REGISTRY)}", file=sys.stderr)
        return 2
    if asked.problems is not None:
        REGISTRY["claims"] = partial(claims.claims, asked.problems)
    if asked.model is not None:
        REGISTRY["firmware-arenas"] = partial(firmware.arenas, asked.model)
    for name in asked.names or REGISTRY:
        print(f"== {name}")
        REGISTRY[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
