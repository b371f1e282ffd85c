"""`python -m benchmarks [NAME …]` runs all benchmarks, or those named."""

import sys
from collections.abc import Callable

from benchmarks import (
    bert_base,
    boards,
    capture,
    firmware,
    floors,
    fuzz,
    kills,
    peaks,
    planner,
    predict,
    referee,
    results,
    stores,
    thousands,
    training,
    trust,
)

REGISTRY: dict[str, Callable[[], None]] = {
    "referee": referee.main,
    **planner.BENCHMARKS,
    **capture.BENCHMARKS,
    **training.BENCHMARKS,
    "stores": stores.main,
    **peaks.BENCHMARKS,
    **kills.BENCHMARKS,
    **fuzz.BENCHMARKS,
    **trust.BENCHMARKS,
    **predict.BENCHMARKS,
    **firmware.BENCHMARKS,
    **bert_base.BENCHMARKS,
    **floors.BENCHMARKS,
    **boards.BENCHMARKS,
    **thousands.BENCHMARKS,
    **results.BENCHMARKS,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in REGISTRY]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(REGISTRY)}", file=sys.stderr)
        return 2
    for name in names or REGISTRY:
        print(f"== {name}")
        REGISTRY[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
