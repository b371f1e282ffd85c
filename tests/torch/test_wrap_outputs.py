"""What wrapped models return, and the ways back from there."""

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

import poet
from tests.torch.eager import same_bits
from tests.torch.live_storage import LiveStorage
from tests.torch.wrapping import (
    X,
    check_same,
    mlp,
    pair,
    run,
    same_step,
    tensors_of,
    wrapped,
)

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


def test_a_second_run_is_refused_where_the_model_has_changed() -> None:
    small = wrapped(
        Returning(lambda net, y, x: (y, net.other(F.dropout(y, training=net.training))))
    )
    out = small(X)
    small.eval()
    with pytest.raises(poet.PoetError, match="has changed since the forward pass"):
        out[0].sum().backward()
    small.train()
    out[0].sum().backward()


def language_model(**options: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """One whose activations take more than its parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=64, bos_token_id=0,
        eos_token_id=0, **options,
    )  # fmt: skip
    tokens = torch.randint(0, 64, (4, 64))
    made: Any = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    return made, {"input_ids": tokens, "labels": tokens.clone()}


def test_language_models_with_labels(tmp_path: Path) -> None:
    model, given = language_model(use_cache=False)
    plain = copy.deepcopy(model)
    store = poet.FileStore(tmp_path, chunk_bytes=4096)
    small: Any = poet.wrap(model, example=given, ram="min", store=store, time_limit=2)
    graph = small.plan.graph
    (hands_in,) = [op for op in graph.ops if op.calls[0].kind == "poet.tangent"]
    outputs = {i for i, tensor in enumerate(graph.tensors) if tensor.name.startswith("output")}
    assert len(outputs) == 2
    assert outputs <= {*hands_in.inputs} & {*small.plan.budget.pinned}
    for seed in range(3):
        check_same(*(run(net, lambda out: out.loss, (), given, seed) for net in (small, plain)))
    assert small.peak_bytes <= small.budget_bytes
    roomy: Any = poet.wrap(model, example=given, time_limit=1)
    for loss in (of_logits, lambda out: out.loss + of_logits(out)):
        check_same(*(run(net, loss, (), given, 0) for net in (roomy, plain)))


def test_a_cache_of_keys_and_values_is_refused() -> None:
    model, given = language_model()
    with pytest.raises(poet.PoetError, match=r"DynamicCache.*model.config.use_cache = False"):
        poet.wrap(model, example=given)


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

    executor = small._poet.planned.known(_called(X))
    begin = executor.begin

    def slow(*args: Any) -> Any:
        waits()
        return begin(*args)

    executor.begin = slow
    thread = threading.Thread(target=lambda: small(X))
    thread.start()
    try:
        assert inside.wait(20)
        with pytest.raises(poet.PoetError, match="another thread is in a step of this model"):
            small(X)
    finally:
        go_on.set()
        thread.join()
    executor.begin = begin
    small(X).sum().backward()


def _called(*args: Any) -> Any:
    from poet.tracer.outputs import Called

    return Called(args, {})
