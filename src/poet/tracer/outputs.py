"""Outputs: a model alone as one module, from the tensors it is called with to those it returns.

A loop that is the user's own may call a model in any way and use any of its outputs. `Called` is
one such call; what it was called with and what it returns are taken apart here, so that they can
be put together again around other tensors. What cannot be, because it may hide a tensor or change
unseen, is refused.

Outputs are traced as copies, so that each has a gradient of its own whatever it shares its storage
with; `lowering` leaves the copies out again.
"""

from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from poet.errors import PoetError
from poet.tracer.step import PLAIN, Example, Step, check_leaf


class Called:
    """What a model is called with, and which of its outputs will get a gradient, if it is known."""

    used: tuple[bool, ...] | None = None
    likely: tuple[bool, ...] = ()
    """The same of calls of another kind, to begin with where it is not known."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs

    def using(
        self, used: tuple[bool, ...] | None, likely: tuple[bool, ...] | None = None
    ) -> "Called":
        """The same call, with other outputs that get a gradient."""
        made = copy(self)
        made.used, made.likely = used, self.likely if likely is None else likely
        return made

    @cached_property
    def _flat(self) -> tuple[list[Any], pytree.TreeSpec]:
        return pytree.tree_flatten((self.args, self.kwargs))

    @property
    def leaves(self) -> list[Any]:
        """Tensors and constants in order, each as often as it comes."""
        return self._flat[0]

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        """Its tensors, each once however often it was given."""
        return list({id(x): x for x in self.leaves if isinstance(x, torch.Tensor)}.values())

    @cached_property
    def apart(self) -> Example:
        """Its tensors, and how they make up the call."""
        leaves, spec = self._flat
        number = {id(tensor): n for n, tensor in enumerate(self.tensors)}
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                _check_tensor(leaf)
            else:
                check_leaf(leaf)
        return Example(
            tensors=tuple(tensor.detach() for tensor in self.tensors),
            constants=tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves),
            places=tuple(
                number[id(leaf)] if isinstance(leaf, torch.Tensor) else None for leaf in leaves
            ),
            spec=spec,
            trained=tuple(tensor.requires_grad for tensor in self.tensors),
        )

    @cached_property
    def kind(self) -> tuple[Any, ...]:
        """What tells calls apart that need captures of their own."""
        example = self.apart
        tensors = tuple(
            (tuple(each.shape), each.dtype, each.stride(), str(each.device), trained)
            for each, trained in zip(example.tensors, example.trained, strict=True)
        )
        constants = tuple((type(each), repr(each)) for each in example.constants)
        return (repr(example.spec), example.places, constants, tensors)


class Same(NamedTuple):
    """An output that is one of the model's own tensors, or one that it was called with."""

    kind: str
    """`input`, by its place, `parameter` or `buffer`, by its name."""
    which: int | str


class Returned(NamedTuple):
    """What a model returned, around tensors that it made."""

    leaves: tuple[Any, ...]
    """For each a `Same`, or `Made`, or a constant."""
    spec: pytree.TreeSpec
    trained: tuple[bool, ...]
    """For each tensor that the model made, whether it can get a gradient."""
    used: tuple[bool, ...]
    """For each, whether it is captured with one."""

    def rebuilt(self, made: tuple[torch.Tensor, ...], call: Called, model: nn.Module) -> Any:
        """The same around other tensors."""
        found = {
            "input": call.tensors.__getitem__,
            "parameter": model.get_parameter,
            "buffer": model.get_buffer,
        }
        leaves = [
            made[leaf.number]
            if isinstance(leaf, Made)
            else found[leaf.kind](leaf.which)  # type: ignore[operator]
            if isinstance(leaf, Same)
            else leaf
            for leaf in self.leaves
        ]
        return pytree.tree_unflatten(leaves, self.spec)


class Made(NamedTuple):
    """An output that the model made: which of them."""

    number: int


class _Last:
    """What the last call returned. Not a list: `torch.export` puts attributes that are one back."""

    returned: Returned | None = None


class Outputs(Step):
    """The model alone, from the tensors of a call to those that it makes.

    How they make up what it returns is kept in `returned`, filled by the last call.
    """

    ends_in_loss = False

    def __init__(self, model: nn.Module, call: Called, autocast: torch.dtype | None) -> None:
        super().__init__(model, None, call.apart, autocast)
        self._used, self._likely = call.used, call.likely
        self._last = _Last()

    @property
    def returned(self) -> Returned:
        assert self._last.returned is not None
        return self._last.returned

    def taken_apart(self, batch: Any) -> Example:
        assert isinstance(batch, Called)
        return batch.apart

    def traced_tensors(self) -> tuple[torch.Tensor, ...]:
        """Laid out as they are: an output's strides follow from them, and so do sums' roundings."""
        return tuple(
            torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            ).requires_grad_(trained)
            for tensor, trained in zip(self.example.tensors, self.example.trained, strict=True)
        )

    def _loss_of(self, example: Any) -> Any:
        args, kwargs = example
        known = {id(x): Same("input", n) for n, x in enumerate(_distinct((args, kwargs)))}
        made = self.model.forward(*args, **kwargs)  # hooks are called around the planned pass
        for name, value in self.model.named_buffers(remove_duplicate=False):
            known.setdefault(id(value), Same("buffer", name))
        for name, value in self.model.named_parameters(remove_duplicate=False):
            known.setdefault(id(value), Same("parameter", name))
        leaves, spec = pytree.tree_flatten(made)
        tensors: dict[int, torch.Tensor] = {}
        parts: list[Any] = []
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                _check_returned(leaf)
                parts.append(leaf)
            elif id(leaf) in known:
                parts.append(known[id(leaf)])
            else:
                tensors.setdefault(id(leaf), leaf)
                parts.append(Made(list(tensors).index(id(leaf))))
        trained = tuple(tensor.requires_grad for tensor in tensors.values())
        used = self._used
        if used is None and len(self._likely) == len(trained):
            used = tuple(wanted and can for wanted, can in zip(self._likely, trained, strict=True))
        if used is None or not any(used):
            used = _likely_used(made, tensors, trained)
        if not any(used):
            raise PoetError(
                "no output of the model depends on a trainable parameter, or on an input that "
                "requires a gradient. Call it under torch.no_grad()"
            )
        self._last.returned = Returned(tuple(parts), spec, trained, used)
        return tuple(
            (tensor if wanted else tensor.detach()).clone()
            for tensor, wanted in zip(tensors.values(), used, strict=True)
        )


def _distinct(call: Any) -> list[torch.Tensor]:
    found = {id(leaf): leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor)}
    return list(found.values())


def _likely_used(
    made: Any, tensors: dict[int, torch.Tensor], trained: tuple[bool, ...]
) -> tuple[bool, ...]:
    """The loss alone, where the model returns one beside other things; else all that can."""
    loss = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1:
        return tuple(each == id(loss) for each in tensors)
    return trained


def _check_tensor(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise PoetError(
            f"the model is called with a tensor that is {tensor.layout}: POET plans dense tensors. "
            "Use dense ones there"
        )
    if tensor.is_inference():
        raise PoetError(
            "the model is called with a tensor that was made under torch.inference_mode(), which "
            "autograd cannot use. Clone it outside"
        )


def _check_returned(leaf: Any) -> None:
    if isinstance(leaf, PLAIN):
        return
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
    raise PoetError(
        f"the model returns a {kind}, which POET cannot take apart, so that tensors in it would be "
        "lost. Return tensors, numbers and words, in tuples, lists or dicts"
        + (" (model.config.use_cache = False leaves it out)" if "Cache" in kind else "")
    )
