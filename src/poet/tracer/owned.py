"""Owned: the parameters and buffers that a step's modules have now, by the names people know.

A step asks for them several times, and `nn.Module.named_parameters` walks the whole tree of modules
each time, and puts their names together. Here the tree is walked once, and again when a module was
put in, taken out or replaced; what each module holds is looked up anew every time, for it may have
been given others.
"""

from collections.abc import Callable
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from poet.tracer.step import Step, known_name

_CHILDREN: Callable[[Any], dict[str, Any]] = attrgetter("_modules")


class Owned:
    """Parameters and buffers of a step; tied ones under every name."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._walk()

    def parameters(self) -> dict[str, torch.Tensor]:
        return self._all("_parameters")

    def buffers(self) -> dict[str, torch.Tensor]:
        return self._all("_buffers")

    def _all(self, kind: str) -> dict[str, torch.Tensor]:
        if not self._is_same_tree():
            self._walk()
        held = [getattr(module, kind) for _, module in self._modules]
        own, counts = list(chain.from_iterable(held)), list(map(len, held))
        if (own, counts) != self._own.get(kind):
            self._own[kind] = own, counts
            self._known[kind] = [
                prefix + name
                for (prefix, _), each in zip(self._modules, held, strict=True)
                for name in each
            ]
        values = chain.from_iterable(map(dict.values, held))
        return {
            name: value
            for name, value in zip(self._known[kind], values, strict=True)
            if value is not None
        }

    def _walk(self) -> None:
        named = list(self._step.named_modules(remove_duplicate=False))
        # The step itself, without a name, owns nothing.
        self._own: dict[str, tuple[list[str], list[int]]] = {}
        self._known: dict[str, list[str]] = {}
        self._modules = [(known_name(f"{name}."), module) for name, module in named if name]
        self._parents = list({id(module): module for _, module in named}.values())
        children = list(map(_CHILDREN, self._parents))
        self._counts = list(map(len, children))
        self._names = list(chain.from_iterable(children))
        self._children = list(chain.from_iterable(map(dict.values, children)))

    def _is_same_tree(self) -> bool:
        children = list(map(_CHILDREN, self._parents))
        return (
            self._counts == list(map(len, children))
            and self._names == list(chain.from_iterable(children))
            and all(map(is_, self._children, chain.from_iterable(map(dict.values, children))))
        )
