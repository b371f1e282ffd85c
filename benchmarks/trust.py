"""What stands between a changed model and a wrong answer, and what it costs.

`random-trainings`: 300 random small models, each trained for five steps with random changes between
them (modes, frozen layers, dropout, attributes, globals, hooks, shapes, autocast, options of the
optimizer), by `poet.Trainer` and by `poet.wrap`. Peer: eager PyTorch with the same changes. Limit:
none is different; what is not equal bit for bit is refused, or warned of.

`watch`: what a step asks before it runs (has the model changed, which plan is it), beside the step.
Peer: the step itself. Limit: 2 %.
"""

import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.progress import track
from tests.torch.random_training import program, trained

import poet
from poet.reports.tables import print_table
from poet.zoo import build

MODELS = 300
WAYS = ("trainer", "wrap")


def random_trainings(models: int = MODELS) -> None:
    logging.getLogger("poet").setLevel(logging.ERROR)  # each change would be told
    console, found = Console(), Counter[tuple[str, str]]()
    for seed in track(range(models), "training", console=Console(stderr=True)):
        for way in WAYS:
            outcome = trained(program(seed), way)
            found[way, outcome.kind] += 1
            if outcome.kind == "different":
                console.print(f"{way}, seed {seed}: {outcome.words}")
    kinds = ("same", "refused", "warned", "different")
    rows = [[way, *(f"{found[way, kind]:,}" for kind in kinds), "0"] for way in WAYS]
    print_table(
        console,
        [("way", "left"), *((kind, "right") for kind in kinds), ("limit of different", "right")],
        rows,
    )


def watch(rounds: int = 15) -> None:
    rows = []
    for name in ("resnet18-cifar?batch=2", "resnet18-cifar?batch=16"):
        made = build(name)
        trainer = poet.Trainer(
            made.model, made.loss, poet.SGD(lr=1e-3), example=made.example, time_limit=5
        )
        step = _median(partial(trainer.run, made.example), rounds)
        asked = _median(partial(trainer.executor_for, made.example), rounds)
        share = f"{asked / step:.2%}"
        rows.append([name, f"{step * 1e3:.1f} ms", f"{asked * 1e3:.2f} ms", share, "2 %"])
    print_table(
        Console(),
        [("model", "left"), ("step", "right"), ("asked", "right"), ("share", "right"),
         ("limit", "right")],
        rows,
    )  # fmt: skip


def _median(call: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


BENCHMARKS = {"random-trainings": random_trainings, "watch": watch}
