"""A model that changes after its step was captured: noticed at the next step, or refused."""

import argparse
import copy
import logging
import os
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet
from poet.tracer.watch import Watch
from poet.values.schedule import Compute, Free
from tests.torch.eager import same_bits
from tests.torch.random_training import program, trained

X, Y = torch.randn(6, 8), torch.randn(6, 8)
GAIN = 2.0
TABLE = {"gain": 1.0}


class Net(nn.Module):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm, self.drop, self.act = nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU()
        self.gain, self.offset = 1.0, torch.zeros(8)
        self.history: list[int] = []

    def forward(self, x: torch.Tensor) -> Any:
        made = self.b(self.drop(self.act(self.norm(self.a(x)))))
        return made * GAIN * TABLE["gain"] * self.gain * self.factor + self.offset

    def note(self) -> None:
        self.history.append(1)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def set_globals(**values: Any) -> None:
    globals().update(values)


# What happens before steps 1, 2 and 3 of 4: a state, and back to the first one.
CHANGES: dict[str, Callable[[Any, Any, int], Any]] = {
    "mode of the model": lambda m, o, n: m.train(n != 1),
    "mode of a layer": lambda m, o, n: m.drop.train(n == 3),
    "mode of the norm": lambda m, o, n: m.norm.train(n != 2),
    "dropout's p": lambda m, o, n: setattr(m.drop, "p", 0.2 * n),
    "attribute": lambda m, o, n: setattr(m, "gain", float(n)),
    "attribute of the class": lambda m, o, n: setattr(Net, "factor", 1.0 + n),
    "constant": lambda m, o, n: m.offset.add_(n),
    "constant behind torch's back": lambda m, o, n: m.offset.data.add_(n),
    "global": lambda m, o, n: set_globals(GAIN=float(n)),
    "entry of a global": lambda m, o, n: TABLE.update(gain=float(n)),
    "layer": lambda m, o, n: setattr(m, "act", nn.Tanh() if n == 2 else nn.ReLU()),
    "frozen and back": lambda m, o, n: m.a.requires_grad_(n != 2),
    "hook": lambda m, o, n: m.a.register_forward_hook(lambda m, i, made: made * 2),
    "forward of the object": lambda m, o, n: setattr(m.act, "forward", torch.tanh),
    "weight decay": lambda m, o, n: o.param_groups[0].update(weight_decay=0.1 * n),
    "momentum": lambda m, o, n: o.param_groups[0].update(momentum=0.3 * n),
    "memory format": lambda m, o, n: setattr(
        m.a.weight, "data", m.a.weight.data.t().contiguous().t()
    ),
}


@pytest.fixture(autouse=True)
def as_before() -> Any:
    yield
    set_globals(GAIN=2.0)
    TABLE.update(gain=1.0)
    Net.factor = 1.0


def both(
    change: Callable[[Any, Any, int], Any], optimizer: Callable[..., Any], **how: Any
) -> tuple[list[Any], list[Any], nn.Module, nn.Module]:
    """Losses and models of eager and planned training, changed in the same way between steps."""
    torch.manual_seed(0)
    model = Net()
    eager = copy.deepcopy(model)
    losses: tuple[list[Any], list[Any]] = ([], [])
    for planned, each in enumerate((eager, model)):
        as_before_now()
        given = optimizer(each)
        trainer = (
            poet.Trainer(each, F.mse_loss, given, example=(X, Y), time_limit=0.5, **how)
            if planned
            else None
        )
        for n in range(4):
            torch.manual_seed(n)
            if n:
                change(each, given, n)
            if trainer is not None:
                losses[1].append(trainer.step(X, Y))
                continue
            given.zero_grad()
            loss = F.mse_loss(each(X), Y)
            loss.backward()  # type: ignore[no-untyped-call]
            given.step()
            losses[0].append(loss.detach())
        if trainer is not None:
            trainer.close()
    return *losses, eager, model


def as_before_now() -> None:
    set_globals(GAIN=2.0)
    TABLE.update(gain=1.0)
    Net.factor = 1.0


@pytest.mark.parametrize("which", CHANGES)
def test_a_change_is_trained_as_eager_trains_it(
    which: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paged: dict[str, Any] = {"store": tmp_path, "params": "paged"} if "b" in which else {}
    if "memory" in which:
        paged = {}
    with caplog.at_level(logging.WARNING):
        expected, found, eager, model = both(CHANGES[which], sgd, **paged)
    assert all(map(same_bits, expected, found))
    assert all(map(same_bits, eager.state_dict().values(), model.state_dict().values()))
    anew = which != "momentum"  # a torch optimizer's is an input of the step
    assert ("because of a change: " in caplog.text) == anew


def test_what_no_step_reads_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    def unrelated(model: Any, _: Any, n: int) -> None:
        model.note()
        model.epoch = n
        model.history.append(n)

    with caplog.at_level(logging.WARNING):
        expected, found, _, _ = both(unrelated, sgd)
    assert all(map(same_bits, expected, found))
    assert "change" not in caplog.text


def test_an_equal_value_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    def same(model: Any, _: Any, n: int) -> None:
        model.gain, model.drop.p = float("1.0"), 1.0 / 2
        model.train()

    with caplog.at_level(logging.WARNING):
        both(same, sgd)
    assert "change" not in caplog.text


def test_a_layer_that_is_unfrozen_is_trained(tmp_path: Path) -> None:
    model = Net()
    model.a.requires_grad_(False)
    how: dict[str, Any] = {"example": (X, Y), "time_limit": 0.5}
    trainer = poet.Trainer(model, F.mse_loss, poet.SGD(lr=0.1, momentum=0.9), **how)
    before = model.a.weight.detach().clone()
    trainer.step(X, Y)
    assert same_bits(before, model.a.weight)
    model.a.requires_grad_(True)
    trainer.step(X, Y)
    assert not same_bits(before, model.a.weight)
    trainer.save(tmp_path / "all.safetensors")  # with the state of what is trained now
    trainer.load(tmp_path / "all.safetensors")
    trainer.step(X, Y)


def test_adam_refuses_parameters_that_have_made_fewer_steps() -> None:
    with pytest.raises(poet.PoetError, match=r"a\.weight would be trained.*after 2 steps"):
        both(lambda m, o, n: m.a.requires_grad_(n != 2), adam)


def test_a_parameter_in_the_place_of_another_starts_afresh() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    trainer = poet.Trainer(
        model, F.mse_loss, poet.SGD(lr=0.1, momentum=0.9), example=(X, Y), time_limit=0.5
    )
    trainer.step(X, Y)
    new = model[0] = nn.Linear(8, 8)
    fresh = copy.deepcopy(model)
    trainer.step(X, Y)
    F.mse_loss(fresh(X), Y).backward()  # type: ignore[no-untyped-call]
    first = fresh.get_parameter("0.weight")
    assert first.grad is not None
    assert same_bits(new.weight, first.detach().add(first.grad, alpha=-0.1))


def test_a_replaced_parameter_is_refused_with_the_optimizer_that_has_the_old_one() -> None:
    with pytest.raises(poet.PoetError, match="that the model does not have"):
        both(lambda m, o, n: setattr(m, "a", nn.Linear(8, 16)), sgd)


def test_states_that_come_back_are_known(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        both(lambda m, o, n: m.drop.train(n % 2 == 0), sgd)
    assert caplog.text.count("because of a change") == 1


def test_autocast_around_a_step_is_followed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    eager = copy.deepcopy(model)
    trainer = poet.Trainer(model, F.mse_loss, sgd(model), example=(X, Y), time_limit=0.5)
    given = sgd(eager)
    for on in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            loss = F.mse_loss(eager(X), Y)
            found = trainer.step(X, Y)
        given.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        given.step()
        assert same_bits(loss.detach(), found)
    assert all(map(same_bits, eager.parameters(), model.parameters()))


def doubled(_: nn.Module, found: Any, __: Any) -> Any:
    return (found[0] * 2,)


def test_hooks_that_are_added_are_part_of_the_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    eager = copy.deepcopy(model)
    trainer = poet.Trainer(model, F.mse_loss, sgd(model), example=(X, Y), time_limit=0.5)
    given = sgd(eager)
    for hooked in (False, True):
        for each in (model, eager) if hooked else ():
            each[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
            each[2].register_full_backward_hook(doubled)
        given.zero_grad()
        loss = F.mse_loss(eager(X), Y)
        loss.backward()  # type: ignore[no-untyped-call]
        given.step()
        assert same_bits(loss.detach(), trainer.step(X, Y))
    assert all(map(same_bits, eager.parameters(), model.parameters()))


def test_learning_rates_of_a_torch_optimizer_are_set_through_the_trainer() -> None:
    model = Net()
    given = sgd(model)
    trainer = poet.Trainer(model, F.mse_loss, given, example=(X, Y), time_limit=0.5)
    trainer.learning_rates[0] = 0.0
    assert given.param_groups[0]["lr"] == 0.0
    before = copy.deepcopy(list(model.parameters()))
    trainer.step(X, Y)
    assert all(map(same_bits, before, model.parameters()))
    given.param_groups[0]["lr"] = 0.5
    assert trainer.learning_rates == [0.5]
    with pytest.raises(poet.PoetError, match="one a parameter group"):
        trainer.learning_rates.append(0.1)


def test_who_asks_a_torch_optimizer_for_the_trainers_state_is_told() -> None:
    model = Net()
    given = sgd(model)
    before = given.state_dict()
    trainer = poet.Trainer(model, F.mse_loss, given, example=(X, Y), time_limit=0.5)
    trainer.step(X, Y)
    with pytest.warns(poet.PoetWarning, match=r"trainer\.state_dict"):
        given.state_dict()
    with pytest.raises(poet.PoetError, match="has taken this optimizer's state already"):
        given.load_state_dict(before)
    trainer.close()
    given.load_state_dict(before)
    given.register_step_pre_hook(lambda *_: None)
    with pytest.raises(poet.PoetError, match="has a hook around its steps"):
        poet.Trainer(model, F.mse_loss, given, example=(X, Y), time_limit=0.5)


class Config:
    def __init__(self) -> None:
        self.gain = 1.0


def hidden(model: nn.Module) -> Callable[[], Any]:
    """Ways to read what no module owns, and how each changes."""
    teacher = nn.Linear(8, 8).requires_grad_(False)
    settings, module = argparse.Namespace(gain=1.0), types.ModuleType("settings_of_mine")
    module.gain = 1.0  # type: ignore[attr-defined]
    model.teacher_, model.settings, model.module = [teacher], settings, module  # type: ignore[assignment]
    model.order, model.config = {"a": 1.0, "b": 2.0}, Config()  # type: ignore[assignment]

    def change() -> None:
        with torch.no_grad():
            teacher.weight.mul_(2)
        settings.gain, module.gain = 3.0, 2.0  # type: ignore[attr-defined]

    return change


class Reads(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.fc, self.what = nn.Linear(8, 8), what

    def forward(self, x: torch.Tensor) -> Any:
        made = self.fc(x)
        if self.what == "teacher":
            return made * self.teacher_[0](x)  # type: ignore[index, operator]
        if self.what == "namespace":
            return made * self.settings.gain  # type: ignore[union-attr]
        if self.what == "module":
            return made * self.module.gain  # type: ignore[union-attr]
        first, second = self.order.values()  # type: ignore[operator]
        return made * first - second


@pytest.mark.parametrize("what", ["teacher", "namespace", "module", "order"])
def test_what_no_module_owns_is_watched_as_well(what: str) -> None:
    torch.manual_seed(0)
    model = Reads(what)
    eager = Reads(what)
    eager.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    changes = [hidden(model)]
    torch.manual_seed(1)
    changes.append(hidden(eager))
    trainer = poet.Trainer(model, F.mse_loss, sgd(model), example=(X, Y), time_limit=0.5)
    given = sgd(eager)
    for n in range(2):
        if n:
            for each in changes:
                each()
            for net in (model, eager):
                net.order["a"] = net.order.pop("a")  # type: ignore[operator, index, union-attr]
        given.zero_grad()
        loss = F.mse_loss(eager(X), Y)
        loss.backward()  # type: ignore[no-untyped-call]
        given.step()
        assert same_bits(loss.detach(), trainer.step(X, Y))


def test_what_a_trace_left_in_globals_and_objects_is_put_back() -> None:
    record = Config()
    record.out = None  # type: ignore[attr-defined]

    class Records(Net):
        def forward(self, x: torch.Tensor) -> Any:
            record.out = super().forward(x)  # type: ignore[attr-defined]
            return record.out  # type: ignore[attr-defined]

    model = Records()
    with pytest.raises(poet.PoetError, match="changes record"):
        poet.capture(model, F.mse_loss, example=(X, Y), cache=False)
    assert record.out is None  # type: ignore[attr-defined]
    model(X)


def test_momentum_that_goes_and_comes_back_is_the_same() -> None:
    def momentum(_: Any, optimizer: Any, n: int) -> None:
        optimizer.param_groups[0]["momentum"] = 0.0 if n == 2 else 0.9

    expected, found, eager, model = both(momentum, sgd)
    assert all(map(same_bits, expected, found))
    assert all(map(same_bits, eager.parameters(), model.parameters()))


def test_what_a_watch_costs() -> None:
    """Nothing but identities is compared: no value, no repr, no Python loop over attributes."""
    watch = Watch({"": Net(), "loss_fn": F.mse_loss})
    calls: list[str] = []

    def count(frame: Any, event: str, _: Any) -> None:
        calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        assert watch.change() is None
    finally:
        sys.setprofile(None)
    assert "_difference" not in calls
    assert "_same" not in calls


# Refused


LOG: list[int] = []
COUNT = 0


class Logs(Net):
    def forward(self, x: torch.Tensor) -> Any:
        LOG.append(1)
        return super().forward(x)


class Appends(Net):
    def forward(self, x: torch.Tensor) -> Any:
        made = super().forward(x)
        self.history.append(made)
        return made


class Counts(Net):
    def forward(self, x: torch.Tensor) -> Any:
        global COUNT
        COUNT += 1
        return super().forward(x)


class Remembers(Net):
    def forward(self, x: torch.Tensor) -> Any:
        made = super().forward(x)
        self.offset = made.detach().mean(0)
        return made


class InPlace(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x.mul_(2))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Logs, "changes LOG"),
        (Appends, "changes history"),
        (Counts, "COUNT"),
        (Remembers, "reads offset and puts another tensor in its place"),
        (InPlace, "changes its input number 0 in place"),
    ],
)
def test_what_a_step_would_not_do_again_is_refused(kind: Any, message: str) -> None:
    model = kind()
    with pytest.raises(poet.PoetError, match=message):
        poet.capture(model, F.mse_loss, example=(X.clone(), Y), cache=False)
    assert not LOG
    assert not model.history
    model(X.clone())  # nothing of the trace is left in it
    LOG.clear()


def test_what_a_forward_pass_only_leaves_behind_is_no_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Leaves(Net):
        def forward(self, x: torch.Tensor) -> Any:
            made = self.last = super().forward(x)
            return made

    model = Leaves()
    with pytest.warns(poet.PoetWarning, match="leaves a tensor in last"):
        trainer = poet.Trainer(model, F.mse_loss, poet.SGD(), example=(X, Y), time_limit=0.5)
    trainer.step(X, Y)
    model(X)
    with caplog.at_level(logging.WARNING):
        trainer.step(X, Y)
    assert "change" not in caplog.text


def test_what_the_world_answers_once_is_warned_of() -> None:
    class Asks(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x) * float(os.environ.get("POET_TEST_GAIN", "2"))

    with pytest.warns(poet.PoetWarning, match=r"asks for os\.environ, which may answer"):
        poet.capture(Asks(), F.mse_loss, example=(X, Y))


def test_batches_that_no_step_could_tell_apart_are_refused() -> None:
    model = Net()
    trainer = poet.Trainer(model, F.mse_loss, sgd(model), example=(X, Y), time_limit=0.5)
    with pytest.raises(poet.PoetError, match=r"NumPy ndarray.*torch.from_numpy"):
        trainer.step(numpy.ones((6, 8)), Y)
    with pytest.raises(poet.PoetError, match="neither a tensor nor a plain value"):
        trainer.step(X, Y, object())
    with pytest.raises(poet.PoetError, match="requires a gradient"):
        trainer.step(X.clone().requires_grad_(), Y)
    square = nn.Linear(8, 8)
    inner = poet.Trainer(square, F.mse_loss, poet.SGD(), example=(Y, Y), time_limit=0.5)
    with pytest.raises(poet.PoetError, match="shares memory with"):
        inner.step(square.weight.detach()[:6], Y)
    inner.step(Y, Y)
    same = inner.step(Y, Y)  # one tensor for two inputs is as good as two
    assert same.isfinite()


def test_a_step_that_fails_before_its_first_update_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    trainer = poet.Trainer(
        model, F.cross_entropy, sgd(model), example=(X, labels), ram="100%", time_limit=0.5
    )
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(IndexError, match="out of bounds"):  # as eager says it
        trainer.step(X, labels + 3)
    assert all(map(same_bits, before.values(), model.state_dict().values()))
    trainer.step(X, labels)
    with pytest.raises(RuntimeError, match="Long"):
        trainer.step(X, labels.int())


def test_threads_take_turns_or_are_told() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    x = torch.randn(64, 256)
    trainer = poet.Trainer(model, F.mse_loss, poet.SGD(), example=(x, x), time_limit=0.5)
    errors: list[Exception] = []

    def go() -> None:
        for _ in range(30):
            try:
                trainer.step(x, x)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trainer.steps == 120 - len(errors)
    assert all("another thread is in a step" in str(error) for error in errors)
    assert all(isinstance(error, poet.PoetError) for error in errors)


def test_a_closed_trainer_says_so() -> None:
    trainer = poet.Trainer(Net(), F.mse_loss, poet.SGD(), example=(X, Y), time_limit=0.5)
    trainer.close()
    trainer.close()
    with pytest.raises(poet.PoetError, match="this trainer is closed"):
        trainer.step(X, Y)


def test_a_trainer_without_an_optimizer_says_what_it_does() -> None:
    with pytest.warns(poet.PoetWarning, match="change no parameter"):
        poet.Trainer(Net(), F.mse_loss, example=(X, Y), time_limit=0.5)


# Plans


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return F.dropout(self.fc(x)) + F.dropout(self.fc(x * 2))


def changed(plan: poet.Plan, which: str) -> poet.Plan:
    replace, steps = msgspec.structs.replace, list(plan.schedule)
    ops = plan.graph.ops
    if which == "order of random ops":
        first, second = (k for k, op in enumerate(ops) if op.random_state_bytes)
        steps.remove(Compute(op=second))
        steps.insert(steps.index(Compute(op=first)), Compute(op=second))
        return poet.draft(plan.graph, plan.costs, plan.budget, tuple(steps))
    update = next(k for k, op in enumerate(ops) if op.phase == "update")
    if which == "omitted update":
        steps.remove(Compute(op=update))
        return poet.draft(plan.graph, plan.costs, plan.budget, tuple(steps))
    if which == "lost update":
        new = ops[update].outputs[0]
        end = {i: place for i, place in plan.budget.end.items() if i != new}
        return poet.draft(
            plan.graph,
            plan.costs,
            replace(plan.budget, end=end),
            (*steps, Free(tensor=new)),
        )
    return replace(plan, peak_bytes=(plan.peak_bytes or 0) - 4)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("order of random ops", "must draw random numbers before"),
        ("omitted update", "never runs"),
        ("lost update", "does not keep"),
        ("false claim", "claims peak_bytes"),
    ],
)
def test_a_trainer_asks_the_referee_first(which: str, message: str) -> None:
    model = Drops()
    how: dict[str, Any] = {"example": (X, Y), "granularity": "op"}
    captured = poet.capture(model, F.mse_loss, poet.SGD(), **how)
    plan = changed(poet.plan(captured, "laptop", ram=None, time_limit=0.5), which)
    with pytest.raises(poet.PoetError, match=message):
        poet.Trainer(model, F.mse_loss, poet.SGD(), plan=plan, **how)


def test_a_capture_with_dropout_comes_from_the_cache_of_another_process(tmp_path: Path) -> None:
    script = (
        "import torch, poet\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout())\n"
        "x = torch.ones(4, 8)\n"
        "loss = torch.nn.MSELoss()\n"
        "poet.Trainer(model, loss, poet.SGD(), example=(x, x), time_limit=0.5).step(x, x)\n"
    )
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env={"PATH": "/usr/bin:/bin", "POET_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
    assert any(file.stat().st_size > 1000 for file in (tmp_path / "cache").iterdir())


@pytest.mark.parametrize("whole_folder", [False, True])
def test_after_the_page_file_was_removed_a_checkpoint_repairs(
    tmp_path: Path, whole_folder: bool
) -> None:
    model, pages = Net(), tmp_path / "pages"
    with poet.Trainer(
        model, F.mse_loss, sgd(model), example=(X, Y), store=pages, params="paged", time_limit=0.5
    ) as trainer:
        trainer.step(X, Y)
        trainer.save(tmp_path / "kept.safetensors")
        expected = trainer.step(X, Y)
        if whole_folder:
            shutil.rmtree(pages)
        else:
            for file in pages.iterdir():
                file.unlink()
        with pytest.raises(poet.PageError, match="was removed while it was in use"):
            trainer.step(X, Y)
        trainer.load(tmp_path / "kept.safetensors")
        assert same_bits(trainer.step(X, Y), expected)
    assert not list(pages.iterdir())


def test_constants_of_a_paged_step_are_in_the_store(tmp_path: Path) -> None:
    model = Net()
    eager = copy.deepcopy(model)
    how: dict[str, Any] = {"store": tmp_path, "params": "paged", "time_limit": 0.5}
    with poet.Trainer(model, F.mse_loss, sgd(model), example=(X, Y), **how) as trainer:
        torch.manual_seed(0)
        found = trainer.step(X, Y), trainer.step(X[:4], Y[:4])
    given = sgd(eager)
    torch.manual_seed(0)
    for (x, y), loss in zip(((X, Y), (X[:4], Y[:4])), found, strict=True):
        given.zero_grad()
        expected = F.mse_loss(eager(x), y)
        expected.backward()  # type: ignore[no-untyped-call]
        given.step()
        assert same_bits(expected.detach(), loss)


@pytest.mark.parametrize("seed", range(1000, 1008))
def test_random_training_is_eager_training_or_refused(seed: int) -> None:
    for way in ("trainer", "wrap"):
        outcome = trained(program(seed), way)
        assert outcome.kind != "different", (way, outcome.words)
