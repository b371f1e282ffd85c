"""To everybody who looks, a wrapped model is the model."""

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import poet
from poet.training.wrapped import Wrapped
from tests.torch.eager import same_bits
from tests.torch.test_wrap_outputs import language_model
from tests.torch.wrapping import X, check_same, mlp, pair, run, same_step, total, wrapped


class Named(nn.Module):
    """A network with names of its own, two of which POET has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.plan = "mine"

    @property
    def width(self) -> int:
        return self.head.out_features

    def features(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.relu(self.model(x))
        return made

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        made: torch.Tensor = self.head(self.features(x)) * scale
        return made


class Twice(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


# Names, classes, methods


def test_names_classes_and_methods_are_the_models() -> None:
    small, plain = pair(Named())
    model: Any = poet.unwrap(small)
    assert all(isinstance(small, kind) for kind in (Named, Wrapped))
    assert small.__class__ is Named is type(model)
    assert type(small).__name__ == "Named"
    assert repr(small) == repr(plain)
    assert small.__doc__ == plain.__doc__
    assert small.width == 4
    assert (small.model, small.plan) == (model.model, "mine")
    assert inspect.signature(small.forward) == inspect.signature(plain.forward)
    assert inspect.signature(type(small).forward) == inspect.signature(Named.forward)
    assert same_bits(small.features(X), plain.features(X))  # type: ignore[operator]
    assert [name for name, _ in small.named_modules()] == ["", "model", "head"]
    assert small.get_submodule("model") is small.model
    assert poet.unwrap(plain) is plain
    small.plan = "yours"
    assert model.plan == "yours"
    del small.plan
    assert isinstance(small.plan, poet.Plan)
    same_step(small, plain, X)


def test_sequences_are_sequences() -> None:
    small, plain = pair(mlp())
    assert len(small) == len(plain)  # type: ignore[arg-type]
    assert small[0] is poet.unwrap(small)[0]  # type: ignore[index]
    assert [type(layer) for layer in small] == [type(layer) for layer in plain]  # type: ignore[attr-defined]
    for net in (small, plain):
        getattr(net, "append")(nn.Tanh())  # noqa: B009
    same_step(small, plain, X)


def test_language_models_generate_and_are_saved(tmp_path: Path) -> None:
    import transformers

    model, given = language_model(use_cache=False)
    plain = copy.deepcopy(model)
    small: Any = poet.wrap(model, example=given, time_limit=0.2)
    assert all(isinstance(net, transformers.PreTrainedModel) for net in (small, plain))
    assert small.config is model.config
    for net in (small, plain):
        net.eval()
    start, mask = given["input_ids"][:, :4] % 62 + 2, torch.ones(4, 4, dtype=torch.long)
    made = [
        net.generate(start, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=1)
        for net in (small, plain)
    ]
    assert same_bits(*made)
    small.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config.architectures == ["GPT2LMHeadModel"]
    for name, value in again.state_dict().items():
        assert same_bits(value, plain.state_dict()[name])


def test_classes_may_do_as_they_like() -> None:
    made = []

    class Registered(nn.Linear):
        def __init_subclass__(cls, kind: str) -> None:
            made.append(kind)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return 3 * super().__call__(x)  # type: ignore[no-any-return]

    class Kind(Registered, kind="this"):
        def __getattr__(self, name: str) -> Any:
            return 7 if name == "seven" else super().__getattr__(name)

    kind: nn.Module = Kind(8, 4)
    small, plain = pair(kind)
    assert made == ["this"]
    assert small.seven == 7
    with pytest.raises(AttributeError):
        small.eight  # noqa: B018
    same_step(small, plain, X)


# Hooks


def test_hooks_of_the_model_are_called_each_time() -> None:
    small, plain = pair(mlp(nn.BatchNorm1d(8)))
    seen: list[list[Any]] = [[], []]
    for net, log in zip((small, plain), seen, strict=True):

        def before(net: Any, given: Any, log: list[Any] = log) -> Any:
            log.append(("before", type(net).__name__, given[0].sum().item()))
            return (given[0] * 2,)

        def after(net: Any, given: Any, out: Any, log: list[Any] = log) -> Any:
            log.append(("after", out.sum().item(), len(log)))
            return out * 3

        def backward(net: Any, inputs: Any, outputs: Any, log: list[Any] = log) -> None:
            log.append(("backward", inputs[0].sum().item(), outputs[0].sum().item()))

        net.register_forward_pre_hook(before)
        net.register_forward_hook(after)
        net.register_full_backward_hook(backward)
        net.register_full_backward_pre_hook(lambda net, outputs: (outputs[0] * 5,))
        net._register_state_dict_hook(lambda net, state, *_, log=log: log.append(list(state)))
        net.register_load_state_dict_pre_hook(lambda net, *_, log=log: log.append(type(net)))
    x = X.clone().requires_grad_()
    for _ in range(3):
        same_step(small, plain, x)
    for net in (small, plain):
        net.load_state_dict(net.state_dict())
    assert type(small) is seen[0].pop()
    assert type(plain) is seen[1].pop()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 10
    assert len(small._poet.planned.session.plans) == 2  # the example's, and these calls'


def test_hooks_of_its_parts_are_of_the_step() -> None:
    small, plain = pair(mlp())
    for net in (small, plain):
        part = net.get_submodule("0")
        part.register_forward_hook(lambda layer, given, out: out * 2)
        part.register_full_backward_hook(lambda layer, inputs, outputs: (3 * inputs[0],))  # type: ignore[index]
    same_step(small, plain, X.clone().requires_grad_())
    seen: list[int] = []
    small = wrapped(mlp())
    small[0].register_forward_hook(lambda layer, given, out: seen.append(len(seen)))
    with pytest.raises(poet.PoetError, match="the forward pass changes seen"):
        small(X)


def test_a_hook_that_makes_a_weight_is_refused() -> None:
    """Its gradient would be lost."""

    class Scaled(nn.Linear):
        scaled: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.scaled, self.bias)

    def scale(net: Any, given: Any) -> None:
        net.scaled = 2 * net.weight

    layer = Scaled(8, 8)
    layer.register_forward_pre_hook(scale)
    layer(X)
    with pytest.raises(poet.PoetError, match=r"reads scaled, which requires a gradient and is no"):
        wrapped(layer)
    inner = Scaled(8, 8)
    inner.register_forward_pre_hook(scale)
    with pytest.warns(poet.PoetWarning, match=r"leaves a tensor in 0.scaled"):
        small, plain = pair(nn.Sequential(inner))
    same_step(small, plain, X)  # inside the model, it is of the step


def test_tensors_in_the_place_of_parameters_are_refused() -> None:
    small = wrapped(mlp())
    doubled = {name: 2 * value for name, value in small.named_parameters()}
    with pytest.raises(poet.PoetError, match=r"0.weight, as torch.func.functional_call puts it"):
        torch.func.functional_call(small, doubled, (X,))
    layer = nn.BatchNorm1d(8)
    layer.register_buffer("trained", torch.ones(8, requires_grad=True))
    with pytest.raises(poet.PoetError, match=r"the buffer trained requires a gradient"):
        wrapped(layer)


# Who puts something in the place of something


def test_what_is_put_in_the_place_of_forward() -> None:
    small, plain = pair(mlp())
    planned = small.forward
    assert planned == small.forward
    small._before = planned

    def tripled(*args: Any) -> Any:
        return planned(*args) * 3

    small.forward = tripled
    made = [small(X), plain(X) * 3]
    assert same_bits(*made)
    for out in made:
        out.sum().backward()
    assert small.peak_bytes
    check_same(*({"all": [p.grad for p in net.parameters()]} for net in (small, plain)))
    small.forward = planned
    same_step(small, plain, X)
    for net in (poet.unwrap(small), plain):  # inside
        layer = net.get_submodule("0")
        net.forward = lambda x, first=layer: first(x)
    same_step(small, plain, X)
    assert list(inspect.signature(small.forward).parameters) == ["x", "first"]


def test_parametrized_models() -> None:
    for outside in (True, False):
        small, plain = pair(nn.Linear(8, 4))
        model = poet.unwrap(small)
        parametrize.register_parametrization(small if outside else model, "weight", Twice())
        parametrize.register_parametrization(plain, "weight", Twice())
        assert same_bits(small.weight, getattr(plain, "weight"))  # noqa: B009
        assert repr(small) == repr(plain)
        assert type(model).__name__ == type(small).__name__ == "ParametrizedLinear"
        same_step(small, plain, X)
        for net in (small, plain):
            parametrize.remove_parametrizations(net, "weight")
        assert type(model) is nn.Linear
        same_step(small, plain, X)


def test_a_wrapped_model_is_not_compiled_in_place() -> None:
    small = wrapped(mlp())
    with pytest.raises(poet.PoetError, match="cannot be compiled in place"):
        small.compile()
    compiled: Any = torch.compile(small, backend="eager")
    made = compiled(X)
    made.sum().backward()
    assert small.peak_bytes
    assert same_bits(made, small(X))


# Copies, and what others make of it


def test_copies_and_pickles_are_of_the_model_inside(tmp_path: Path) -> None:
    small, plain = pair(mlp(nn.Dropout(0.5)))
    torch.save(nn.Sequential(small), tmp_path / "model.pt")
    copies = [
        copy.copy(small),
        copy.deepcopy(small),
        copy.deepcopy(nn.Sequential(small))[0],
        torch.load(tmp_path / "model.pt", weights_only=False)[0],
    ]
    for made in copies:
        assert type(made) is nn.Sequential
        same_step(made, plain, X)
    assert copies[0][0] is small[0]
    with pytest.raises(poet.PoetError, match="cannot be replicated"):
        small._replicate_for_data_parallel()


def test_averaged_models() -> None:
    small, plain = pair(mlp(nn.BatchNorm1d(8)))
    averaged = [
        torch.optim.swa_utils.AveragedModel(net, use_buffers=True) for net in (small, plain)
    ]
    for step in range(2):
        for net, average in zip((small, plain), averaged, strict=True):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1 + step)
            run(net, total, (X,), {}, step)
            optimizer.step()
            average.update_parameters(net)
    for average in averaged:
        average.eval()
    assert same_bits(*(average(X) for average in averaged))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_exports_and_traces_see_the_model() -> None:
    small, plain = pair(Named())
    with torch.no_grad():
        expected = plain(X)
    assert same_bits(torch.export.export(small, (X,)).module()(X), expected)
    traced = torch.jit.trace(small, (X,))  # type: ignore[no-untyped-call]
    assert same_bits(traced(X), expected)
