"""Wrapped models beside plain ones: the same steps, compared bit for bit."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import poet
from tests.torch.eager import same_bits

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def wrapped(model: nn.Module, *args: Any, **options: Any) -> Any:
    """The model, planned at once: everything can be kept."""
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
