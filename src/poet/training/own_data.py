"""Own data: the batches that a user's file brings along, one after the other, from any place on.

They come from an iterable, again and again, or from a function that gives one an epoch. What it
draws while it is asked for a batch (an order, a crop) comes from random generators of its own, by
the seed: dropout draws from others. So a run that is resumed goes through the batches it has had
and finds the same ones, and what differs is noticed by the last of them.
"""

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from poet.errors import PoetError
from poet.tracer.step import Example, take_apart


class OwnData:
    """Batches from an iterable, or from a function that makes one for each epoch."""

    def __init__(self, data: Any, example: Any, name: str, seed: int) -> None:
        self._name, self._example = name, take_apart(example)
        self._epoch = _epochs(data, name)
        self._draws = _Draws(seed)

    def batches(self, start: int = 0, digest: str | None = None) -> Iterator[Any]:
        """Batches without end, from number `start` on; `digest` is that of the one before."""
        number = 0
        while True:
            before, epoch = number, self._asked(0, lambda: iter(self._epoch()))
            while (batch := self._asked(number, partial(next, epoch, _END))) is not _END:
                number += 1
                batch = self._checked(batch, number)
                if number > start:
                    yield batch
                elif number == start and digest is not None and digest_of(batch) != digest:
                    raise PoetError(
                        f"batch {number:,} of {self._name} is not the one that the run had: its "
                        "data or their order has changed, so resume=True cannot go on at the "
                        "right place. Seed what draws them, or begin again in another folder"
                    )
            if number == before:
                raise PoetError(self._end_text(number))

    def _end_text(self, number: int) -> str:
        if not number:
            return f"the data of {self._name} has no batch at all"
        return (
            f"the data of {self._name} came to its end after {number:,} batches and cannot be "
            "gone through again: it is an iterator. Return a list, a DataLoader, or a function "
            "that makes a new iterator for each epoch"
        )

    def _asked(self, number: int, ask: Callable[[], Any]) -> Any:
        with self._draws.own():
            try:
                return ask()
            except PoetError:
                raise
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                raise PoetError(
                    f"the data of {self._name} failed after {number:,} batches: {what}"
                ) from error

    def _checked(self, batch: Any, number: int) -> Any:
        """The batch as steps take it, if it is built like the example."""
        if isinstance(batch, Mapping):
            batch = dict(batch)
        elif isinstance(batch, list):
            batch = tuple(batch)  # as DataLoader gives them
        try:
            given = take_apart(batch)
        except PoetError as error:
            raise PoetError(f"batch {number:,} of {self._name}: {error}") from None
        if not _is_alike(given, self._example):
            raise PoetError(
                f"batch {number:,} of {self._name} is {_text(given)}; the example is "
                f"{_text(self._example)}. Batches need its structure, element types and extents, "
                "but for their number of samples"
            )
        return batch


def digest_of(batch: Any) -> str:
    """What tells a batch from others."""
    found = hashlib.blake2b(digest_size=16)
    for leaf in pytree.tree_leaves(batch):
        if not isinstance(leaf, torch.Tensor):
            found.update(repr(leaf).encode())
            continue
        found.update(f"{leaf.dtype} {list(leaf.shape)}".encode())
        content = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found.update(content.numpy().tobytes())
    return found.hexdigest()


_END: Any = object()


def _epochs(data: Any, name: str) -> Callable[[], Iterable[Any]]:
    """What gives the batches of the next epoch."""
    what = f"the data of {name}, a {type(data).__name__},"
    if isinstance(data, torch.Tensor | str | bytes | Mapping):
        raise PoetError(
            f"{what} is no iterable of batches. Return a list of batches, a DataLoader, or a "
            "function that gives one for each epoch"
        )
    if hasattr(data, "__iter__") and not isinstance(data, type):
        return lambda: data
    if hasattr(data, "__getitem__") and not isinstance(data, type):
        raise PoetError(
            f"{what} gives samples by number, not batches. Return "
            "torch.utils.data.DataLoader(data, batch_size=…)"
        )
    if callable(data):
        return data  # type: ignore[no-any-return]
    raise PoetError(
        f"{what} is neither an iterable of batches nor a function that gives one for each epoch"
    )


def _text(example: Example) -> str:
    """A batch for people: `(float32 [8, 16], int64 [8])`."""
    leaves = [
        example.constants[at]
        if place is None
        else f"{str(example.tensors[place].dtype).removeprefix('torch.')} "
        f"{list(example.tensors[place].shape)}"
        for at, place in enumerate(example.places)
    ]
    made = pytree.tree_unflatten(leaves, example.spec)
    return str(made).replace("'", "")


def _is_alike(given: Example, example: Example) -> bool:
    return (
        given.spec == example.spec
        and given.places == example.places
        and repr(given.constants) == repr(example.constants)
        and all(
            mine.dtype == theirs.dtype
            and mine.dim() == theirs.dim()
            and mine.shape[1:] == theirs.shape[1:]
            for mine, theirs in zip(given.tensors, example.tensors, strict=True)
        )
    )


class _Draws:
    """Random generators of torch, Python and NumPy that are the data's alone."""

    def __init__(self, seed: int) -> None:
        self._torch = torch.Generator().manual_seed(seed).get_state()
        self._python = random.Random(seed).getstate()
        self._seed = seed
        self._numpy: Any = None

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """While this holds, they are in the place of the global ones."""
        numpy = sys.modules.get("numpy")
        usual = torch.get_rng_state(), random.getstate()
        usual_numpy = None if numpy is None else numpy.random.get_state()
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if numpy is not None:
            first = self._numpy or numpy.random.RandomState(self._seed % 2**32).get_state()
            numpy.random.set_state(first)
        try:
            yield
        finally:
            self._torch, self._python = torch.get_rng_state(), random.getstate()
            torch.set_rng_state(usual[0])
            random.setstate(usual[1])
            if numpy is not None:
                self._numpy = numpy.random.get_state()
                numpy.random.set_state(usual_numpy)
