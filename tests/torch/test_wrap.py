"""Wrapped models in the user's own loop: what eager PyTorch does, bit for bit, or an error."""

import copy
import itertools
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

import poet
from poet.planning.question import Problem, Terms
from poet.referee.replay import check
from poet.training.planned import PlannedSteps
from poet.values.plan import Plan, draft
from poet.values.schedule import PageIn
from poet.zoo import build
from tests.torch.eager import same_bits
from tests.torch.live_storage import LiveStorage
from tests.torch.random_schedules import random_schedule

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def wrapped(model: nn.Module, *args: Any, **options: Any) -> Any:
    return poet.wrap(model, example=args or (X,), time_limit=0.2, **options)


def pair(model: nn.Module, *args: Any, **options: Any) -> tuple[Any, nn.Module]:
    """A wrapped model, and a plain one with the same parameters."""
    plain = copy.deepcopy(model)
    return wrapped(model, *args, **options), plain


def tensors_of(tree: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def run(net: Any, loss: Callable[..., Any], args: Any, kwargs: Any, seed: int) -> Any:
    """What a step gives: outputs, gradients of inputs and parameters, buffers, the random state."""
    inputs = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), (args, kwargs)
    )
    net.zero_grad()
    torch.manual_seed(seed)
    out = net(*inputs[0], **inputs[1])
    seen = [x.detach().clone() for x in tensors_of(out)]
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    loss(out).backward()
    return {
        "outputs": seen,
        "strides": [x.stride() for x in tensors_of(out)],
        "trained": [x.requires_grad for x in tensors_of(out)],
        "inputs": [x.grad for x in tensors_of(inputs) if x.is_leaf],
        "parameters": [p.grad for p in net.parameters()],
        "buffers": [*buffers.values(), *net.buffers()],
        "random": [torch.get_rng_state()],
    }


def check_same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for what, mine in one.items():
        theirs = other[what]
        assert len(mine) == len(theirs), what
        for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                assert same_bits(a, b), f"{what} {k}"
            else:
                assert a == b or (a is None and b is None), f"{what} {k}: {a} {b}"


def total(out: Any) -> Any:
    return sum(each.sum() for each in tensors_of(out))


def same_step(
    small: Any,
    plain: nn.Module,
    *args: Any,
    loss: Callable[..., Any] | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> None:
    loss = loss or total
    check_same(run(small, loss, args, kwargs, seed), run(plain, loss, args, kwargs, seed))


def mlp(*extra: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), *extra, nn.Linear(8, 4))


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


def test_wrapped_models_evaluate_and_refuse_two_passes_at_once() -> None:
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
    with pytest.raises(poet.PoetError, match="waits for its backward pass"):
        small(x)
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
    assert len(small._planned.session._executors) == len(calls)


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
    with pytest.raises(poet.PoetError, match=r"called with a numpy.ndarray.*torch.from_numpy"):
        small(X, X.numpy())
    with pytest.raises(poet.PoetError, match="called with a object: POET could not tell"):
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
    assert inner in seen
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


def test_copies_are_refused(tmp_path: Path) -> None:
    small = wrapped(mlp())
    outer = nn.Sequential(small)
    for how in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(poet.PoetError, match=r"a wrapped model cannot be .*, its .model"):
            how(small)
    with pytest.raises(poet.PoetError, match="cannot be copied"):
        copy.deepcopy(outer)
    with pytest.raises(poet.PoetError, match="cannot be replicated"):
        small._replicate_for_data_parallel()
    with pytest.raises(poet.PoetError, match="cannot be pickled"):
        torch.save(outer, tmp_path / "model.pt")
    torch.save(outer.state_dict(), tmp_path / "model.pt")


def test_a_wrapped_model_is_not_captured_again() -> None:
    small = wrapped(mlp())
    with pytest.raises(poet.PoetError, match="wrapped already"):
        wrapped(small)
    with pytest.raises(poet.PoetError, match=r"a part of the model is wrapped.*its .model"):
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


# Outputs


class Returning(nn.Module):
    def __init__(self, what: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.what = what

    def forward(self, x: torch.Tensor) -> Any:
        return self.what(self, self.layer(x), x)


def no_gradient(net: Any, y: torch.Tensor, x: torch.Tensor) -> Any:
    with torch.no_grad():
        return y.clone(), net.other(x)


RETURNED: dict[str, Callable[..., Any]] = {
    "one": lambda net, y, x: y,
    "a view": lambda net, y, x: y.view(2, -1),
    "transposed": lambda net, y, x: y.t(),
    "a piece": lambda net, y, x: y[1:4, ::2],
    "chunks": lambda net, y, x: y.chunk(2, 1),
    "with its view": lambda net, y, x: (y, y.view(-1)),
    "two views": lambda net, y, x: (y.t(), y.view(-1)),
    "twice": lambda net, y, x: (y, y),
    "detached": lambda net, y, x: (y, y.detach()),
    "numbers": lambda net, y, x: {"y": y, "n": 3, "who": "me", "none": None, "size": x.shape},
    "indices": lambda net, y, x: (y, y.argmax(1), y > 0),
    "of two layers": lambda net, y, x: (y, net.other(y)),
    "its input": lambda net, y, x: (y, x),
    "its parameter": lambda net, y, x: (y, net.layer.weight),
    "its buffer": lambda net, y, x: (net.norm(y), net.norm.running_mean),
    "expanded": lambda net, y, x: y.sum(1, keepdim=True).expand(6, 3),
    "a sum with a parameter": lambda net, y, x: x + net.layer.bias + net.other.bias,
}


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.parametrize("trains_input", [False, True])
def test_outputs_are_what_eager_returns(name: str, trains_input: bool) -> None:
    x = X.clone().requires_grad_(trains_input)
    small, plain = pair(Returning(RETURNED[name]), x)

    def loss(out: Any) -> torch.Tensor:
        made = [t for t in tensors_of(out) if t.requires_grad and t.grad_fn is not None]
        return sum((k + 1) * (t * torch.sin(t)).sum() for k, t in enumerate(made))  # type: ignore[return-value]

    for seed in range(2):
        same_step(small, plain, x, loss=loss, seed=seed)
    mine, theirs = small(x), plain(x)
    assert type(mine) is type(theirs)
    for a, b in zip(tensors_of(mine), tensors_of(theirs), strict=True):
        assert (a is x) == (b is x)
        assert isinstance(a, nn.Parameter) == isinstance(b, nn.Parameter)
    if isinstance(theirs, dict):
        assert {**mine, "y": 0} == {**theirs, "y": 0}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda net, y, x: (y, x.t()), r"output 1 of the model is a view of input 0"),
        (lambda net, y, x: (y, net.layer.weight.t()), r"output 1 .* is a view of layer.weight"),
        (lambda net, y, x: (net.norm(y), net.norm.running_mean[:2]), "view of norm.running_mean"),
        (lambda net, y, x: net.layer(x.add_(1)), "changes its input number 0 in place"),
        (lambda net, y, x: (y, {1, 2}), "the model returns a set, which POET cannot take apart"),
        (lambda net, y, x: y.detach(), "no output of the model depends on"),
    ],
)
def test_outputs_that_are_refused(what: Any, message: str) -> None:
    with pytest.raises(poet.PoetError, match=message):
        wrapped(Returning(what))


def test_gradients_share_no_memory() -> None:
    x = X.clone().requires_grad_()
    small = wrapped(Returning(lambda net, y, x: x + net.layer.bias + net.other.bias), x)
    gradient = torch.randn(6, 8)
    small(x).backward(gradient)
    storages = {t.grad.data_ptr() for t in (x, small.layer.bias, small.other.bias)}  # type: ignore[union-attr]
    assert len(storages | {gradient.data_ptr()}) == 4


def test_outputs_that_are_not_used_get_no_gradient() -> None:
    """No gradient is not one of zeros: an optimizer leaves such parameters alone."""
    small, plain = pair(Returning(lambda net, y, x: (y, net.other(net.norm(F.dropout(y))))))
    for used in ((0, 1), (0,), (0,), (1,), (0, 1), (0,)):
        loss = lambda out, used=used: sum(out[k].square().sum() for k in used)  # noqa: E731
        same_step(small, plain, X, loss=loss)
        assert (small.other.weight.grad is None) == (1 not in used)


def test_a_second_run_is_refused_where_its_inputs_have_changed() -> None:
    small = wrapped(Returning(lambda net, y, x: (y, net.other(y))))
    x = X.clone()
    out = small(x)
    x.add_(1)
    with pytest.raises(poet.PoetError, match=r"input 0 was changed in place since the forward"):
        out[0].sum().backward()


@pytest.mark.parametrize("ram", ["min", None])
def test_language_models_with_labels(ram: str | None, tmp_path: Path) -> None:
    made: Any = build("gpt2?layers=2&seq=16&vocab=500")
    plain = copy.deepcopy(made.model)
    tokens = torch.randint(0, 500, (2, 16))
    given = {"input_ids": tokens, "labels": tokens.clone()}
    store = tmp_path if ram else None
    small: Any = poet.wrap(made.model, example=given, ram=ram, store=store, time_limit=2)

    for seed in range(3):
        check_same(*(run(net, lambda out: out.loss, (), given, seed) for net in (small, plain)))
    assert small.peak_bytes <= small.budget_bytes
    if not ram:
        check_same(*(run(net, of_logits, (), given, 0) for net in (small, plain)))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(5)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for block in self.blocks:
            x = block(x)
            made.append(x)
        return made[::2]


def test_the_budget_holds_with_all_that_the_user_holds(tmp_path: Path) -> None:
    """Outputs, inputs and gradients among it, counted from outside."""
    x = torch.randn(256, 64, requires_grad=True)
    model = Deep()
    plain = copy.deepcopy(model)
    store = poet.FileStore(tmp_path, chunk_bytes=4096)
    small: Any = poet.wrap(model, example=(x,), ram="min", store=store, time_limit=3)
    same_step(small, plain, x)
    assert small.peak_bytes <= small.budget_bytes
    outputs = {i for i, t in enumerate(small.plan.graph.tensors) if t.name.startswith("output")}
    assert len(outputs & set(small.plan.budget.pinned)) == 3
    small.zero_grad()
    with LiveStorage([x, *small.parameters()]) as live:
        out = small(x)
        handed_out = live.live_bytes

        torch.autograd.backward(out, [torch.ones(()).expand(256, 64) for _ in out])
    assert handed_out < live.peak_bytes <= small.budget_bytes


def of_logits(out: Any) -> Any:
    return out.logits.logsumexp(-1).sum()


# Backward passes


def test_backward_in_every_way() -> None:
    small, plain = pair(mlp(nn.BatchNorm1d(8)))
    seen: list[torch.Tensor] = []
    for net in (small, plain):
        out = net(X)
        out.register_hook(lambda gradient: gradient * 2)
        with torch.no_grad():
            out.backward(torch.ones(6, 4), retain_graph=True)
    check_same(*({"grads": [p.grad for p in net.parameters()]} for net in (small, plain)))
    for net in (small, plain):
        seen += torch.autograd.grad(net(X).square().sum(), list(net.parameters()))
    for k in range(len(seen) // 2):
        assert same_bits(seen[k], seen[k + len(seen) // 2])
    (bare,) = torch.autograd.grad(small(X).sum(), [next(small.parameters())])
    assert bare is not None


def test_hooks_of_parameters_are_called() -> None:
    small, plain = pair(mlp())
    for net in (small, plain):
        next(net.parameters()).register_hook(lambda gradient: gradient.sign())
    same_step(small, plain, X)


def test_backward_passes_that_are_refused() -> None:
    small = wrapped(mlp())
    out = small(X)
    with pytest.raises(poet.PoetError, match="create_graph=True asks for gradients of gradients"):
        torch.autograd.grad(out.square().sum(), list(small.parameters()), create_graph=True)
    out.sum().backward(retain_graph=True)
    with pytest.raises(poet.PoetError, match="has run already"):
        out.sum().backward()
    first = small(X)
    with pytest.raises(poet.PoetError, match="waits for its backward pass"):
        small(X)
    del first
    small(X).sum().backward()


def test_transforms_are_refused() -> None:
    small = wrapped(mlp())
    with pytest.raises(poet.PoetError, match=r"not by torch.func's transforms"):
        torch.vmap(small)(X[None])
    with forward_ad.dual_level(), pytest.raises(poet.PoetError, match="forward-mode differ"):
        small(X)


def test_an_error_in_the_users_loop_leaves_nothing_behind() -> None:
    small, plain = pair(mlp(nn.BatchNorm1d(8), nn.Dropout(0.5)))

    def fails(net: Any) -> None:
        torch.manual_seed(3)
        out = net(X)
        raise KeyError(out.shape)

    for net in (small, plain):
        with pytest.raises(KeyError):
            fails(net)
    same_step(small, plain, X)


def test_changes_between_the_passes() -> None:
    for change in (
        lambda net, x, out: net.get_parameter("0.weight").data.zero_(),
        lambda net, x, out: out.mul_(2),
        lambda net, x, out: out.view(-1).add_(1),
    ):
        small, plain = pair(mlp(nn.BatchNorm1d(8)))
        check_same(*(_changed(net, change) for net in (small, plain)))
    refused = (
        (lambda net, x, out: net.get_parameter("3.weight").detach().zero_(), "3.weight was"),
        (lambda net, x, out: x.add_(1), "input 0 was"),
        (lambda net, x, out: net.get_buffer("2.running_mean").zero_(), "2.running_mean was"),
    )
    for change, message in refused:
        small, plain = pair(mlp(nn.BatchNorm1d(8)))
        with pytest.raises(poet.PoetError, match=f"{message} changed in place since"):
            _changed(small, change)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            _changed(plain, change)
    small, plain = pair(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    for net, error in ((small, poet.PoetError), (plain, RuntimeError)):
        with pytest.raises(error, match=r"output 0 was changed|modified by an inplace operation"):
            _changed(net, lambda net, x, out: out.mul_(2))


def _changed(net: Any, change: Callable[..., Any]) -> Any:
    x = X.clone()
    net.zero_grad()
    out = net(x)
    change(net, x, out)
    out.square().sum().backward()
    return {"grads": [p.grad for p in net.parameters()], "buffers": list(net.buffers())}


def test_two_threads_take_turns() -> None:
    small = wrapped(mlp())
    inside, go_on = threading.Event(), threading.Event()

    def waits(*_: Any) -> None:
        inside.set()
        go_on.wait(20)

    executor = small._planned.session._executors[small._planned.key(_called(X))]
    begin = executor.begin

    def slow(call: Any) -> Any:
        waits()
        return begin(call)

    executor.begin = slow
    thread = threading.Thread(target=lambda: small(X))
    thread.start()
    try:
        assert inside.wait(20)
        with pytest.raises(poet.PoetError, match="runs in another thread"):
            small(X)
    finally:
        go_on.set()
        thread.join()
    executor.begin = begin
    small(X).sum().backward()


def _called(*args: Any) -> Any:
    from poet.tracer.outputs import Called

    return Called(args, {})


# All of it together


class Mixed(nn.Module):
    """A random small network: what it does follows from a seed."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        kinds: list[Callable[[], nn.Module]] = [
            lambda: nn.Linear(8, 8),
            lambda: nn.BatchNorm1d(8),
            lambda: nn.LayerNorm(8),
            nn.Tanh,
            lambda: nn.ReLU(inplace=rng.random() < 0.5),
            nn.Softplus,
            lambda: nn.Dropout(0.3),
            lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
        ]
        self.layers = nn.ModuleList(
            [nn.Linear(8, 8), *(rng.choice(kinds)() for _ in range(rng.randint(2, 5)))]
        )
        self.head = nn.Linear(8, 3)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(8))
        self.counts = rng.random() < 0.5
        self.skips = [rng.random() < 0.3 for _ in self.layers]
        self.returns = rng.choice(("one", "pair", "dict", "pieces"))

    def forward(
        self, x: torch.Tensor, other: Any = None, *, scale: float = 1.0, deep: bool = True
    ) -> Any:
        y = x
        for layer, skips in zip(self.layers, self.skips, strict=True):
            y = y * scale + layer(y) if skips else layer(y)
        for each in other or ():
            y = y * each
        if self.counts:
            self.seen += y.detach().mean(0)
        out = self.head(y) if deep else y
        pieces = y.chunk(2, 1)
        return {
            "one": out,
            "pair": (out, y),
            "dict": {"out": out, "n": len(x), "inner": {"y": y.t()}},
            "pieces": [out, *pieces],
        }[self.returns]


@pytest.fixture
def random_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that recompute and page at random, and are found at once."""
    planned = PlannedSteps._planned
    seeds = itertools.count()

    def at_random(self: PlannedSteps, problem: Problem, terms: Terms) -> Plan:
        roomy = planned(self, problem, terms)
        budget = msgspec.structs.replace(roomy.budget, store_bytes=None)
        schedule = random_schedule(roomy.graph, next(seeds), evict=0.5)
        plan = draft(roomy.graph, roomy.costs, budget, schedule)
        assert check(plan).valid
        return plan

    monkeypatch.setattr(PlannedSteps, "_planned", at_random)


@pytest.mark.parametrize("seed", range(12))
def test_random_models_calls_and_plans(seed: int, random_plans: None, tmp_path: Path) -> None:
    rng = Random(seed)
    torch.manual_seed(seed)
    model = Mixed(rng)
    plain: Any = copy.deepcopy(model)
    small: Any = poet.wrap(model, example=(X,), store=tmp_path, time_limit=1, granularity="op")
    assert any(isinstance(each, PageIn) for each in small.plan.schedule) or small.plan.recomputed
    for step in range(10):
        args, kwargs = random_call(rng)
        for net in (small, plain):
            net.train(step % 4 < 2)
        picked = rng.random()

        def loss(out: Any, picked: float = picked) -> Any:
            trained = [each for each in tensors_of(out) if each.requires_grad]
            count = len(trained) if picked < 0.5 else 1
            return sum(torch.sin(each).sum() * (k + 1) for k, each in enumerate(trained[:count]))

        if rng.random() < 0.3:  # a pass without a backward pass
            for net in (small, plain):
                torch.manual_seed(step)
                net(*args, **kwargs)
        same_step(small, plain, *args, loss=loss, seed=step, **kwargs)
        with torch.no_grad():
            for net in (small, plain):
                for parameter in net.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad


def random_call(rng: Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = torch.randn(6, 8).requires_grad_(rng.random() < 0.5)
    kwargs: dict[str, Any] = {}
    if rng.random() < 0.5:
        kwargs["other"] = [torch.randn(6, 8).requires_grad_(rng.random() < 0.5)]
    if rng.random() < 0.3:
        kwargs["scale"] = rng.choice((0.5, -1.0))
    if rng.random() < 0.3:
        kwargs["deep"] = rng.random() < 0.5
    if rng.random() < 0.5:
        return (x,), kwargs
    return (), {"x": x, **kwargs}
