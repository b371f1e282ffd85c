"""The optimizers of torch.optim inside a step, and the schedulers that change them."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import poet
from poet.calls.updates import temporary_bytes
from poet.errors import PoetError
from poet.profiling.scratch import peak_bytes
from poet.tracer.kernels import KERNELS
from poet.values.torch_optimizers import KNOWN, TorchOptimizer
from tests.torch.loops import (
    LOSS,
    Eager,
    Loop,
    Make,
    Planned,
    adamw,
    batch,
    folder_of,
    net,
    sgd,
    steps_apart,
)


def made(name: str, **options: Any) -> Make:
    return lambda model: getattr(torch.optim, name)(model.parameters(), **options)


OPTIMIZERS: dict[str, tuple[Make, int]] = {
    "Adadelta": (made("Adadelta", lr=0.5, weight_decay=0.01), 3),
    "Adafactor": (made("Adafactor", weight_decay=0.1), 3),
    "Adagrad": (made("Adagrad", lr=0.05, lr_decay=0.1, initial_accumulator_value=0.2), 3),
    "Adam": (made("Adam", amsgrad=True, weight_decay=0.1), 3),
    "AdamW": (made("AdamW", lr=0.001, maximize=True), 3),
    "Adamax": (made("Adamax", weight_decay=0.1), 3),
    "ASGD": (made("ASGD", t0=2, weight_decay=0.1), 4),
    "NAdam": (made("NAdam", decoupled_weight_decay=True, weight_decay=0.1), 3),
    "RAdam": (made("RAdam", lr=0.01), 7),  # it goes another way from the sixth step on
    "RMSprop": (made("RMSprop", momentum=0.9, centered=True, weight_decay=0.1), 3),
    "Rprop": (made("Rprop"), 3),
    "SGD": (made("SGD", lr=0.001, momentum=0.9, nesterov=True, maximize=True), 3),
}


def test_all_that_poet_knows_are_tried() -> None:
    assert OPTIMIZERS.keys() == KNOWN.keys()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torchs_own_arithmetic(name: str, tmp_path: Path) -> None:
    make, steps = OPTIMIZERS[name]
    model = net()
    program = poet.capture(model, LOSS, make(model), example=batch(0))
    assert any(f"poet.torch_{name.lower()}" == c.kind for op in program.graph.ops for c in op.calls)
    eager = Eager(model, make, Loop())
    paged = name in ("NAdam", "Adafactor", "RMSprop")  # state of every shape
    mine = Planned(model, make, Loop(), **folder_of(tmp_path, "paged" if paged else "resident"))
    with mine.trainer as trainer:
        assert not steps_apart(eager, mine, range(steps))
        trainer.save(tmp_path / "run")
    again = Planned(net(1), make, Loop())
    with again.trainer as trainer:
        trainer.load(tmp_path / "run")
        assert not steps_apart(eager, again, range(steps, steps + 1))


VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Adadelta", {"weight_decay": 0.1}),
    ("Adafactor", {"weight_decay": 0.1}),
    ("Adagrad", {"weight_decay": 0.1}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1, "amsgrad": True}),
    ("Adamax", {"weight_decay": 0.1}),
    ("ASGD", {"weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1}),
    ("RAdam", {"weight_decay": 0.1}),
    ("RMSprop", {"weight_decay": 0.1, "centered": True, "momentum": 0.9}),
    ("Rprop", {}),
    ("SGD", {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True}),
)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("shape", [(64, 96), (3000,)])
@pytest.mark.parametrize(("maximize", "foreach"), [(True, None), (False, None), (True, True)])
def test_no_update_takes_more_than_is_said_of_it(
    name: str, options: dict[str, Any], shape: tuple[int, ...], maximize: bool, foreach: bool | None
) -> None:
    parameter, gradient = torch.randn(shape), torch.randn(shape)
    options = {**options, "maximize": maximize, "foreach": foreach}
    usual = {"beta1": 0.9, "beta2": 0.99}
    about = TorchOptimizer(name=name, lr=0.1, options={"momentum": 0, "amsgrad": False,
        "centered": False, "initial_accumulator_value": 0.0, **options})  # fmt: skip
    state = {
        kept.name: torch.full(kept.shape(shape), about.first(kept)) for kept in about.keeps(shape)
    }
    takes = {"betas"} & set(torch.optim.__dict__[name].__init__.__annotations__)
    given = options | (usual if takes else {})

    def update(step: int) -> None:
        KERNELS[about.kind](
            parameter=parameter, **state, gradient=gradient, learning_rate=0.1, step=step, **given
        )

    cpu = torch.device("cpu")
    most = max(peak_bytes(partial(update, step), cpu) for step in range(1, 9))
    said = temporary_bytes(about.kind, given, parameter.nbytes)
    assert most <= said <= most + 2.1 * parameter.nbytes or foreach


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)


SCHEDULES: dict[str, tuple[Make, Any]] = {
    "one cycle, betas": (adamw, one_cycle),
    "one cycle, momentum": (sgd, one_cycle),
    "one cycle, by torch": (made("NAdam"), one_cycle),
    "warm-up": (adamw, lambda optimizer: lr_scheduler.LinearLR(optimizer, total_iters=3)),
    "warm-up, first rate kept": (
        made("Rprop"),
        lambda optimizer: lr_scheduler.LinearLR(optimizer, total_iters=3),
    ),
    "cosine": (sgd, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 4)),
}


@pytest.mark.parametrize("which", SCHEDULES)
def test_schedulers_change_the_next_step(
    which: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, schedule = SCHEDULES[which]
    model, loop = net(), Loop(schedule=schedule)
    eager = Eager(model, make, loop)
    mine = Planned(model, make, loop, **folder_of(tmp_path, "resident"))
    with mine.trainer as trainer, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not steps_apart(eager, mine, range(4))
        rates = [group["lr"] for group in mine.optimizer.param_groups]
        assert list(trainer.learning_rates) == rates
        assert rates == [group["lr"] for group in eager.optimizer.param_groups]
    assert "anew" not in caplog.text  # nothing was captured a second time


@pytest.mark.parametrize("make", [sgd, adamw])
def test_a_schedule_goes_on_from_a_checkpoint(make: Make, tmp_path: Path) -> None:
    model, loop = net(), Loop(schedule=one_cycle)
    eager, first = Eager(model, make, loop), Planned(model, make, loop)
    with first.trainer as trainer:
        assert not steps_apart(eager, first, range(3))
        trainer.save(tmp_path / "run")
    other = Planned(net(1), make, loop)
    with other.trainer as trainer:
        trainer.load(tmp_path / "run")
        assert other.schedule is not None
        assert first.schedule is not None
        other.schedule.load_state_dict(first.schedule.state_dict())
        assert not steps_apart(eager, other, range(3, 6))


def test_a_plan_of_a_capture_with_the_same_optimizer_fits() -> None:
    model, loop = net(), Loop(schedule=one_cycle)
    program = poet.capture(model, LOSS, sgd(model), example=batch(0))
    plan = poet.plan(program, "laptop", time_limit=0.2)
    eager, mine = Eager(model, sgd, loop), Planned(model, sgd, loop, plan=plan)
    with mine.trainer:
        assert not steps_apart(eager, mine, range(3))  # other momentum is captured anew


def test_a_schedule_by_updates_and_not_by_batches(tmp_path: Path) -> None:
    model, loop = net(), Loop(accumulate=2, schedule=one_cycle, clip_norm=0.3)
    eager = Eager(model, sgd, loop)
    mine = Planned(model, sgd, loop, **folder_of(tmp_path, "paged"))
    with mine.trainer, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not steps_apart(eager, mine, range(6))


def test_an_optimizer_goes_on_where_it_was() -> None:
    model = net()
    eager = Eager(model, made("NAdam"), Loop())
    torch.manual_seed(0)
    eager.step(*batch(0))
    before = eager.copied()
    mine = poet.Trainer(before.model, LOSS, before.optimizer, example=batch(0), time_limit=0.2)
    with mine as trainer:
        for n in (1, 2):
            torch.manual_seed(n)
            expected = eager.step(*batch(n))
            torch.manual_seed(n)
            assert torch.equal(trainer.step(*batch(n)), expected)
        assert trainer.updates == 3


class Mine(torch.optim.SGD):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (made("LBFGS"), r"LBFGS runs the model several times .* poet\.wrap"),
        (made("SparseAdam"), r"SparseAdam takes sparse gradients"),
        (
            lambda model: Mine(model.parameters(), lr=0.1),
            r"Mine.* It is built on torch\.optim\.SGD",
        ),
        (made("Adagrad", fused=True), "fused=True"),
        (made("Adamax", capturable=True), "capturable=True"),
        (made("RMSprop", lr=torch.tensor(0.1)), "has lr as a tensor"),
    ],
)
def test_what_no_step_can_hold_is_refused(make: Make, text: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 10))
    with pytest.raises(PoetError, match=text):
        poet.Trainer(model, LOSS, make(model), example=batch(0))


def test_a_hook_around_all_optimizers_is_refused() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    hook = register_optimizer_step_post_hook(lambda *_: None)
    try:
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 10))
        with pytest.raises(PoetError, match="hook around its steps"):
            poet.capture(model, LOSS, sgd(model), example=batch(0))
    finally:
        hook.remove()


def test_groups_with_options_of_their_own() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        first, *rest = model.parameters()
        groups = [{"params": [first], "lr": 0.1, "alpha": 0.5}, {"params": rest, "momentum": 0.9}]
        return torch.optim.RMSprop(groups)

    model = net()
    eager, mine = (
        Eager(model, make, Loop(schedule=one_cycle_of_two)),
        Planned(model, make, Loop(schedule=one_cycle_of_two)),
    )
    with mine.trainer:
        assert not steps_apart(eager, mine, range(3))


def one_cycle_of_two(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.LambdaLR(optimizer, [lambda n: 1 / (n + 1), lambda n: 0.5**n])
