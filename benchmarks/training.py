"""What training under a plan costs, side by side with eager PyTorch in one run.

`train-overhead`: a step with no limit on RAM. Peer: an eager step with the same optimizer. Limit:
1.05 times its time.

`wrap-overhead`: a step of a loop with a wrapped model, with no limit on RAM. Peer: the same loop
with the plain model, in the same process: a step of each, then of each the other way round, and so
on. Ratios are medians over such pairs, with their quartiles; those of processor time are changed
less by other programs on the machine. Limit: 1.05 times eager's time.

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
from statistics import median, quantiles
from typing import Any, NamedTuple

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


def wrap_overhead(seconds: float = 12.0) -> None:
    rows = []
    for name in ("resnet18-cifar?batch=128", "resnet18-cifar?batch=32", "resnet18-cifar",
                 "bert-tiny?batch=8"):  # fmt: skip
        made = build(name)
        example: Any = made.example
        given = (example[:-1], None) if isinstance(example, tuple) else ((), example)
        small = poet.wrap(
            copy.deepcopy(made.model), example=given[0], kwargs=given[1], time_limit=5
        )
        theirs, ours = (
            _loop(Task(model, made.example, made.loss)) for model in (made.model, small)
        )
        pairs = _pairs(theirs, ours, seconds)
        walls = [mine.wall / eager.wall for eager, mine in pairs]
        cpus = [mine.cpu / eager.cpu for eager, mine in pairs]
        walls_of = [f"{median(each[side].wall for each in pairs) * 1e3:.2f} ms" for side in (0, 1)]
        rows.append([
            name, *walls_of, _spread(walls), _spread(cpus),
            str(len(pairs)), "1.05",
        ])  # fmt: skip
    names = ("model", "eager", "ours", "ratio (quartiles)", "of processor time", "pairs", "limit")
    columns = [(name, "right" if k else "left") for k, name in enumerate(names)]
    print_table(Console(), columns, rows)  # type: ignore[arg-type]


class _Took(NamedTuple):
    wall: float
    cpu: float


def _pairs(
    first: Callable[[], object], second: Callable[[], object], seconds: float
) -> list[tuple[_Took, _Took]]:
    """Steps of both, side by side, for so long: first and second, second and first, and so on."""
    for _ in range(3):
        first()
        second()
    gc.collect()
    pairs: list[tuple[_Took, _Took]] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        one, other = _took(first), _took(second)
        late, early = _took(second), _took(first)
        pairs += [(one, other), (early, late)]
    return pairs


def _took(step: Callable[[], object]) -> _Took:
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return _Took(time.perf_counter() - wall, time.process_time() - cpu)


def _spread(ratios: list[float]) -> str:
    low, middle, high = quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


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
    times: tuple[list[float], list[float]] = ([], [])
    for n in range(rounds + 1):
        for call, kept in zip((first, second), times, strict=True):
            gc.collect()
            took = _took(call).wall
            if n:  # the first warms up
                kept.append(took)
    return min(times[0]), min(times[1])


BENCHMARKS: dict[str, Callable[[], None]] = {
    "train-overhead": overhead,
    "wrap-overhead": wrap_overhead,
    "train-budgets": budgets,
    "train-bert": bert,
}
