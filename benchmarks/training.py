"""What training under a plan costs, side by side with eager PyTorch in one run.

`train-overhead`: a step with no limit on RAM. Peer: an eager step with the same optimizer. Limit:
1.05 times its time.

`wrap-overhead`: a step of a loop with a wrapped model, with no limit on RAM. Peer: the same loop
with the plain model. Limit: 1.05 times its processor time, which other programs on the machine
change less than the time on the clock.

`train-budgets`: 20 steps under budgets at 100 %, 60 %, 40 % of the keep-all peak and at the
smallest that a plan was found for. Peer: eager, bit for bit. Limit: the budget, against the
measured peak.

`train-bert`: BERT-base, batch 4, 128 tokens, with a third of eager's peak over the parameters.
Limit: 1.2 times eager's time. Peaks of eager are the live bytes of its own storages.
"""

import copy
import gc
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from tests.torch.eager import loss_of, same_bits, torch_optimizer
from tests.torch.live_storage import LiveStorage

import poet
from poet.planning.figures import keep_all_bytes
from poet.reports.tables import print_table
from poet.zoo import Task, build

SGD = poet.SGD(lr=1e-3)
ADAMW = poet.AdamW(lr=1e-3)
MODELS = (
    "resnet18-cifar?batch=4",
    "mobilenetv2-cifar?batch=4",
    "bert-tiny?vocab=1000",
    "gpt2?layers=2&seq=64&vocab=1000",
    "unet?size=64&width=16",
)


def overhead() -> None:
    rows = []
    for name in ("resnet18?batch=8", "bert-base?batch=4"):
        made = build(name)
        step, plain = _trainer(made, SGD), _eager(made, SGD)
        ours, theirs = _in_turn(step, plain, rounds=8)
        rows.append([name, f"{theirs:.3f} s", f"{ours:.3f} s", f"{ours / theirs:.3f}", "1.05"])
    print_table(
        Console(),
        [("model", "left"), ("eager", "right"), ("ours", "right"), ("ratio", "right"),
         ("limit", "right")],
        rows,
    )  # fmt: skip


def wrap_overhead(rounds: int = 8) -> None:
    rows = []
    for name in ("resnet18-cifar?batch=32", "resnet18-cifar?batch=2"):
        made = build(name)
        example: Any = made.example
        small = poet.wrap(copy.deepcopy(made.model), example=example[:-1], time_limit=5)
        ours, theirs = (
            _loop(Task(model, made.example, made.loss)) for model in (small, made.model)
        )
        clocks = (time.perf_counter, time.process_time)
        (wall, cpu), (eager_wall, eager_cpu) = _clocked(ours, theirs, rounds, clocks)
        rows.append([
            name, f"{eager_wall:.4f} s", f"{wall:.4f} s", f"{wall / eager_wall:.3f}",
            f"{eager_cpu:.4f} s", f"{cpu:.4f} s", f"{cpu / eager_cpu:.3f}", "1.05",
        ])  # fmt: skip
    names = ("model", "eager", "ours", "ratio", "eager, processor", "ours, processor", "ratio",
             "limit")  # fmt: skip
    columns = [(name, "right" if k else "left") for k, name in enumerate(names)]
    print_table(Console(), columns, rows)  # type: ignore[arg-type]


def _loop(made: Task) -> Callable[[], object]:
    optimizer = torch.optim.SGD(made.model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(*made).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def budgets(steps: int = 20) -> None:
    rows = []
    for name in MODELS:
        made = build(name)
        program = poet.capture(made.model, made.loss, ADAMW, example=made.example)
        whole = keep_all_bytes(program.graph)
        for share in (1.0, 0.6, 0.4, None):
            ram = None if share is None else int(share * whole)
            if ram is None:
                ram = poet.plan(
                    program, "laptop", "min", params="paged", transfers="serial", time_limit=10
                ).peak_bytes
            assert ram is not None
            rows.append(_budget_row(made, name, ram, whole, steps))
    print_table(
        Console(),
        [("model", "left"), ("RAM", "right"), ("of keep-all", "right"), ("peak", "right"),
         ("parameters", "left"), ("bits", "left"), ("step, of eager", "right")],
        rows,
    )  # fmt: skip


def _budget_row(made: Task, name: str, ram: int, whole: int, steps: int) -> list[str]:
    model, plain = copy.deepcopy(made.model), copy.deepcopy(made.model)
    update = torch_optimizer(ADAMW, plain)
    assert update is not None
    with tempfile.TemporaryDirectory() as folder:
        store = poet.FileStore(folder)
        trainer = poet.Trainer(
            model,
            made.loss,
            ADAMW,
            example=made.example,
            ram=ram + store.buffer_bytes,
            store=store,
            time_limit=10,
        )
        same, ours, theirs = True, [], []
        for step in range(steps):
            torch.manual_seed(step)
            started = time.perf_counter()
            plain.zero_grad(set_to_none=True)
            loss = loss_of(plain, made.example, made.loss)
            loss.backward()  # type: ignore[no-untyped-call]
            update.step()
            theirs.append(time.perf_counter() - started)
            torch.manual_seed(step)
            started = time.perf_counter()
            mine = trainer.run(made.example).loss
            ours.append(time.perf_counter() - started)
            same &= same_bits(mine, loss.detach())
        kept = "paged" if trainer.is_paged else "resident"
        with trainer.unpaged():
            state = model.state_dict()
            same &= all(same_bits(v, state[n]) for n, v in plain.state_dict().items())
        peak = trainer.peak_bytes - store.buffer_bytes
        trainer.close()
    held = "within" if peak <= ram else "ABOVE"
    return [
        name, f"{ram / 1e6:.2f} MB", f"{ram / whole:.0%}", f"{peak / 1e6:.2f} MB ({held})", kept,
        "equal" if same else "DIFFERENT", f"{min(ours) / min(theirs):.2f}",
    ]  # fmt: skip


def bert() -> None:
    made = build("bert-base?batch=4&seq=128")
    parameters = sum(p.numel() * p.element_size() for p in made.model.parameters())
    plain = copy.deepcopy(made.model)
    eager = _eager(Task(plain, made.example, made.loss), SGD)
    eager()
    with LiveStorage(plain.parameters()) as live:
        eager()
    over = live.peak_bytes - parameters
    with tempfile.TemporaryDirectory() as folder:
        store = poet.FileStore(folder)
        trainer = poet.Trainer(
            made.model,
            made.loss,
            SGD,
            example=made.example,
            ram=parameters + over // 3,
            store=store,
            time_limit=30,
        )
        ours, theirs = _in_turn(lambda: trainer.run(made.example), eager, rounds=5)
        peak = trainer.peak_bytes - parameters
        print_table(
            Console(),
            [("", "left"), ("eager", "right"), ("ours", "right"), ("ratio", "right"),
             ("limit", "right")],
            [
                ["peak over parameters", f"{over / 1e6:.1f} MB", f"{peak / 1e6:.1f} MB",
                 f"{peak / over:.3f}", "0.333"],
                ["step", f"{theirs:.3f} s", f"{ours:.3f} s", f"{ours / theirs:.3f}", "1.2"],
            ],
        )  # fmt: skip
        trainer.close()


def _trainer(made: Task, optimizer: Any) -> Callable[[], object]:
    trainer = poet.Trainer(
        copy.deepcopy(made.model), made.loss, optimizer, example=made.example, time_limit=5
    )
    return lambda: trainer.run(made.example)


def _eager(made: Task, optimizer: Any) -> Callable[[], object]:
    update = torch_optimizer(optimizer, made.model)
    assert update is not None

    def step() -> None:
        update.zero_grad(set_to_none=True)
        loss_of(*made).backward()  # type: ignore[no-untyped-call]
        update.step()

    return step


def _in_turn(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """The best of some rounds of each, one after the other, so that both see the same machine."""
    ((one,), (other,)) = _clocked(first, second, rounds, (time.perf_counter,))
    return one, other


def _clocked(
    first: Callable[[], object],
    second: Callable[[], object],
    rounds: int,
    clocks: tuple[Callable[[], float], ...],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The same by each of some clocks."""
    times: tuple[list[Any], list[Any]] = ([], [])
    for n in range(rounds + 1):
        for call, kept in zip((first, second), times, strict=True):
            gc.collect()
            started = [clock() for clock in clocks]
            call()
            if n:  # the first warms up
                kept.append([clock() - then for clock, then in zip(clocks, started, strict=True)])
    best = [tuple(map(min, zip(*kept, strict=True))) for kept in times]
    return best[0], best[1]


BENCHMARKS: dict[str, Callable[[], None]] = {
    "train-overhead": overhead,
    "wrap-overhead": wrap_overhead,
    "train-budgets": budgets,
    "train-bert": bert,
}
