"""Measuring: the most that a compiled step has of torch's memory at once.

Compiled code takes its memory past the dispatcher, so the allocator itself is asked. Nothing is
left of the steps that are run for it: not in buffers, random generators or gradients.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from poet.errors import PoetError
from poet.profiling.scratch import peak_bytes
from poet.tracer.outputs import Called


def held_bytes(model: nn.Module, call: Called) -> int:
    """What a step has before it begins: parameters, buffers, and what it is called with."""
    tensors = (*model.parameters(), *model.buffers(), *call.tensors)
    storages = {each.untyped_storage()._cdata: each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def step_bytes(
    model: nn.Module, run: Callable[..., Any], call: Called, device: torch.device
) -> int:
    """The most that forward and backward pass take beside that, outputs and gradients among it.

    The first step compiles, and sets up what libraries keep; the second one is watched.
    """
    if torch._C._autograd._profiler_enabled():
        raise PoetError(
            "a compiled step cannot be measured while a profiler watches: call the model once with "
            "inputs of this kind before the profiler begins"
        )
    with _as_it_was(model, device):
        again = _copied(call)
        trained = [each for each in (*model.parameters(), *again.tensors) if each.requires_grad]

        def step() -> None:
            made = run(*again.args, **again.kwargs)
            outputs = [
                each
                for each in tree_leaves(made)
                if isinstance(each, torch.Tensor) and each.requires_grad
            ]
            gradients = [torch.ones_like(each) for each in outputs]
            found = torch.autograd.grad(outputs, trained, gradients, allow_unused=True)
            del found, made

        step()
        return peak_bytes(step, device)


def _copied(call: Called) -> Called:
    """The same call with tensors of its own, so that nothing reaches those of the user."""
    copies = {id(each): _copy(each) for each in call.tensors}

    def own(leaf: Any) -> Any:
        return copies[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf

    return Called(tree_map(own, call.args), tree_map(own, call.kwargs))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _as_it_was(model: nn.Module, device: torch.device) -> Iterator[None]:
    """With the model's buffers and the random generators as they were, afterwards."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    generators = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=generators), torch.enable_grad():
        try:
            yield
        finally:
            _put_back(before)


def _put_back(before: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)
