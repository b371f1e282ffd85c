"""What was predicted beside what happened.

`predict`: ResNet-18, MobileNetV2 and BERT-base with measured costs under three budgets. Limits: the
predicted step within 10 % of the real one, the predicted peak within 1 % of what torch's allocator
gave out. A shared machine is faster and slower by the minute, so profiles and steps take turns in
three rounds, and the medians of both are compared; their ranges are the noise. Steps are taken in a
fresh process, as training begins in one, and the peak in another that the profiler watches.

`predict-zoo`: the keep-all step of the zoo, by measured costs and by this machine's rates alone,
beside real steps; and the kinds of ops that rates get most wrong.

`predict-plans`: plans made with measured costs against plans made by rates alone, at the same
budgets and with the same workspaces; real steps of both in turn. Limit: no slower.

Steps are medians; the spread beside them is the middle four fifths of the repeats.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from rich.console import Console

import poet
from poet.costs.analytic import analytic, with_workspaces
from poet.profiling.scratch import step_peak_bytes
from poet.reports.profile_tables import WRONG, judged
from poet.reports.tables import print_table
from poet.values.optimizers import parse_optimizer
from poet.values.plan import draft
from poet.zoo import MODELS, Task, build

JUDGED = ("resnet18?batch=8", "mobilenetv2?batch=8", "bert-base?batch=1")
SHARES = (0.8, 0.6, 0.45)
OPTIMIZER = "sgd?lr=0.001&momentum=0.9"
ZOO = tuple(
    {"bert-base": "bert-base?batch=1", "gpt2": "gpt2?batch=1"}.get(name, name) for name in MODELS
)
_STEPS = 9
_ROUNDS = 3


def budgets(models: tuple[str, ...] = JUDGED, shares: tuple[float, ...] = SHARES) -> None:
    rows = []
    for model in models:
        made, profile = _profiled(model)
        whole = _keep_all(made, profile)
        plans = [_plan(made, int(share * whole), profile) for share in shares]
        predicted: list[list[float]] = [[] for _ in shares]
        real: list[list[float]] = [[] for _ in shares]
        for turn in range(_ROUNDS):
            if turn:
                profile = _profiled(model)[1]
            for plan, foretold, took in zip(plans, predicted, real, strict=True):
                foretold.append(_seconds(plan, profile))
                took.append(median(_apart("steps", model, plan)))
        for share, plan, foretold, took in zip(shares, plans, predicted, real, strict=True):
            (seen,) = _apart("peak", model, plan)
            assert plan.peak_bytes is not None
            rows.append([
                model, f"{share:.0%}", plan.budget.transfers,
                f"{median(foretold):.3f}", _range(foretold), f"{median(took):.3f}", _range(took),
                f"{median(foretold) / median(took) - 1:+.1%}",
                f"{plan.peak_bytes / 1e6:.2f}", f"{seen / 1e6:.2f}",
                f"{plan.peak_bytes / seen - 1:+.2%}",
            ])  # fmt: skip
            print(*rows[-1], file=sys.stderr)
    print_table(
        Console(),
        [("model", "left"), ("RAM", "right"), ("transfers", "left"), ("predicted s", "right"),
         ("of", "left"), ("real s", "right"), ("of", "left"), ("off (10 %)", "right"),
         ("predicted MB", "right"), ("real MB", "right"), ("off (1 %)", "right")],
        rows,
    )  # fmt: skip


def _plan(made: Task, ram: int, profile: poet.Profile) -> poet.Plan:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        trainer = _trainer(made, ram, folder, profile)
        trainer.close()
        return trainer.plan


def _seconds(plan: poet.Plan, profile: poet.Profile) -> float:
    """What a profile says of a plan's schedule."""
    replayed = draft(plan.graph, profile.costs, plan.budget, plan.schedule)
    seconds = poet.check(replayed).seconds
    assert seconds is not None
    return seconds


def _range(seconds: list[float]) -> str:
    return f"{min(seconds):.3f} to {max(seconds):.3f}"


def zoo(models: tuple[str, ...] = ZOO) -> None:
    rows, wrong = [], defaultdict(list)
    for model in models:
        made, profile = _profiled(model, seconds=8.0)
        trainer = poet.Trainer(
            made.model, made.loss, _optimizer(), example=made.example, costs=profile, time_limit=1
        )
        took = median(_steps(trainer, made.example))
        graph = trainer.program.graph
        by_rates = analytic(graph, profile.device).keep_all_seconds
        measured = profile.costs.keep_all_seconds
        rows.append([
            model, f"{took:.4f}", f"{measured:.4f}", f"{measured / took - 1:+.1%}",
            f"{by_rates:.4f}", f"{by_rates / took:.2f}",
        ])  # fmt: skip
        print(*rows[-1], file=sys.stderr)
        for each in judged(graph, profile.costs, profile.device):
            wrong[each.kind].append(each)
    print_table(
        Console(),
        [("model", "left"), ("real s", "right"), ("measured costs s", "right"), ("off", "right"),
         ("by rates s", "right"), ("÷ real", "right")],
        rows,
    )  # fmt: skip
    kinds = []
    for kind, found in wrong.items():
        real = sum(each.seconds for each in found)
        ratio = sum(each.analytic_seconds for each in found) / real
        named = [each for each in found if each.is_wrong]
        kinds.append((abs(math.log(ratio)) * real, [
            kind, str(sum(each.ops for each in found)), f"{real * 1e3:.1f}", f"{ratio:.2f}",
            f"{len(named)} of {len(found)}",
        ]))  # fmt: skip
    print_table(
        Console(),
        [("kinds that rates get most wrong", "left"), ("ops", "right"), ("ms", "right"),
         ("by rates ÷ measured", "right"), (f"models where > {WRONG:g}×", "right")],
        [row for _, row in sorted(kinds, key=lambda each: -each[0])[:15]],
    )  # fmt: skip


def plans(models: tuple[str, ...] = JUDGED, shares: tuple[float, ...] = SHARES) -> None:
    rows = []
    for model in models:
        made, profile = _profiled(model)
        program = poet.capture(made.model, made.loss, _optimizer(), example=made.example)
        rough = with_workspaces(analytic(program.graph, profile.device), profile.workspaces_bytes)
        whole = _keep_all(made, profile)
        for share in shares:
            with tempfile.TemporaryDirectory(dir=".") as folder:
                first = _trainer(made, int(share * whole), f"{folder}/a", profile)
                other: Any = msgspec.structs.replace(profile, costs=rough)
                second = _trainer(build(model), int(share * whole), f"{folder}/b", other)
                took: tuple[list[float], list[float]] = ([], [])
                for repeat in range(2 + _STEPS):
                    for trainer, seconds in zip((first, second), took, strict=True):
                        started = time.perf_counter()
                        trainer.run(made.example)
                        if repeat >= 2:
                            seconds.append(time.perf_counter() - started)
                ours, theirs = median(took[0]), median(took[1])
                rows.append([
                    model, f"{share:.0%}", f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.3f}",
                ])  # fmt: skip
                print(*rows[-1], file=sys.stderr)
                first.close()
                second.close()
    print_table(
        Console(),
        [("model", "left"), ("RAM", "right"), ("measured costs: s", "right"),
         ("by rates: s", "right"), ("ratio (1.00)", "right")],
        rows,
    )  # fmt: skip


def _optimizer() -> Any:
    return parse_optimizer(OPTIMIZER)


def _profiled(model: str, seconds: float = 20.0) -> tuple[Task, poet.Profile]:
    made = build(model)
    program = poet.capture(made.model, made.loss, _optimizer(), example=made.example)
    return made, poet.profile(program, seconds=seconds)


def _keep_all(made: Task, profile: poet.Profile) -> int:
    program = poet.capture(made.model, made.loss, _optimizer(), example=made.example)
    plan = poet.plan(program, costs=profile, ram=2**50, method="keep-all", transfers="serial")
    assert plan.peak_bytes is not None
    return plan.peak_bytes


def _trainer(made: Task, ram: int, folder: str, profile: Any) -> poet.Trainer:
    store = poet.FileStore(folder)
    return poet.Trainer(
        made.model,
        made.loss,
        _optimizer(),
        example=made.example,
        ram=ram + store.buffer_bytes,
        store=store,
        costs=profile,
        minimize="seconds",
        time_limit=20,
    )


def _steps(trainer: poet.Trainer, example: Any) -> list[float]:
    """Seconds of steps, after two to warm up."""
    took = []
    for _ in range(2 + _STEPS):
        started = time.perf_counter()
        trainer.run(example)
        took.append(time.perf_counter() - started)
    return took[2:]


def _apart(what: str, model: str, plan: poet.Plan) -> list[Any]:
    """Seconds of steps under a plan, or the allocator's peak, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        file = Path(folder) / "plan.json"
        poet.write_json(plan, file, force=True)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.predict", what, model, str(file), folder],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: list[Any] = json.loads(done.stdout)
    return found


def _alone(what: str, model: str, plan: poet.Plan, folder: str) -> list[Any]:
    """What `_apart` asks for, in that process."""

    def trainer_of() -> tuple[poet.Trainer, Any]:
        made = build(model)
        trainer = poet.Trainer(
            made.model, made.loss, _optimizer(), example=made.example, plan=plan, store=folder
        )
        return trainer, made.example

    def watched() -> Any:
        trainer, example = trainer_of()
        return lambda: trainer.run(example)

    if what == "peak":
        return [step_peak_bytes(watched)]
    return _steps(*trainer_of())


BENCHMARKS = {"predict": budgets, "predict-zoo": zoo, "predict-plans": plans}

if __name__ == "__main__":
    torch.set_num_threads(2)
    what, model, file, folder = sys.argv[1:]
    print(json.dumps(_alone(what, model, poet.read_json(file, poet.Plan), folder)))
