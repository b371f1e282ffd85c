"""What `poet.fit` says before a training, beside what the training then takes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import poet
from poet.planning.fit import Fit
from poet.tracer.by_name import capture_named, layout_named
from poet.zoo import build
from tests.conftest import Poet

CE = nn.functional.cross_entropy


def conv(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


def images(batch: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, 24, 24), torch.randint(0, 10, (batch,))


def fitted(model: Any, example: Any, **more: Any) -> Fit:
    return poet.fit(model, CE, poet.Adam(), example=example, **({"time_limit": 0.0} | more))


@pytest.mark.parametrize("name", ["lenet?batch=16", "resnet18-cifar?batch=4", "bert-tiny?batch=4"])
def test_the_peak_is_the_one_that_training_has(name: str) -> None:
    """What is said of stand-ins is what real steps then take, by the real storages of a trainer."""
    told = poet.fit(name, optimizer=poet.Adam(), time_limit=0.0)
    assert told.kernels_tried
    made = build(name)
    with poet.Trainer(
        made.model, made.loss, poet.Adam(), example=made.example, time_limit=1
    ) as trainer:
        trainer.run(made.example)
        trainer.run(made.example)
        assert trainer.peak_bytes == pytest.approx(told.keep_all_bytes, rel=0.01)
    assert sum(msgspec.structs.asdict(told.parts).values()) == told.keep_all_bytes
    owned = sum(each.nbytes for each in made.model.parameters())
    assert told.parts.parameter_bytes == owned
    assert told.parts.optimizer_state_bytes == pytest.approx(2 * owned, abs=64)


def test_a_budget_that_is_named_has_a_plan() -> None:
    told = fitted(conv(), images(32))
    floors = {each.params: each.floor_bytes for each in told.least}
    assert floors["resident"] >= floors["paged"]
    for each in told.least:
        assert each.smallest_bytes is not None
        assert each.smallest_bytes >= each.floor_bytes
    program = poet.capture(conv(), CE, poet.Adam(), example=images(32))
    here = poet.fit(conv(), CE, poet.Adam(), example=images(32), device="rpi4", time_limit=0.5)
    assert not here.kernels_tried
    assert here.prices[0].energy == 1.0
    assert len(here.prices) > 1
    assert all(price.joules >= here.keep_all_joules for price in here.prices)
    for least in here.least:
        plan = poet.plan(program, "rpi4", least.smallest_bytes, params=least.params, time_limit=0.2)
        assert plan.schedule
        assert plan.floor_bytes == least.floor_bytes or least.params == "streamed"


@pytest.mark.parametrize("how", ["meta", "fake"])
def test_a_model_without_bytes(how: str) -> None:
    real = fitted(conv(), images(), device="h200")
    with torch.device("meta") if how == "meta" else FakeTensorMode():
        bare = conv()
    with torch.device("meta"):
        example = images()
    if how == "fake":
        example = images()
    before = list(bare.parameters())
    told = fitted(bare, example, device="h200")
    assert all(a is b for a, b in zip(before, bare.parameters(), strict=True))
    assert msgspec.structs.replace(told, solve_seconds=0.0) == msgspec.structs.replace(
        real, solve_seconds=0.0
    )
    by_torch = torch.optim.Adam(bare.parameters())
    assert (
        poet.fit(bare, CE, by_torch, example=example, device="h200", time_limit=0.0).parts
        == told.parts
    )
    with pytest.raises(poet.PoetError, match=r"has no bytes.*poet\.fit says"):
        poet.capture(bare, CE, poet.Adam(), example=example)


def test_a_model_larger_than_any_machine() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(65_536, 65_536, bias=False) for _ in range(9)))
        example = (torch.randn(2, 65_536), torch.randint(0, 10, (2,)))
    told = poet.fit(model, CE, poet.SGD(), example=example, device="h200", time_limit=0.0)
    assert told.parts.parameter_bytes == 9 * 65_536**2 * 4  # 155 GB
    assert told.verdict.startswith("fits in 129.3 GiB with a plan, parameters paged")
    told = fitted(model, example, device="h200")
    assert (
        " bytes are to be in the store, which has 250,000,000,000" in told.verdict
    )  # Adam's state, too
    tied = nn.Linear(65_536, 65_536, bias=False, device="meta")
    told = fitted(nn.Sequential(tied, nn.ReLU(), tied), example, device="h200")
    assert told.parts.parameter_bytes == 65_536**2 * 4


def test_the_largest_batch_is_the_largest() -> None:
    """By captures of that batch and the next; a plan allows more than keeping all."""
    told = fitted(conv(), images(), device="rpi4", ram="2MB")
    kept, planned = told.largest
    assert (kept.kept_all, kept.at_most) == (True, kept.batch + 1)
    for batch, fits in ((kept.batch, True), (kept.batch + 1, False)):
        nbytes = fitted(conv(), images(batch), device="rpi4").keep_all_bytes
        assert (nbytes <= 2_000_000) == fits
    assert planned.batch > kept.batch
    program = poet.capture(conv(), CE, poet.Adam(), example=images(planned.batch))
    assert poet.plan(program, "rpi4", "2MB", params=planned.params, time_limit=0.2).schedule


def test_stand_ins_give_the_graph_of_the_real_thing() -> None:
    for name in ("unet?size=32", "vit-tiny?layers=1&size=32", "gpt2?layers=1&seq=8&vocab=50"):
        real = capture_named(name, poet.Adam(), granularity="op", cache=False).graph
        assert layout_named(name, poet.Adam(), cache=False).graph.fingerprint == real.fingerprint


def test_shares_and_fractions() -> None:
    told = fitted(conv(), images(), device="rpi4", ram="85%", largest_batch=False)
    assert told.ram_bytes == int(0.85 * told.keep_all_bytes)
    assert "with a plan" in told.verdict
    assert told.largest == ()
    with pytest.raises(poet.PoetError, match=r'less than one byte.*write "60%"'):
        fitted(conv(), images(), ram=0.6)
    with pytest.raises(poet.PoetError, match="less than one byte"):
        poet.Trainer(conv(), CE, poet.SGD(), example=images(), ram=0.6)  # type: ignore[arg-type]
    assert "all kept in RAM" in str(told)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ram": "min"}, "the least RAM is what is told anyway"),
        ({"device": "toaster"}, "no board named 'toaster'"),
        ({"example": None}, "a model needs an example"),
        ({"optimizer": nn.ReLU()}, "the optimizer is a ReLU"),
        ({"optimizer": "sgdd"}, "There are none, sgd"),
        ({"params": "x"}, "params is 'x'"),
    ],
)
def test_wrong_questions(given: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"optimizer": None, "example": images(), "time_limit": 0.0}
    with pytest.raises(poet.PoetError, match=said):
        poet.fit(conv(), CE, **(asked | given))


def test_the_command(poet_command: Poet, user_file: Path) -> None:
    done = poet_command("fit", "lenet?batch=4", "--json", "--time-limit", "0.2")
    told = msgspec.json.decode(done.out, type=Fit)
    assert (done.code, told.batch, told.optimizer) == (0, 4, "Adam")
    shown = poet_command("fit", f"{user_file}:make", "--ram", "20KB", "--time-limit", "0")
    assert shown.code == 0
    for text in ("parameters", "no schedule takes less than", "largest batch in that budget"):
        assert text in shown.out
    small = poet_command("fit", "lenet", "--device", "nrf52840", "--ram", "100", "--json")
    assert (small.code, msgspec.json.decode(small.out)["optimizer"]) == (3, "SGD")
    for wrong, said in (
        (("fit", "lenett"), "Did you mean lenet"),
        (("fit", "lenet", "--ram", "0.6"), 'write "60%"'),
        (("fit", "lenet", "--ram", "x"), "is not a size"),
        (("fit", "lenet", "--device", "x"), "no board named 'x'"),
        (("fit", "a.json"), "a.json is no model"),
        (("fit", "lenet", "--optimizer", "none", "--frob"), "No such option"),
    ):
        done = poet_command(*wrong)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
