"""What is planned is what runs: bytes of every storage and every op, beside torch's allocator's."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import poet
from poet.costs.analytic import analytic
from poet.devices import find_device
from poet.profiling.scratch import peak_bytes, workspaces_here
from poet.runtime.step.executor import Executor
from poet.runtime.step.machine import Machine
from poet.tracer.program import Program
from poet.training.planned import problem_here
from poet.values.plan import draft
from poet.values.schedule import Budget, Compute, Free, PageIn, PageOut, places
from poet.zoo import build
from tests.torch.eager import captured, differences
from tests.torch.onlooker import ops_seen, storages_seen
from tests.torch.operators import (
    ALL,
    ATTENTION,
    LOSSES,
    RECURRENT,
    VALUES_MATTER,
    WORDS,
    Recurrent,
)

ADAM = poet.Adam(lr=0.01)
QUICK = [
    *RECURRENT, *LOSSES, *WORDS, *ATTENTION,
    *("max pool", "unfold", "circular", "batch norm", "transposed convolution", "dropout"),
]  # fmt: skip
ZOO = ("lenet?batch=2", "resnet18-cifar?batch=2", "bert-tiny?seq=16&vocab=500")


def check_bytes(program: Program) -> None:
    assert not storages_seen(program)
    wrong = [seen for seen in ops_seen(program) if seen.planned_bytes != seen.real_bytes]
    assert not wrong


@pytest.mark.filterwarnings("ignore::poet.errors.PoetWarning")
@pytest.mark.parametrize("name", [name for name in QUICK if name not in VALUES_MATTER])
def test_operators_take_what_is_planned(name: str) -> None:
    check_bytes(captured(ALL[name](), ADAM, cache=False))


@pytest.mark.parametrize("spec", ZOO)
def test_the_zoo_takes_what_is_planned(spec: str) -> None:
    check_bytes(captured(build(spec), ADAM))


@pytest.mark.parametrize("name", [name for name in RECURRENT if "LSTM" in name])
def test_recurrent_networks_without_onednn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    program = captured(ALL[name](), ADAM, cache=False)
    assert not any("mkldnn" in call.kind for op in program.graph.ops for call in op.calls)
    check_bytes(program)


class Packed(Recurrent):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, torch.tensor([12, 9, 7, 5, 1]))
        made: torch.Tensor = self.head(pad_packed_sequence(self.net(packed)[0])[0])
        return made


@pytest.mark.filterwarnings("ignore::poet.errors.PoetWarning")
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_packed_sequences_take_what_is_planned(kind: str) -> None:
    task = (Packed(kind), (torch.randn(12, 5, 16), torch.randn(12, 5, 4)), F.mse_loss)
    check_bytes(captured(task, ADAM, cache=False))


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["SSE41", "AVX2"])
def test_on_lesser_processors(isa: str) -> None:
    """As kernels are chosen there, and with two threads."""
    lesser = {"ONEDNN_MAX_CPU_ISA": isa, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", __file__,
         "-k", "(LSTM and not without) or mse or unfold or zoo or norm or transposed"],
        env={**os.environ, **lesser},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("share", ["100%", "70%"])
def test_an_lstm_trains_within_its_budget(share: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, example = (
        Recurrent("LSTM", num_layers=2),
        (torch.randn(40, 8, 16), torch.randn(40, 8, 4)),
    )
    with poet.Trainer(
        model, F.mse_loss, ADAM, example=example, ram=share, store=tmp_path, transfers="serial",
        params="paged", time_limit=1,
    ) as trainer:  # fmt: skip
        for _ in range(2):
            trainer.step(*example)
        assert trainer.peak_bytes - trainer.store_buffer_bytes == trainer.plan.peak_bytes


def test_a_loss_does_not_keep_all_the_losses_it_sums() -> None:
    task = (nn.Linear(64, 512), (torch.randn(32, 64), torch.randn(32, 512)), F.mse_loss)
    program = captured(task, poet.SGD(lr=0.1), cache=False)
    loss = program.run().loss
    assert loss.untyped_storage().nbytes() == 4 == program.graph.tensors[program.layout.loss].nbytes
    assert not differences(*task, poet.SGD(lr=0.1))


def test_a_copy_of_a_view_can_be_paged() -> None:
    """Circular padding copies pieces of a larger tensor, in its layout."""
    task = ALL["circular"]()
    program = captured(task, poet.SGD(lr=0.1), granularity="op", cache=False)
    graph = program.graph
    gaps = [i for i, t in enumerate(graph.tensors) if t.strides and t.role == "activation"]
    assert gaps
    start, end = places(graph)
    schedule: list[Any] = []
    for k, op in enumerate(graph.ops):
        schedule.append(Compute(op=k))
        for i in set(op.outputs) & set(gaps):
            schedule += [PageOut(tensor=i), Free(tensor=i), PageIn(tensor=i)]
    budget = Budget(transfers="serial", start=start, end=end)
    plan = draft(graph, analytic(graph, find_device("laptop")), budget, tuple(schedule))
    assert poet.check(plan).violation is None
    expected = program.run().loss
    with torch.no_grad():
        for parameter in task[0].parameters():
            parameter.copy_(torch.ones_like(parameter))
    store = poet.MemoryStore()
    executor = Executor(program, plan, store)
    store.reserve(executor.pages)
    made = executor.run(None)[0].loss
    with torch.no_grad():
        for parameter in task[0].parameters():
            parameter.copy_(torch.ones_like(parameter))
    assert expected != made
    assert torch.equal(made, program.run().loss)


def test_trying_kernels_leaves_no_trace() -> None:
    program = captured(build("bert-tiny?seq=16&vocab=500"), ADAM)
    before = torch.get_rng_state()
    first = workspaces_here(program.graph, torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())
    assert workspaces_here(program.graph, torch.device("cpu")) == first


def test_a_trainer_counts_what_kernels_take() -> None:
    """Convolutions reorder their operands, on every processor."""
    made: Any = build("lenet?batch=8")
    program = captured(made, ADAM)
    here = workspaces_here(program.graph, torch.device("cpu"))
    by_rates = [runs["plain"].workspace_bytes for runs in analytic(
        program.graph, find_device("laptop")).ops]  # fmt: skip
    assert all(mine >= known for mine, known in zip(here, by_rates, strict=True))
    with poet.Trainer(
        made.model, made.loss, ADAM, example=made.example, ram="100%", time_limit=1
    ) as trainer:
        assert [runs["plain"].workspace_bytes for runs in trainer.plan.costs.ops] == list(here)
    assert problem_here(program).graph == program.graph


def test_more_than_planned_is_an_error_that_says_so() -> None:
    """As where a plan's step was captured on another processor."""
    program = captured(build("mlp"), ADAM)
    graph = program.graph
    machine = Machine(graph, None, 1000, {}, {}, wait=True, device=torch.device("cpu"))
    machine.start({})
    i = graph.ops[0].outputs[0]
    machine.made(i, torch.empty(100, dtype=torch.uint8))
    with pytest.raises(poet.OutOfBudget, match=r"has 2,000 bytes, where the plan has"):
        machine.made(i, torch.empty(2000, dtype=torch.uint8))


def test_bytes_are_watched_where_they_are_freed() -> None:
    def run() -> torch.Tensor:
        scratch = torch.empty(1000, dtype=torch.uint8)
        del scratch
        return torch.empty(600, dtype=torch.uint8)

    assert peak_bytes(run, torch.device("cpu")) == 1000


@pytest.mark.usefixtures("eager_bfloat16")
def test_statistics_under_autocast_have_their_true_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = (nn.BatchNorm1d(16), nn.GroupNorm(4, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    task = (nn.Sequential(nn.Linear(16, 16), nn.GroupNorm(4, 16)), (torch.randn(8, 16),) * 2)
    check_bytes(captured((*task, F.mse_loss), ADAM, autocast=torch.bfloat16, cache=False))
    model = nn.Sequential(nn.Linear(16, 16), *layers)
    differ: list[str] = []
    made = Machine.made

    def noted(self: Machine, i: int, tensor: torch.Tensor) -> None:
        planned, real = self.graph.tensors[i], tensor.untyped_storage().nbytes()
        if real > planned.nbytes:
            differ.append(f"{planned.name}: {real:,}, planned {planned.nbytes:,}")
        made(self, i, tensor)

    monkeypatch.setattr(Machine, "made", noted)
    batch = (torch.randn(8, 16), torch.randn(8, 4))
    how: Any = {"example": batch, "autocast": torch.bfloat16, "time_limit": 0.2, "cache": False}
    with poet.Trainer(model, F.mse_loss, poet.SGD(lr=0.1), **how) as trainer:
        trainer.step(*batch)
    assert not differ
