"""Wrapped models in the user's own loop: calls, inputs, modes, and what others see of them."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poet
from poet.zoo import build
from tests.torch.eager import same_bits
from tests.torch.wrapping import (
    X,
    check_same,
    mlp,
    pair,
    same_step,
    wrapped,
)


class Flexible(nn.Module):
    """Takes arguments in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        more: Any = (),
        *,
        factor: float = 1.0,
        deep: bool = False,
    ) -> dict[str, Any]:
        y: torch.Tensor = torch.tanh(self.first(x)) * factor * self.scale
        if mask is not None:
            y = y * mask
        for each in more.values() if isinstance(more, dict) else more:
            y = y + each
        if deep:
            y = torch.relu(self.second(y))
        return {"y": y, "factor": factor}


# A loop like any other


@pytest.mark.parametrize("spec", ["lenet?batch=3", "resnet18-cifar", "bert-tiny?seq=16&vocab=500"])
@pytest.mark.parametrize("tight", [False, True])
def test_wrapped_models_in_the_users_own_loop(spec: str, tight: bool, tmp_path: Path) -> None:
    made: Any = build(spec)
    plain = copy.deepcopy(made.model)
    given = made.example if made.loss is None else made.example[:-1]
    small = poet.wrap(made.model, example=given, time_limit=1)
    if tight:
        assert small.plan.peak_bytes is not None
        assert small.plan.floor_bytes is not None
        store = poet.FileStore(tmp_path)
        ram = (small.plan.peak_bytes + small.plan.floor_bytes) // 2 + store.buffer_bytes
        small = poet.wrap(made.model, example=given, ram=ram, store=store, time_limit=2)
    nets: list[Any] = [small, plain]
    updates = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in nets]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(update, 0.5) for update in updates]
    for step in range(3):
        losses = []
        for net, update, schedule in zip(nets, updates, schedules, strict=True):
            update.zero_grad()
            for micro in range(2):  # gradients accumulate
                torch.manual_seed(10 * step + micro)
                out = net(**given) if isinstance(given, dict) else net(*given)
                loss = out.loss if made.loss is None else made.loss(out, made.example[-1])
                (loss / 2).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            update.step()
            schedule.step()
            losses.append(loss.detach())
        assert same_bits(*losses)
    for name, value in plain.state_dict().items():
        assert same_bits(value, small.state_dict()[name])
    plain.load_state_dict(small.state_dict())
    if tight:
        assert small.peak_bytes <= ram


def test_wrapped_models_evaluate_and_refuse_a_second_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    x = torch.randn(4, 8)
    small = poet.wrap(model, example=(x,), time_limit=1)
    assert [name for name, _ in small.named_parameters()] == list(dict(model.named_parameters()))
    small.eval()
    assert not model.training
    small(x)
    small.train()
    before = model[1].running_mean.clone()  # type: ignore[operator]
    small(x)  # forgotten: nobody will ask for its backward pass
    first = small(x)
    assert not torch.equal(before, model[1].running_mean)  # type: ignore[arg-type]
    first.sum().backward()
    with pytest.raises(poet.PoetError, match="has run already"):
        first.sum().backward()
    small(x[:3]).sum().backward()  # another batch size


# How it is called


def test_arguments_come_as_they_are_given() -> None:
    small, plain = pair(Flexible())
    mask, more = (torch.rand(6, 8) > 0.5).float(), [torch.randn(6, 8), torch.randn(8)]

    def loss(out: Any) -> torch.Tensor:
        found: torch.Tensor = (out["y"] ** 2).sum() * out["factor"]
        return found

    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {}),
        ((X, mask), {}),
        ((X,), {"mask": mask}),
        ((), {"x": X, "mask": mask}),
        ((X, None, more), {}),
        ((X,), {"more": tuple(more)}),
        ((X,), {"more": {"a": more[0], "b": more[1]}}),
        ((X,), {"factor": 0.5}),
        ((X,), {"factor": -0.0}),
        ((X,), {"factor": 2}),
        ((X,), {"factor": True}),
        ((X, mask), {"factor": 0.5, "deep": True}),
        ((X,), {"deep": False}),
        ((X[:4],), {"mask": mask[:4], "deep": True}),
    ]
    for _ in range(2):
        for args, kwargs in calls:
            same_step(small, plain, *args, loss=loss, **kwargs)
    assert len(small._poet.planned.session._executors) == len(calls)


def test_the_example_may_hold_keywords() -> None:
    mask = torch.ones(6, 8)
    for example, kwargs in (((X,), {"mask": mask}), ({"x": X, "mask": mask}, None)):
        model = Flexible()
        small = poet.wrap(model, example=example, kwargs=kwargs, time_limit=0.2)
        names = [small.plan.graph.tensors[i].name for i in small.plan.graph.given]
        assert [name for name in names if name.startswith("input")] == ["input 0", "input 1"]
    with pytest.raises(poet.PoetError, match="must be a tuple of what the model is called with"):
        poet.wrap(Flexible(), example=3)


def test_what_could_change_unseen_is_refused() -> None:
    small = wrapped(Flexible())
    with pytest.raises(poet.PoetError, match=r"holds a NumPy ndarray.*torch.from_numpy"):
        small(X, X.numpy())
    with pytest.raises(poet.PoetError, match="holds a object, neither a tensor"):
        small(X, more=[object()])
    with pytest.raises(poet.PoetError, match="sparse"):
        small(X, X.to_sparse())


def test_the_layout_of_inputs_counts() -> None:
    small, plain = pair(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(2, 3, 8, 8)
    )
    batch = torch.randn(2, 3, 8, 8)
    wide = torch.randn(4, 3, 8, 16)
    for x in (
        batch,
        batch.to(memory_format=torch.channels_last),
        wide[1:3, :, :, ::2],
        batch[:1].expand(2, 3, 8, 8),
        batch.transpose(2, 3),
    ):
        assert small.peak_bytes < 100_000
        check_same(run_plain(small, x), run_plain(plain, x))


def run_plain(net: Any, x: torch.Tensor) -> Any:
    net.zero_grad()
    out = net(x)
    out.square().sum().backward()
    return {"out": [out], "strides": [out.stride()], "grads": [p.grad for p in net.parameters()]}


# Gradients of inputs


def test_what_comes_before_is_trained() -> None:
    front, back = nn.Linear(3, 8), nn.Linear(4, 2)
    small, plain = pair(mlp(nn.Dropout(0.3)), torch.randn(6, 8, requires_grad=True))
    nets = [
        nn.Sequential(front, small, back),
        nn.Sequential(copy.deepcopy(front), plain, copy.deepcopy(back)),
    ]
    updates = [torch.optim.Adam(net.parameters(), lr=0.1) for net in nets]
    x = torch.randn(6, 3)
    for step in range(3):
        for net, update in zip(nets, updates, strict=True):
            update.zero_grad()
            torch.manual_seed(step)
            net(x).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            update.step()
    check_same(*({"all": list(net.state_dict().values())} for net in nets))
    gradients = [t for t in small.plan.graph.tensors if t.name.startswith("gradient of input")]
    assert [t.nbytes for t in gradients] == [6 * 8 * 4]  # and it counts


def test_which_inputs_require_a_gradient_may_change() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))

        def forward(self, a: torch.Tensor, b: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return torch.sin(a * self.weight) * b[n]

    a, b, n = torch.randn(6, 8), torch.randn(6, 8), torch.tensor([1, 0, 2, 2, 1, 5])
    small, plain = pair(Product(), a, b, n)
    for trains_a in (False, True):
        for trains_b in (False, True):
            for frozen in (False, True):
                for net in (small, plain):
                    net.requires_grad_(not frozen)
                if frozen and not (trains_a or trains_b):
                    assert not small(a, b, n).requires_grad
                    continue
                inputs = (a.requires_grad_(trains_a), b.requires_grad_(trains_b), n)
                same_step(small, plain, *inputs)


def test_a_model_without_parameters_passes_gradients_on() -> None:
    x = X.clone().requires_grad_()
    small, plain = pair(nn.Sequential(nn.Tanh(), nn.Softmax(1)), x)
    same_step(small, plain, x, loss=lambda out: (out**2).sum())


def test_one_tensor_given_twice_and_overlapping_views() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layer(a) * torch.sin(a) + torch.exp(b) * self.layer(b)
            return made

    small, plain = pair(Three(), X, X.clone())
    for net in (small, plain):
        net.zero_grad()
    gradients = []
    for net in (small, plain):
        base = X.clone().requires_grad_()
        net(base, base).square().sum().backward()
        net(base[:4], base[2:]).square().sum().backward()
        gradients.append({"base": [base.grad], "own": [p.grad for p in net.parameters()]})
    check_same(*gradients)


# What it is to others


def test_a_wrapped_model_is_the_model_to_others() -> None:
    inner = nn.BatchNorm1d(8)  # parameters of its own, at the root
    small, plain = pair(inner)
    outer = nn.Sequential(small, nn.Linear(8, 2))
    expected = nn.Sequential(plain, nn.Linear(8, 2))
    assert list(outer.state_dict()) == list(expected.state_dict())
    for named in ("named_parameters", "named_buffers"):
        have, want = getattr(outer, named)(), getattr(expected, named)()
        assert [name for name, _ in have] == [name for name, _ in want]
    assert [name for name, _ in outer.named_modules()] == ["", "0", "1"]
    expected.load_state_dict(outer.state_dict())
    outer.load_state_dict(expected.state_dict())
    outer.eval()
    assert not inner.training
    outer.train()
    assert inner.training
    small.weight = nn.Parameter(torch.full((8,), 2.0))
    assert inner.weight.sum() == 16
    small.register_buffer("other", torch.zeros(1))
    assert "other" in inner.state_dict()
    small.requires_grad_(False)
    assert not inner.weight.requires_grad
    small.requires_grad_(True)
    small(X).sum().backward()
    small.zero_grad()
    assert inner.weight.grad is None
    seen: list[Any] = []
    outer.apply(seen.append)
    assert small in seen
    assert small.model is inner


def test_casting_is_captured_anew() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layer(x * self.weight)
            return made

    small, plain = pair(Root())
    same_step(small, plain, X)
    for dtype in (torch.float64, torch.float32):
        assert small.to(dtype) is small
        assert small.weight.dtype == small.layer.weight.dtype == dtype
        same_step(small, plain.to(dtype), X.to(dtype))


def test_a_wrapped_model_is_not_captured_again() -> None:
    small = wrapped(mlp())
    with pytest.raises(poet.PoetError, match="wrapped already"):
        wrapped(small)
    with pytest.raises(poet.PoetError, match=r"a part of the model is wrapped.*poet.unwrap"):
        wrapped(nn.Sequential(small, nn.ReLU()))
    with pytest.raises(poet.PoetError, match=r"a part of the model is wrapped"):
        poet.Trainer(
            small, F.cross_entropy, poet.SGD(), example=(X, torch.zeros(6).long()), cache=False
        )


# Modes


def test_evaluation_mode_is_planned_too() -> None:
    small, plain = pair(mlp(nn.BatchNorm1d(8), nn.Dropout(0.5)))
    x = X.clone().requires_grad_()
    for training in (True, False, True):
        for net in (small, plain):
            net.train(training)
        before = small.peak_bytes
        small.peak_bytes = 0
        same_step(small, plain, x, loss=lambda out: (out**2).sum())
        assert 0 < small.peak_bytes <= small.budget_bytes
        small.peak_bytes = max(before, small.peak_bytes)
    for net in (small, plain):
        net.get_submodule("2").eval()
    same_step(small, plain, x)  # the mode of each part counts
    for without in (torch.no_grad, torch.inference_mode):
        seen = []
        for net in (small, plain):
            torch.manual_seed(0)
            with without():
                seen.append(net(X))
        assert same_bits(*seen)


def test_a_model_in_evaluation_mode_can_be_wrapped() -> None:
    small, plain = pair(mlp(nn.BatchNorm1d(8)).eval())
    same_step(small, plain, X)
    assert small.peak_bytes


def test_autocast_is_that_of_the_call(eager_bfloat16: None) -> None:
    small, plain = pair(mlp())
    for dtype in (None, torch.bfloat16, None):
        for _ in range(2):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                mine, theirs = small(X), plain(X)
            assert mine.dtype == (dtype or torch.float32)
            assert same_bits(mine, theirs)
            mine.float().square().sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        other = wrapped(mlp())
    assert other(X).dtype == torch.float32
