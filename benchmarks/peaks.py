"""The RAM that a step takes, as four onlookers see it, each in a process of its own.

`train-peak`: what the plan says, what the runtime counted, what torch's profiler saw the allocator
give out (beside what was there before the step), and how far the resident memory of a fresh process
rose in its first steps. Peer: the same for eager. The last two include what kernels take for
themselves; the last also what the C library keeps.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from tests.torch.eager import captured, loss_of, torch_optimizer
from tests.torch.onlooker import ops_seen, storages_seen
from tests.torch.operators import ALL
from tests.torch.test_bits import SMALL
from torch.profiler import ProfilerActivity, profile

import poet
from poet.planning.figures import keep_all_bytes
from poet.reports.tables import print_table
from poet.training.planned import problem_here
from poet.zoo import MODELS as MODELS_BY_NAME
from poet.zoo import build

MODELS = ("resnet18-cifar?batch=16", "bert-base?layers=4&batch=4", "unet?size=128")
SGD = poet.SGD(lr=1e-3)


def main() -> None:
    rows = []
    for model in MODELS:
        for share in (None, 1.0, 0.5):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.peaks", model, str(share or "eager")],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            seen = json.loads(done.stdout)
            name = "eager" if share is None else f"{share:.0%} of keep-all"
            figures = [seen[key] for key in ("plan", "counted", "allocator", "resident")]
            rows.append([model, name, *("" if x is None else f"{x / 1e6:.1f} MB" for x in figures)])
    print_table(
        Console(),
        [("model", "left"), ("RAM", "left"), ("plan", "right"), ("counted", "right"),
         ("allocator", "right"), ("resident", "right")],
        rows,
    )  # fmt: skip


def operators() -> None:
    rows = []
    small = {name: f"{name}{SMALL.get(name, '')}" for name in MODELS_BY_NAME}
    tasks: dict[str, Callable[[], Any]] = {
        **ALL, **{name: partial(build, spec) for name, spec in small.items()}
    }  # fmt: skip
    for name, make in tasks.items():
        program = captured(make(), poet.Adam(lr=1e-3), cache=False)
        storages, ops = storages_seen(program), ops_seen(program)
        wrong = [op for op in ops if op.planned_bytes != op.real_bytes]
        most = max((op.real_bytes - op.planned_bytes for op in wrong), key=abs, default=0)
        kinds = {call.kind for op in program.graph.ops for call in op.calls}
        rows.append([name, str(len(ops)), str(len(kinds)), str(len(storages)), str(len(wrong)),
                     f"{most:+,} B" if wrong else ""])  # fmt: skip
        print(*rows[-1], file=sys.stderr)
    print_table(
        Console(),
        [("model", "left"), ("ops", "right"), ("operators", "right"), ("storages off", "right"),
         ("ops off", "right"), ("by at most", "right")],
        rows,
    )  # fmt: skip


def measure(model: str, share: str) -> dict[str, int | None]:
    """One model, eager or with a share of its keep-all peak."""
    made = build(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = None
        if share == "eager":
            update = torch_optimizer(SGD, made.model)
            assert update is not None

            def step() -> None:
                update.zero_grad(set_to_none=True)
                loss_of(*made).backward()  # type: ignore[no-untyped-call]
                update.step()
        else:
            program = poet.capture(made.model, made.loss, SGD, example=made.example)
            ram = int(float(share) * keep_all_bytes(problem_here(program)))
            store = poet.FileStore(folder)
            trainer = poet.Trainer(
                made.model,
                made.loss,
                SGD,
                example=made.example,
                ram=ram + store.buffer_bytes,
                store=store,
                time_limit=10,
            )

            def step() -> None:
                trainer.run(made.example)

        given = sum(t.untyped_storage().nbytes() for t in made.model.state_dict().values())
        before = _high_water()
        step()
        step()
        resident = _high_water() - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            step()
        paged = trainer is not None and trainer.is_paged
        allocator = _allocator_peak(seen) + (0 if paged else given)
        result = {
            "plan": None if trainer is None else trainer.plan.peak_bytes,
            "counted": None if trainer is None else trainer.peak_bytes - trainer.store_buffer_bytes,
            "allocator": allocator,
            "resident": resident + given,
        }
        if trainer is not None:
            trainer.close()
    return result


def _high_water() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _allocator_peak(seen: profile) -> int:
    """The most that was given out and not yet taken back, from the profiler's memory events."""
    recorded: Any = seen.profiler
    events = [e for e in recorded.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


BENCHMARKS = {"train-peak": main, "operator-peaks": operators}

if __name__ == "__main__":
    torch.set_num_threads(2)
    print(json.dumps(measure(sys.argv[1], sys.argv[2])))
