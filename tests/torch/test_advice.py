"""Advice works where a trainer or a wrapper gives it: buffers and pinned tensors are in it."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import poet
from poet.zoo import build
from tests.conftest import Poet

FAMILIES = [
    "mlp?batch=2",
    "lenet?batch=4",
    "vgg16-cifar?batch=1",
    "resnet18-cifar?batch=2",
    "mobilenetv2-cifar?batch=2",
    "unet-cifar?width=4&batch=2",
    "bert-tiny?batch=2&seq=8&vocab=100",
    "distilbert?layers=1&seq=8&vocab=100",
    "gpt2?layers=1&seq=8&vocab=100",
    "vit-tiny?layers=1&size=32",
]


def advised_ram(refusal: object) -> str:
    found = re.search(r'Try ram="([^"]+)"', str(refusal))
    assert found, refusal
    return found[1]


@pytest.mark.parametrize(
    ("name", "paged"),
    [*((name, True) for name in FAMILIES), (FAMILIES[1], False), (FAMILIES[6], False)],
)
def test_a_trainer_that_was_refused_trains_as_advised(
    name: str, paged: bool, tmp_path: Path
) -> None:
    made: Any = build(name)

    def trainer(ram: int | str) -> poet.Trainer:
        return poet.Trainer(
            made.model, made.loss, poet.Adam(), example=made.example, ram=ram,
            store=tmp_path if paged else None, time_limit=0.5,
        )  # fmt: skip

    with pytest.raises(poet.Infeasible) as refused:
        trainer(52_000)  # little more than the store's buffers
    with trainer(advised_ram(refused.value)) as advised:
        assert advised.plan.schedule
        assert advised.budget_bytes is not None
        assert (advised.plan.peak_bytes or 0) + advised.store_buffer_bytes <= advised.budget_bytes


def test_a_budget_below_the_buffers_comes_with_advice(tmp_path: Path) -> None:
    made: Any = build("lenet?batch=4")
    fields: Any = {"example": made.example, "store": tmp_path, "time_limit": 0.5}
    with pytest.raises(poet.Infeasible, match="buffers alone take") as refused:
        poet.Trainer(made.model, made.loss, poet.SGD(), ram=9000, **fields)
    ram = advised_ram(refused.value)
    with poet.Trainer(made.model, made.loss, poet.SGD(), ram=ram, **fields) as trainer:
        assert trainer.plan.schedule


def test_a_plan_that_is_too_large_is_answered_with_what_it_needs(tmp_path: Path) -> None:
    made: Any = build("lenet?batch=4")
    fields: Any = {"example": made.example, "store": tmp_path, "time_limit": 0.5}
    with poet.Trainer(made.model, made.loss, poet.SGD(), ram="1 MB", **fields) as trainer:
        plan = trainer.plan
    with pytest.raises(poet.Infeasible, match="Plan again, or give") as refused:
        poet.Trainer(made.model, made.loss, poet.SGD(), ram="400 KB", plan=plan, **fields)
    found = re.search(r'give ram="([^"]+)"', str(refused.value))
    assert found
    with poet.Trainer(made.model, made.loss, poet.SGD(), ram=found[1], plan=plan, **fields) as same:
        assert same.plan == plan


def test_a_wrapped_model_that_was_refused_steps_as_advised(tmp_path: Path) -> None:
    made: Any = build("lenet?batch=4")
    x, y = made.example
    for store in (None, tmp_path):
        fields: Any = {"example": x, "store": store, "time_limit": 0.5}
        with pytest.raises(poet.Infeasible) as refused:
            poet.wrap(made.model, ram=100_000, **fields)
        model = poet.wrap(made.model, ram=advised_ram(refused.value), **fields)
        made.loss(model(x), y).backward()
        assert all(isinstance(p.grad, torch.Tensor) for p in made.model.parameters())


def test_poet_train_trains_as_advised(poet_command: Poet, tmp_path: Path) -> None:
    command = ("train", "lenet?batch=4", "--steps=1", "--time-limit=0.5", f"--store={tmp_path}")
    outcome = poet_command(*command, "--ram=100KB")
    assert outcome.code == 3
    found = re.search(r"Try --ram (\S+)\.", outcome.err)
    assert found
    assert poet_command(*command, "--ram", found[1]).code == 0
