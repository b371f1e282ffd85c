"""Gathered, clipped and scaled gradients: the bits of the loop that people write."""

import copy
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

import poet
from poet.errors import PoetError
from poet.planning.figures import keep_all_bytes
from poet.values.update_rules import UpdateRule
from tests.torch.eager import same_bits
from tests.torch.live_storage import LiveStorage
from tests.torch.loops import (
    LOSS,
    Eager,
    Loop,
    Planned,
    adamw,
    batch,
    folder_of,
    net,
    sgd,
    steps_apart,
    trainings_apart,
)

SCALER = partial(torch.amp.GradScaler, "cpu", init_scale=2.0**100, growth_interval=2)
LOOPS = {
    "accumulate": Loop(accumulate=2),
    "norm": Loop(clip_norm=0.1),
    "value": Loop(clip_value=0.001),
    "accumulate, norm": Loop(accumulate=3, clip_norm=0.5),
    "accumulate, value": Loop(accumulate=2, clip_value=0.01),
    "scaler": Loop(scaler=SCALER),
    "all": Loop(accumulate=2, clip_norm=0.3, scaler=SCALER),
}


@pytest.mark.parametrize("params", ["resident", "paged"])
@pytest.mark.parametrize("which", LOOPS)
def test_the_bits_of_the_loop_that_people_write(which: str, params: str, tmp_path: Path) -> None:
    model, loop = net(), LOOPS[which]
    make = adamw if params == "paged" else sgd
    eager = Eager(model, make, loop)
    mine = Planned(model, make, loop, **folder_of(tmp_path, params))
    with mine.trainer as trainer:
        assert not steps_apart(eager, mine, range(2 * loop.accumulate + 1))
        assert not steps_apart(eager, mine, range(2 * loop.accumulate + 1, 3 * loop.accumulate))
        assert trainer.is_paged == (params == "paged")
        assert trainer.steps == 3 * loop.accumulate
        if loop.clip_norm is not None:
            assert loop.clip_norm < eager.norms[-1] == trainer.gradient_norm
        if eager.scaler is not None:
            assert mine.scaler is not None
            assert mine.scaler.state_dict() == eager.scaler.state_dict()
        assert trainer.updates == (3 if loop.scaler is None else trainer.updates)


def test_half_precision_with_a_scaler_that_skips_and_grows(tmp_path: Path) -> None:
    scaler = partial(torch.amp.GradScaler, "cpu", init_scale=2.0**24, growth_interval=2)
    model, loop = net(), Loop(scaler=scaler, autocast=torch.float16, clip_norm=1.0)
    eager = Eager(model, adamw, loop)
    mine = Planned(model, adamw, loop, **folder_of(tmp_path, "paged"))
    with mine.trainer as trainer:
        scales = []
        for n in range(12):
            assert not steps_apart(eager, mine, range(n, n + 1))
            assert mine.scaler is not None
            scales.append(mine.scaler.get_scale())
        assert eager.scaler is not None
        assert mine.scaler is not None
        assert mine.scaler.state_dict() == eager.scaler.state_dict()
        assert 0 < trainer.updates < trainer.steps == 12  # it was skipped, and trained
        assert any(after > before for before, after in itertools.pairwise(scales))


def test_a_run_goes_on_in_the_middle_of_an_accumulation(tmp_path: Path) -> None:
    loop = Loop(accumulate=3, clip_norm=0.3, scaler=partial(torch.amp.GradScaler, "cpu"))
    model = net()
    eager = Eager(model, adamw, loop)
    first = Planned(model, adamw, loop, **folder_of(tmp_path, "paged"))
    with first.trainer as trainer:
        assert not steps_apart(eager, first, range(5))
        trainer.save(tmp_path / "run")
        state, then = copy.deepcopy(trainer.state_dict()), eager.copied()
    other = Planned(net(1), adamw, loop)
    with other.trainer as trainer:  # another place for parameters, the same training
        kept = trainer.load(tmp_path / "run")
        assert (kept.steps, kept.updates, kept.gathered) == (5, 1, 2)
        assert not trainings_apart(eager, trainer)
        assert not steps_apart(eager, other, range(5, 6))
        assert (trainer.steps, trainer.updates) == (6, 2)
        trainer.load_state_dict(state)
        assert (trainer.steps, trainer.updates) == (5, 1)
        assert not steps_apart(then, other, range(5, 7))
    unlike = Planned(net(), adamw, Loop(accumulate=2, clip_norm=0.3))
    with unlike.trainer as trainer, pytest.raises(PoetError, match="once in 3 batches"):
        trainer.load(tmp_path / "run")


@pytest.mark.parametrize("loop", [Loop(accumulate=2), Loop(accumulate=2, clip_norm=0.3)])
def test_gathered_gradients_stay_within_the_budget(loop: Loop, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip
    rule = UpdateRule(accumulate=loop.accumulate, clip_norm=loop.clip_norm)
    program = poet.capture(model, LOSS, adamw(model), example=batch(0), updates=rule)
    ram = int(0.8 * keep_all_bytes(program.graph))
    gathered = sum(p.nbytes for p in model.parameters())
    assert ram < 4 * gathered  # parameters, two moments and gradients would not fit
    eager = Eager(model, adamw, loop)
    store = poet.FileStore(tmp_path)
    mine = Planned(model, adamw, loop, ram=ram + store.buffer_bytes, store=store, params="paged",
                   time_limit=1)  # fmt: skip
    with mine.trainer as trainer:
        assert not steps_apart(eager, mine, range(4))
        trainer.step(*batch(4))  # parameters go back to the store
        for n in range(5, 7):  # one step that updates, and one that gathers
            with LiveStorage(batch(n)) as live:
                trainer.step(*batch(n))
            assert live.peak_bytes <= ram
        assert trainer.peak_bytes <= ram + store.buffer_bytes


def test_a_smaller_batch_within_an_accumulation(tmp_path: Path) -> None:
    model, loop = net(), Loop(accumulate=2)
    eager = Eager(model, sgd, loop)
    mine = Planned(model, sgd, loop, **folder_of(tmp_path, "paged"))
    with mine.trainer:
        assert not steps_apart(eager, mine, range(1))
        assert not steps_apart(eager, mine, range(1, 2), size=5)
        assert not steps_apart(eager, mine, range(2, 3), size=5)
        assert not steps_apart(eager, mine, range(3, 4))


@pytest.mark.parametrize("params", ["resident", "paged"])
def test_gradients_gathered_so_far_can_be_given_up(params: str, tmp_path: Path) -> None:
    model, loop = net(), Loop(accumulate=2)
    eager = Eager(model, adamw, loop)
    mine = Planned(model, adamw, loop, **folder_of(tmp_path, params))
    with mine.trainer as trainer:
        assert not steps_apart(eager, mine, range(3))
        trainer.zero_grad()
        eager.optimizer.zero_grad()
        eager.steps -= 1
        assert not steps_apart(eager, mine, range(3, 5))
        trainer.zero_grad()  # nothing is gathered
        assert trainer.updates == 2


def test_a_model_does_not_change_within_an_accumulation() -> None:
    model = net()
    mine = Planned(model, sgd, Loop(accumulate=2))
    with mine.trainer as trainer:
        trainer.step(*batch(0))
        model[7].weight.requires_grad_(False)
        with pytest.raises(PoetError, match=r"7\.weight was frozen or unfrozen after 1 of"):
            trainer.step(*batch(1))
        trainer.zero_grad()
        trainer.step(*batch(1))
        trainer.step(*batch(2))
        assert trainer.updates == 1


def test_the_optimizer_of_a_trainer_in_a_loop_of_old(tmp_path: Path) -> None:
    model = net()
    eager, mine = Eager(model, adamw, Loop()), Planned(model, adamw, Loop())
    x, y = batch(0)
    with mine.trainer as trainer:
        for n in range(3):
            torch.manual_seed(n)
            expected = eager.step(*batch(n))
            mine.optimizer.zero_grad()
            torch.manual_seed(n)
            assert same_bits(trainer.step(*batch(n)), expected)
            mine.optimizer.step()  # there are no gradients: nothing happens
        assert not trainings_apart(eager, trainer)
        LOSS(model(x), y).backward()
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(PoetError, match=r"inside trainer\.step"):
            mine.optimizer.step()
        assert all(map(same_bits, before.values(), model.state_dict().values()))
        mine.optimizer.zero_grad()
        trainer.step(x, y)
    mine.optimizer.step()  # closed: the optimizer is the user's again


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"accumulate": 0}, "accumulate is 0"),
        ({"accumulate": 1.5}, r"accumulate is 1\.5"),
        ({"clip_norm": -1.0}, r"clip_norm is -1\.0"),
        ({"clip_value": float("nan")}, "clip_value is nan"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "give one"),
        ({"scaler": 2.0}, r"give a torch\.amp\.GradScaler"),
    ],
)
def test_what_is_no_rule_is_refused(asked: dict[str, Any], text: str) -> None:
    model = net()
    with pytest.raises(PoetError, match=text):
        poet.Trainer(model, LOSS, sgd(model), example=batch(0), **asked)


def test_a_rule_needs_an_optimizer_and_one_dtype() -> None:
    with pytest.raises(PoetError, match="no optimizer is given"):
        poet.Trainer(net(), LOSS, example=batch(0), accumulate=2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1).double())
    rule = UpdateRule(clip_norm=1.0)

    def loss(made: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((made - y) ** 2).mean()

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = model[1](model[0](x).double())
            return made

    example = (torch.randn(2, 4), torch.randn(2, 1).double())
    with pytest.raises(PoetError, match="different dtypes"):
        poet.capture(Mixed(), loss, poet.SGD(), example=example, updates=rule, cache=False)


def test_a_disabled_scaler_does_nothing() -> None:
    model = net()
    scaler = partial(torch.amp.GradScaler, "cpu", enabled=False)
    eager = Eager(model, sgd, Loop())
    mine = Planned(model, sgd, Loop(scaler=scaler))
    with mine.trainer:
        assert not steps_apart(eager, mine, range(2))


@pytest.mark.parametrize("loop", [Loop(accumulate=2), Loop(accumulate=2, clip_norm=0.2)])
def test_parameters_in_tiles_follow_the_rule(loop: Loop, tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    eager = Eager(model, adamw, loop)
    own = poet.AdamW(lr=0.01)
    options = folder_of(tmp_path, "streamed") | {"ram": "800 KB", "time_limit": 0.5}
    with poet.Trainer(
        model, LOSS, own, example=batch(0), accumulate=2, clip_norm=loop.clip_norm, **options
    ) as trainer:
        assert trainer.is_paged
        for n in range(4):
            torch.testing.assert_close(trainer.step(*batch(n)), eager.step(*batch(n)))
        assert trainer.peak_bytes <= 800_000
        with trainer.unpaged() as whole:
            for name, value in eager.model.state_dict().items():
                torch.testing.assert_close(whole.state_dict()[name], value)


def test_a_command_gathers_and_goes_on(poet_command: Any, tmp_path: Path) -> None:
    def train(*more: Any, run: str) -> Any:
        return poet_command(
            "train", "mlp?batch=4", "--ram", "6MB", "--store", tmp_path / run / "pages",
            "--accumulate", 3, "--clip-norm", 0.1, "--time-limit", 0.2, "--json",
            "--checkpoint", tmp_path / run, *more,
        )  # fmt: skip

    assert train("--steps", 5, run="one").code == 0
    assert train("--steps", 7, "--resume", run="one").code == 0
    assert train("--steps", 7, run="two").code == 0
    ends = [tmp_path / run / "step-00000007.safetensors" for run in ("one", "two")]
    with safe_open(ends[0], "pt") as one, safe_open(ends[1], "pt") as two:
        assert list(one.keys()) == list(two.keys())
        assert any(name.endswith("/gathered") for name in one.keys())  # noqa: SIM118
        assert all(same_bits(one.get_tensor(n), two.get_tensor(n)) for n in one.keys())  # noqa: SIM118
    refused = poet_command(
        "train", "mlp?batch=4", "--time-limit", 0.2, "--steps", 9, "--resume",
        "--checkpoint", tmp_path / "one",
    )  # fmt: skip
    assert refused.code == 2
    assert "once in 3 batches, clipped at a norm of 0.1 there" in refused.err
