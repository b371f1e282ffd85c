"""Checkpoints: what is saved comes back to the bit, and saving stays within the budget."""

import copy
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import poet
from poet.errors import PoetError
from poet.runtime.state.checkpoints import read_checkpoint
from poet.runtime.state.generations import Generations
from poet.runtime.state.tensor_file import (
    CHUNK_BYTES,
)
from poet.runtime.stores.base import PageTransfer
from tests.torch.surviving import ADAMW, Alive, apart, batch, files, go_on, net, trainer


@pytest.mark.parametrize("params", ["resident", "paged"])
@pytest.mark.parametrize("name", ["run", "one.safetensors"])
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(
    params: Any, name: str, tmp_path: Path
) -> None:
    whole = trainer(tmp_path / "a", params)
    go_on(whole, 3, seed=7)
    whole.learning_rates[0] = 0.003
    whole.save(tmp_path / name)
    go_on(whole, 6)
    for late in (False, True):  # into a fresh trainer, and into one that has made steps
        other = trainer(tmp_path / "b", "paged" if params == "resident" else "resident", seed=5)
        if late:
            go_on(other, 1, seed=1)
        told = other.load(tmp_path / name)
        assert (told.steps, other.steps, list(other.learning_rates)) == (3, 3, [0.003])
        assert told.optimizer == "adamw(beta1=0.9, beta2=0.999, epsilon=1e-08, weight_decay=0.1)"
        go_on(other, 6)
        assert not apart(whole.state_dict(), other.state_dict())
        other.close()
    whole.close()


def test_training_goes_on_from_a_torch_optimizer(tmp_path: Path) -> None:
    """Adam's arithmetic depends on the number of steps, those before the trainer included."""
    model, plain = (net(0)[:3] for _ in range(2))
    updates = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, plain)]

    def step(net: nn.Module, update: torch.optim.Optimizer, number: int) -> None:
        update.zero_grad()
        x, y = batch(number)
        nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
        update.step()

    for number in range(2):
        step(model, updates[0], number)
    mine = trainer(tmp_path / "pages", "resident", model=model, optimizer=updates[0])
    assert mine.steps == 2
    go_on(mine, 3)
    mine.save(tmp_path / "run")
    go_on(mine, 4)
    mine.load(tmp_path / "run")
    go_on(mine, 4)
    for number in range(4):
        step(plain, updates[1], number)
    assert not apart(dict(model.state_dict()), dict(plain.state_dict()))


def test_two_generations_are_kept(tmp_path: Path) -> None:
    with trainer(tmp_path / "pages") as mine:
        for step in (1, 2, 3, 12):
            go_on(mine, step, seed=0)
            mine.save(tmp_path / "run")
        assert files(tmp_path / "run") == [
            "step-00000003.json", "step-00000003.safetensors",
            "step-00000012.json", "step-00000012.safetensors",
        ]  # fmt: skip
        one = tmp_path / "run" / "step-00000003.safetensors"
        assert mine.load(one).steps == 3  # each is a checkpoint of its own
        left = tmp_path / "run" / "step-00000099.safetensors.123456-0a0b.part"
        left.touch()
        orphan = tmp_path / "run" / "step-00000050.safetensors"
        orphan.touch()
        notes = tmp_path / "run" / "notes.part"
        notes.touch()
        go_on(mine, 4)
        mine.save(tmp_path / "run")  # who saves step 4 has gone back: 12 is no more
        assert files(tmp_path / "run") == [
            "notes.part", "step-00000003.json", "step-00000003.safetensors",
            "step-00000004.json", "step-00000004.safetensors",
        ]  # fmt: skip


def test_half_a_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    killed = subprocess.Popen(["true"])
    killed.wait()
    names = [f"one.safetensors.{process}-0a.part" for process in (killed.pid, os.getpid())]
    for name in (*names, "one.safetensors.part"):
        (tmp_path / name).touch()
    with trainer(tmp_path / "pages", "resident") as mine:
        mine.save(tmp_path / "one.safetensors")
    assert files(tmp_path) == ["one.safetensors", names[1], "one.safetensors.part", "pages"]


def test_what_was_learned_is_not_overwritten(tmp_path: Path) -> None:
    with trainer(tmp_path / "pages") as mine:
        go_on(mine, 2, seed=0)
        mine.save(tmp_path / "run")
    with trainer(tmp_path / "pages") as other:
        with pytest.raises(PoetError, match=r"another training, up to step 2: load them"):
            other.save(tmp_path / "run")
        other.load(tmp_path / "run")
        other.save(tmp_path / "run")
        with (
            Generations(tmp_path / "run"),
            pytest.raises(PoetError, match=r"another process keeps its checkpoints in .*run"),
        ):
            other.save(tmp_path / "run")


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "narrower": ({"model": net(width=32)}, r"another model: model/0.weight is float32 \[64, 16\]"),
    "another dtype": ({"model": net().double(), "example": (batch(0)[0].double(), batch(0)[1])},
                      r"model/0.weight is float32 \[64, 16\] there and float64 \[64, 16\] here"),
    "fewer layers": ({"model": nn.Sequential(*list(net())[:4], nn.Flatten(), nn.Linear(64, 4))},
                     r"another model: it has no model/5.weight"),
    "sgd": ({"optimizer": poet.SGD(lr=0.01)}, r"another optimizer: it is adamw\(.*and sgd\("),
    "adam": ({"optimizer": poet.Adam(lr=0.01)}, r"another optimizer: it is adamw\(.*and adam\("),
    "decay": ({"optimizer": poet.AdamW(weight_decay=0.2)}, r"weight_decay=0.1\) there .*=0.2"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOREIGN)
def test_a_checkpoint_of_something_else_changes_nothing(what: str, tmp_path: Path) -> None:
    with trainer(tmp_path / "a", "resident") as mine:
        go_on(mine, 1, seed=0)
        mine.save(tmp_path / "run")
    options, message = FOREIGN[what]
    with trainer(tmp_path / "b", "resident", **copy.deepcopy(options)) as other:
        before, drawn = other.state_dict(), torch.get_rng_state()
        with pytest.raises(PoetError, match=message):
            other.load(tmp_path / "run")
        assert not apart(before, other.state_dict())
        assert torch.equal(drawn, torch.get_rng_state())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.idle = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.second(self.first(x).relu())
        return made


def test_weights_for_anybody(tmp_path: Path) -> None:
    """Also where one tensor has two names, one has no use, and parameters are in the store."""
    model, plain = Tied(), Tied()
    mine = trainer(tmp_path / "pages", model=model)
    go_on(mine, 2)
    mine.save_weights(tmp_path / "w.safetensors")
    mine.save(tmp_path / "run")
    assert bool(model.first.weight.isnan().all())  # it stays in the store
    plain.load_state_dict(safetensors.torch.load_file(tmp_path / "w.safetensors"))
    mine.close()
    assert not apart(dict(model.state_dict()), dict(plain.state_dict()))
    other = trainer(tmp_path / "pages", model=Tied())
    other.load(tmp_path / "run")
    assert not apart(dict(other.program.model.state_dict()), dict(plain.state_dict()))
    assert set(read_checkpoint(tmp_path / "run" / "step-00000002.safetensors")[1].places) >= {
        "model/idle", "model/first.weight", "optimizer/first.weight/exp_avg",
    }  # fmt: skip


class Watched(poet.FileStore):
    """A store that has somebody look when a page has come, or is about to go."""

    look: Callable[[], int] = staticmethod(lambda: 0)

    def write(self, page: int, storage: torch.UntypedStorage, now: bool = False) -> PageTransfer:
        self.look()
        return super().write(page, storage, now)

    def read(self, page: int, storage: torch.UntypedStorage, now: bool = False) -> PageTransfer:
        transfer = super().read(page, storage, now)
        self.look()
        return transfer


def test_a_paged_model_is_saved_and_loaded_within_the_budget(tmp_path: Path) -> None:
    model = nn.Sequential(
        *(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())), nn.Linear(256, 4)
    )
    example = (torch.randn(2, 256), torch.randint(0, 4, (2,)))
    largest, whole = 256 * 256 * 4, 3 * sum(p.nbytes for p in model.parameters())
    program = poet.capture(model, nn.functional.cross_entropy, ADAMW, example=example)
    tight = poet.plan(program, "laptop", "min", params="paged", transfers="serial", time_limit=1)
    assert tight.peak_bytes is not None
    assert tight.peak_bytes < whole / 3
    store = Watched(tmp_path / "pages", chunk_bytes=4096)
    budget = tight.peak_bytes + store.buffer_bytes
    mine = poet.Trainer(
        model,
        nn.functional.cross_entropy,
        ADAMW,
        example=example,
        ram=budget,
        store=store,
        params="paged",
        plan=tight,
    )

    def save_weights(_: Path) -> None:
        mine.save_weights(tmp_path / "w.safetensors")

    mine.step(*example)
    for path in (tmp_path / "run", tmp_path / "one.safetensors"):
        for what in (mine.save, mine.load, save_weights):
            tracemalloc.start()
            with Alive(mine.program.homes().values(), store._buffers.bytes) as alive:
                store.look = alive.look
                assert alive.look() == 0
                what(path)
                assert alive.look() < 10_000  # random states
            python_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert largest <= alive.peak_bytes <= largest + 20_000
            assert alive.peak_bytes + store.buffer_bytes <= budget
            assert python_bytes < 2 * CHUNK_BYTES + 300_000  # a header, a buffer, random states
    mine.step(*example)
    mine.close()
    store.close()


def test_a_large_model_passes_through_little_memory(tmp_path: Path) -> None:
    """As the system sees it: a process with parameters in a store saves 48 MB, and loads them."""
    script = """
import resource, sys, torch, poet
from torch import nn
torch.set_num_threads(1)
def resident():
    return int(open('/proc/self/statm').read().split()[1]) * 4096
def high():
    for line in open('/proc/self/status'):
        if line.startswith('VmHWM'): return int(line.split()[1]) * 1024
model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(4)), nn.Linear(1000, 2))
example = (torch.randn(1, 1000), torch.tensor([0]))
trainer = poet.Trainer(model, nn.functional.cross_entropy, poet.Adam(), example=example,
                       params='paged', store=sys.argv[1] + '/pages', ram='24 MB', time_limit=1)
trainer.step(*example)
trainer.save(sys.argv[1] + '/run')
for call in (trainer.save, trainer.load):
    open('/proc/self/clear_refs', 'w').write('5')  # the high-water mark starts anew
    before = resident()
    call(sys.argv[1] + '/run')
    print(high() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        # The allocator shall give back what is freed, so that the system sees it.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    saving, loading = map(int, done.stdout.split())
    assert min(saving, loading) > 3e6  # a tensor has 4 MB
    assert max(saving, loading) < 10e6  # of 48 MB
