"""What capture takes, what it makes, and what running its graph op by op costs.

`capture`: for each model of the zoo the seconds to capture it, ops and planning tensors before and
after merging. Peer: an eager training step of the same model (forward, backward, SGD), the least
that anybody waits for anyway. Limits: 5 s for ResNet-18, 40 s for BERT-base.

`capture-merging`: the joules of plans on merged graphs beside those on op-level graphs, same RAM,
same time. Limit: the certified bound of the op-level problem, below which no plan can be.
"""

import time
from collections.abc import Callable

from rich.console import Console
from tests.torch.eager import loss_of

import poet
from poet.planning.figures import SMALL_BYTES
from poet.reports.tables import print_table
from poet.rewrites.granularity import Granularity
from poet.tracer.program import Program
from poet.zoo import MODELS, Task, build

PLAN_SECONDS = 10.0
MERGING = ("lenet?batch=8", "resnet18-cifar", "mobilenetv2-cifar", "bert-tiny?vocab=500")


def main() -> None:
    rows = []
    for name in MODELS:
        made = build(name)
        seconds = _best(lambda made=made: _captured(made, "planning"))  # type: ignore[misc]
        apart, whole = _captured(made, "op"), _captured(made, "planning")
        eager = _best(lambda made=made: _eager_step(made))  # type: ignore[misc]
        ours = _best(whole.run)
        rows.append(
            [
                name,
                f"{seconds:.2f} s",
                f"{seconds / eager:.0f}x",
                f"{ours / eager:.2f}x",
                *(f"{len(p.graph.ops):,}" for p in (apart, whole)),
                *(f"{_tensors(p):,}" for p in (apart, whole)),
            ]
        )
    print_table(
        Console(),
        [("model", "left"), ("capture", "right"), ("of an eager step", "right"),
         ("run, of eager", "right"), ("ops", "right"), ("merged", "right"), ("tensors", "right"),
         ("merged", "right")],
        rows,
    )  # fmt: skip


def merging() -> None:
    rows = []
    for name in MERGING:
        made = build(name)
        programs = [_captured(made, "planning"), _captured(made, "op")]
        roomy = poet.plan(programs[1], "rpi4", transfers="serial", time_limit=2)
        assert roomy.peak_bytes is not None
        assert roomy.floor_bytes is not None
        for share in (0.5, 0.25, 0.1):
            ram = int(roomy.floor_bytes + share * (roomy.peak_bytes - roomy.floor_bytes))
            whole, apart = (
                poet.plan(p, "rpi4", ram, transfers="serial", time_limit=PLAN_SECONDS)
                for p in programs
            )
            bound = apart.bound_joules
            row = [name, f"{share:.0%}", f"{ram / 1e6:,.2f} MB"]
            for plan in (whole, apart):
                if plan.joules is None or bound is None:
                    row.append("none found")
                else:
                    row.append(f"{plan.joules / bound:.4f}")
            rows.append(row)
    print_table(
        Console(),
        [("model", "left"), ("RAM above floor", "right"), ("RAM", "right"),
         ("merged, of bound", "right"), ("each op, of bound", "right")],
        rows,
    )  # fmt: skip


def _captured(made: Task, granularity: Granularity) -> Program:
    return poet.capture(
        made.model,
        made.loss,
        poet.SGD(),
        example=made.example,
        granularity=granularity,
        cache=False,
    )


def _eager_step(made: Task) -> None:
    for parameter in made.model.parameters():
        parameter.grad = None
    loss_of(*made).backward()  # type: ignore[no-untyped-call]
    for parameter in made.model.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-1e-3)


def _tensors(program: Program) -> int:
    return sum(
        tensor.nbytes > SMALL_BYTES and tensor.role in ("activation", "gradient")
        for tensor in program.graph.tensors
    )


def _best(call: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


BENCHMARKS: dict[str, Callable[[], None]] = {"capture": main, "capture-merging": merging}
