"""Python state: what a forward pass changes besides tensors, where a trace cannot see it.

A trace runs the model's Python once and freezes what it did. A counter that goes up, a number drawn
from Python's random generator or a seed that is set would be the same in every step after, so they
are refused. Tensors that a forward pass leaves behind as attributes are put back as they were.
"""

import contextlib
import random
import sys
from collections.abc import Iterator
from operator import is_
from typing import Any

import torch
from torch import nn

from poet.errors import PoetError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@contextlib.contextmanager
def unchanged(step: nn.Module, prefix: str) -> Iterator[None]:
    """Put the model's attributes and the random generators back; refuse what a step must not do."""
    before = {path: _attributes(module) for path, module in step.named_modules()}
    modules = dict(step.named_modules())
    state, draws = torch.get_rng_state(), _draws()
    seeds: list[Any] = []
    seed = torch.manual_seed
    setattr(torch, "manual_seed", seeds.append)  # noqa: B010
    try:
        yield
        changed = [
            f"{path}.{name}".removeprefix(f"{prefix}.")
            for path, module in modules.items()
            for name, value in vars(module).items()
            if module is not step and _differs(before[path][0].get(name), value)
        ]
        _check(changed, draws, seeds)
    finally:
        setattr(torch, "manual_seed", seed)  # noqa: B010
        torch.set_rng_state(state)
        for path, module in modules.items():
            _put_back(module, *before[path])


def _attributes(module: nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """All attributes, and what those hold that have tensors by name and change inside."""
    inner = {name: dict(getattr(module, name)) for name in ("_parameters", "_buffers")}
    return dict(vars(module)), inner


def _put_back(
    module: nn.Module, attributes: dict[str, Any], inner: dict[str, dict[str, Any]]
) -> None:
    """The very objects that were there: others may hold them."""
    for name in [name for name in vars(module) if name not in attributes]:
        del module.__dict__[name]
    module.__dict__.update(attributes)
    for name, held in inner.items():
        space = module.__dict__[name]
        if not all(map(is_, space.values(), held.values())) or len(space) != len(held):
            space.clear()
            space.update(held)


def _differs(before: Any, after: Any) -> bool:
    plain = isinstance(before, _PLAIN) and isinstance(after, _PLAIN)
    return plain and before is not None and (type(before), before) != (type(after), after)


def _draws() -> list[Any]:
    numpy = sys.modules.get("numpy")
    found: list[Any] = [random.getstate()]
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        found += [name, keys.tobytes(), rest]
    return found


def _check(changed: list[str], draws: list[Any], seeds: list[Any]) -> None:
    if changed:
        raise PoetError(
            f"the forward pass changes {changed[0]}, a Python value, which a captured step would "
            "not do again. Make it a tensor in a buffer, or change it outside the step"
        )
    if draws != _draws():
        raise PoetError(
            "the forward pass draws from the random generator of Python or NumPy, whose number a "
            "captured step would repeat for ever. Draw with torch, or outside the step"
        )
    if seeds:
        raise PoetError(
            f"the forward pass calls torch.manual_seed({seeds[0]}), which a captured step would "
            "not do again. Do it outside the step"
        )
