"""Models and calls that would be captured wrongly by a naive tracer."""

import copy
import functools
import os
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet
from poet.tracer.keys import key_of
from poet.tracer.step import Step, take_apart
from poet.values.schedule import Compute, Free
from tests.torch.eager import differences, same_bits

X, Y = torch.randn(4, 8), torch.randn(4, 8)
mse = F.mse_loss


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(x)


# State that a trace does not see


class Counts(Base):
    n = 0

    def __init__(self) -> None:
        super().__init__()
        self.n = 1

    def forward(self, x: torch.Tensor) -> Any:
        self.n += 1
        return self.fc(x) * self.n


class DrawsPython(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(x) * random.random()


class DrawsNumpy(Base):
    def forward(self, x: torch.Tensor) -> Any:
        import numpy as np

        return self.fc(x) * float(np.random.rand())


class Seeds(Base):
    def forward(self, x: torch.Tensor) -> Any:
        torch.manual_seed(7)
        return F.dropout(self.fc(x))


class Recasts(Base):
    def __init__(self) -> None:
        super().__init__()
        self.seen: torch.Tensor = nn.Buffer(torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen = self.seen + 0.5
        return self.fc(x)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, sparse=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.table(x.abs().long().clamp(max=9)).sum(1)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> Any:
        return (x * self.w).abs()


class Piece(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 16)[:, 2:10])

    def forward(self, x: torch.Tensor) -> Any:
        return x @ self.w


def hooked() -> nn.Module:
    model = nn.Linear(8, 8)
    model.weight.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    return model


class Named(Base):
    def __init__(self) -> None:
        super().__init__()
        self.loss_fn = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.loss_fn(self.fc(x))


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, made: torch.Tensor, wanted: torch.Tensor) -> Any:
        return ((made - wanted) ** 2 * self.weight).mean()


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "counter": (Counts, mse, "changes n, a Python value"),
    "python's random": (DrawsPython, mse, "draws from the random generator of Python"),
    "numpy's random": (DrawsNumpy, mse, "draws from the random generator of Python or NumPy"),
    "seed": (Seeds, mse, r"calls torch.manual_seed\(7\)"),
    "buffer of another dtype": (Recasts, mse, "into its buffer seen"),
    "sparse gradient": (Sparse, mse, "dense"),
    "parameter that is a piece": (Piece, mse, "w is a piece of a larger tensor"),
    "gradient hook": (hooked, mse, "weight has a gradient hook"),
    "class of loss": (Base, nn.MSELoss, r"give MSELoss\(\), not the class"),
    "name of loss": (Base, "mse", "must be a function"),
    "clash of names": (Named, Weighted(), "a part named loss_fn"),
    "script": (lambda: torch.jit.script(nn.Linear(8, 8)), mse, "scripted"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
@pytest.mark.parametrize("which", REFUSED)
def test_what_would_be_wrong_is_refused(which: str) -> None:
    make, loss, message = REFUSED[which]
    with pytest.raises(poet.PoetError, match=message):
        poet.capture(make(), loss, poet.SGD(), example=(X, Y), cache=False)


def test_adam_of_complex_parameters_is_refused() -> None:
    with pytest.raises(poet.PoetError, match="w is complex"):
        poet.capture(Complex(), mse, poet.Adam(), example=(X, Y))
    assert not differences(Complex(), (X, Y), mse, poet.SGD(lr=0.1))


class Stashes(Base):
    def forward(self, x: torch.Tensor) -> Any:
        self.last = self.fc(x)
        return self.last


@pytest.mark.filterwarnings("ignore:the forward pass leaves a tensor in last")
def test_capture_leaves_nothing_in_the_model() -> None:
    model = Stashes()
    poet.capture(model, mse, example=(X, Y), cache=False)
    assert not hasattr(model, "last")
    pickle.dumps(copy.deepcopy(model))
    model(X)
    kept = model.last
    poet.capture(model, mse, example=(X, Y), cache=False)
    assert model.last is kept


# Values that differ


class Twice(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.fc(x)) - self.norm(self.fc(x * 2))


TABLE = torch.randn(8, 16)
SAME: dict[str, tuple[Any, Any, Any]] = {
    "one BatchNorm twice": (Twice, (X, Y), mse),
    "constant that is a view": (Base, (X, Y), lambda o, t: mse(o @ TABLE[:, 8:], t)),
    "two constants of one storage": (
        Base, (X, Y), lambda o, t: mse(o @ TABLE[:, 8:] + TABLE[2:6, :8], t),
    ),
    "loss with a parameter": (Base, (X, Y), Weighted()),
    "example that is not dense": (
        lambda: nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (4, 8)), nn.Dropout(0.3), Base()),
        (torch.randn(8, 16)[:4, 4:12], Y), mse,
    ),
    "transposed example": (
        lambda: nn.Sequential(nn.Dropout(0.4), nn.Linear(8, 8)), (torch.randn(8, 4).t(), Y), mse,
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", SAME)
def test_bits(which: str) -> None:
    make, example, loss = SAME[which]
    model = make()
    if not isinstance(loss, nn.Module):
        assert not differences(model, example, loss, poet.AdamW(lr=0.1))
    else:
        program = poet.capture(model, loss, example=example, cache=False)
        made = program.run().gradients
        loss(model(example[0]), example[1]).backward()
        eager = {f"loss_fn.{n}": p.grad for n, p in loss.named_parameters()}
        eager |= {n: p.grad for n, p in model.named_parameters()}
        assert eager.keys() == made.keys()
        assert all(g is not None and same_bits(made[n], g) for n, g in eager.items())
        loss.zero_grad()


def test_a_loss_in_front_of_other_results() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            made = self.fc(x)
            return mse(made, y), made

    program = poet.capture(Pair(), example={"x": X, "y": Y})
    assert program.run().loss.ndim == 0


def test_gru_says_that_bits_may_differ() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return self.cell(x, x)

    for _ in range(2):  # from the cache, too
        with pytest.warns(poet.PoetWarning, match="cell is a GRU"):
            poet.capture(Gated(), mse, example=(X, Y))


def test_autocast_of_a_shared_weight_says_that_bits_may_differ() -> None:
    class Shared(Base):
        def forward(self, x: torch.Tensor) -> Any:
            return self.fc(self.fc(x).relu())

    with pytest.warns(poet.PoetWarning, match=r"autocast casts fc\.\w+ more than once"):
        poet.capture(Shared(), mse, example=(X, Y), autocast=torch.bfloat16, cache=False)
    poet.capture(Base(), mse, example=(X, Y), autocast="bfloat16")  # no warning here


def test_the_surroundings_of_a_run_do_not_matter() -> None:
    class Noisy(Base):
        def forward(self, x: torch.Tensor) -> Any:
            return self.fc(x + torch.rand(8))

    program = poet.capture(Noisy(), mse, example=(X, Y), cache=False)
    torch.manual_seed(0)
    plain = program.run()
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        cast = program.run()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        wide = program.run()
    finally:
        torch.set_default_dtype(torch.float32)
    for other in (cast, wide):
        assert same_bits(other.loss, plain.loss)
        assert all(same_bits(other.gradients[n], g) for n, g in plain.gradients.items())


# Schedules and optimizers


def test_random_ops_must_keep_their_order() -> None:
    class Parallel(Base):
        def forward(self, x: torch.Tensor) -> Any:
            return F.dropout(self.fc(x)) + F.dropout(self.fc(x * 2))

    program = poet.capture(Parallel(), mse, example=(X, Y), granularity="op", cache=False)
    ops = program.graph.ops
    first, second = (k for k, op in enumerate(ops) if op.random_state_bytes)
    order = list(range(len(ops)))
    order.remove(second)
    order.insert(first, second)
    with pytest.raises(poet.PoetError, match="another order"):
        program.run(schedule=tuple(Compute(op=k) for k in order))


@pytest.mark.parametrize(
    "schedule", [(), (Free(tensor=0),), (Compute(op=10**6),), (Compute(op=3),)]
)
def test_wrong_schedules_are_refused(schedule: Any) -> None:
    program = poet.capture(Twice(), mse, example=(X, Y))
    with pytest.raises(poet.PoetError, match="does not fit"):
        program.run(schedule=schedule)


def test_a_plan_without_a_schedule_is_refused() -> None:
    program = poet.capture(Twice(), mse, example=(X, Y))
    plan = poet.plan(program, "rpi4", ram=100)
    with pytest.raises(poet.PoetError, match="it is infeasible"):
        program.run(plan=plan)


def test_a_torch_optimizer_is_followed() -> None:
    model, plain = nn.Linear(8, 8), nn.Linear(8, 8)
    plain.load_state_dict(model.state_dict())
    updates = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (model, plain)]

    def eager(net: nn.Module, update: torch.optim.Optimizer) -> None:
        update.zero_grad()
        mse(net(X), Y).backward()  # type: ignore[no-untyped-call]
        update.step()

    for net, update in zip((model, plain), updates, strict=True):
        eager(net, update)  # a step before the capture
    program = poet.capture(model, mse, updates[0], example=(X, Y))
    for rate in (0.1, 0.05, 0.02):
        for update in updates:
            update.param_groups[0]["lr"] = rate
        eager(plain, updates[1])
        program.run()
    assert same_bits(model.weight, plain.weight)


def test_parameters_may_be_replaced() -> None:
    model = nn.Linear(8, 8)
    program = poet.capture(model, mse, poet.SGD(lr=0.1), example=(X, Y))
    model.load_state_dict({n: v.clone() for n, v in model.state_dict().items()}, assign=True)
    before = model.weight.detach().clone()
    program.run()
    assert not torch.equal(model.weight, before)


# The cache


def key(model: nn.Module, loss: Any = mse) -> str | None:
    return key_of(Step(model, loss, take_apart((X, Y)), None))


def reads_environment(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return mse(made, wanted) * (2 if os.environ.get("NOBODY_SETS_THIS") else 1)


def imports_late(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    from math import pi

    return mse(made, wanted) * pi


def looks_around(made: torch.Tensor, wanted: torch.Tensor) -> Any:
    return mse(made, wanted) * globals()["X"].shape[0]


def uses_a_module(made: torch.Tensor, wanted: torch.Tensor) -> Any:
    return eager_module.loss_of(made, wanted, None)


eager_module = sys.modules["tests.torch.eager"]


@pytest.mark.parametrize(
    "loss", [reads_environment, imports_late, looks_around, uses_a_module], ids=lambda f: f.__name__
)
def test_code_that_reaches_elsewhere_is_not_cached(loss: Any) -> None:
    assert key(Base(), loss) is None


def test_teachers_count_with_their_weights() -> None:
    teachers = [nn.Linear(8, 8).requires_grad_(False) for _ in range(2)]
    keys = [key(Base(), lambda o, y, t=t: mse(o, t(y))) for t in teachers]
    assert None not in keys
    assert keys[0] != keys[1]


def test_a_function_that_poses_as_another_counts_as_itself() -> None:
    def posing(factor: int) -> Any:
        @functools.wraps(F.mse_loss)
        def loss(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return mse(made, wanted) * factor

        return loss

    assert key(Base(), posing(1)) != key(Base(), posing(3))


def test_a_patched_library_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Base())
    assert before is not None
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x @ self.weight)
    assert key(Base()) != before
    monkeypatch.undo()
    assert key(Base()) == before
    monkeypatch.setattr(F, "gelu", lambda x: x)
    assert key(Base()) is None


def test_hooks_for_all_modules_are_noticed() -> None:
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert key(Base()) is None
    finally:
        hook.remove()


class Slotted:
    __slots__ = ("k",)


class Table(dict[str, int]):
    pass


@pytest.mark.parametrize(
    "thing", [Slotted(), random.Random(3), Table(a=1)], ids=["slots", "generator", "dict"]
)
def test_objects_with_hidden_content_are_not_cached(thing: Any) -> None:
    model: Any = Base()
    model.thing = thing
    assert key(model) is None


def test_user_files_are_captured_anew_when_they_change(poet_command: Any, user_file: Path) -> None:
    asked = ("plan", f"{user_file}:make", "--device", "rpi4", "--time-limit", "1", "--json")
    before = poet_command(*asked)
    assert before.code == 0
    user_file.write_text(user_file.read_text().replace("32", "48"))
    after = poet_command(*asked)
    assert after.out.split('"solve_seconds"')[0] != before.out.split('"solve_seconds"')[0]
