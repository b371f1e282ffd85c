"""Watch: whether anything that a captured step depends on has changed since it was captured.

A trace runs the model's Python once and freezes what it read: modes, dropout rates, attributes,
hooks, the globals and closures that a forward pass names, frozen parameters, settings of torch. A
step that runs again asks here first, so the answer must cost microseconds: all that was read is
remembered, held so that no id is used twice, and compared by identity in loops that run in C. Only
where an identity differs are values compared, and the change gets its name (`Watch.change`).

What is walked is what `walking` finds; code of installed packages is taken as it is, their objects
are not. What a forward pass writes itself is not watched: `keys` and `python_state` see to that.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch import nn

from poet.tracer.found import Found
from poet.tracer.keys import autocast_around, torch_settings
from poet.tracer.walking import ATOMS, GONE, is_about_hooks, walk

_KIND = attrgetter("requires_grad", "dtype", "shape", "device", "layout")
_GLOBAL_HOOKS = [
    value
    for name, value in vars(nn.modules.module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


class Entry(NamedTuple):
    """A key of a dict and what it holds, under the name that people know it by."""

    held: dict[Any, Any]
    key: Any
    value: Any
    was: Any
    """What it held before, or GONE."""
    name: str


class Watch:
    """A picture of all that a step's Python can read, and whether it still looks the same.

    `roots` are the things the step is made of, by the name people know them by. `ambient` says that
    the step follows the autocast around its call; `options` reads those of its optimizer; `bare`
    that the roots' own hooks are no part of it.
    """

    def __init__(
        self,
        roots: dict[str, Any],
        *,
        ambient: bool = True,
        options: Callable[[], Any] = lambda: None,
        bare: bool = False,
    ) -> None:
        self._ambient, self._options_now = ambient, options
        self._found = found = walk(roots, bare)
        self._dicts, self._lists = found.dicts, found.lists
        self._empty: list[Any] = [*found.empty, *(hooks for hooks in _GLOBAL_HOOKS if not hooks)]
        self._owned = [tensor for _, tensor in found.owned]
        self._take()

    def _take(self) -> None:
        self._lengths = self._lengths_now()
        self._keys = list(chain.from_iterable(self._dicts))
        self._values = list(chain.from_iterable(map(dict.values, self._dicts)))
        self._items = list(chain.from_iterable(self._lists))
        self._types = list(map(type, self._found.objects))
        self._reads = self._reads_now()
        self._kinds, self._strides = self._kinds_now(), self._strides_now()
        self._hooked = self._hooked_now()
        self._contents = [content() for _, content in self._found.contents]
        self._settings, self._options = self._settings_now(), self._options_now()

    def change(self) -> str | None:
        """The first thing that is not as it was, in words; None where all is."""
        if self._is_same():
            return None
        what = self._difference()
        if what is None:
            self._take()  # other objects of the same value
        return what

    def change_for_good(self) -> str | None:
        """The same, without forgetting how things were."""
        return None if self._is_same() else self._difference()

    def _is_same(self) -> bool:
        return (
            not any(self._empty)
            and self._lengths == self._lengths_now()
            and all(map(is_, chain.from_iterable(map(dict.values, self._dicts)), self._values))
            and self._keys == list(chain.from_iterable(self._dicts))
            and all(map(is_, chain.from_iterable(self._lists), self._items))
            and all(map(is_, map(type, self._found.objects), self._types))
            and self._kinds == self._kinds_now()
            and self._hooked == self._hooked_now()
            and self._strides_are_same()
            and all(map(is_, self._reads_now(), self._reads))
            and all(
                content() == before
                for (_, content), before in zip(self._found.contents, self._contents, strict=True)
            )
            and self._settings == self._settings_now()
            and self._options == self._options_now()
        )

    @property
    def outside(self) -> tuple[str, ...]:
        """What the code asks the world for: no picture of that can be taken."""
        return tuple(dict.fromkeys(self._found.outside))

    @property
    def trained_constants(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors that nobody owns and that require a gradient."""
        return [each for each in self._found.constants if each[1].requires_grad]

    def new_entries(self) -> Iterator[Entry]:
        """What dicts hold now and did not before: attributes, settings, hooks."""
        empty = ((each, dict[Any, Any]()) for each in self._found.empty if isinstance(each, dict))
        for held, before in chain(self._dicts_before(), empty):
            for key, value in list(held.items()):
                if key not in before or not _same(before[key], value):
                    name = _path(self._found.names[id(held)], key)
                    yield Entry(held, key, value, before.get(key, GONE), name)

    def put_back(self) -> None:
        """Give namespaces and containers the contents that they had; functions forget."""
        for number, space, name in self._found.entries:
            was = self._reads[number]
            if was is GONE:
                space.pop(name, None)
            elif space.get(name) is not was:
                space[name] = was
        for each in self._found.caches:
            each.cache_clear()
        for held, entries in self._dicts_before():
            if len(held) != len(entries) or not all(map(is_, held.values(), entries.values())):
                held.clear()
                held.update(entries)
        for items, before in self._lists_before():
            _refill(items, before)
        for items in self._empty:
            if items:
                items.clear()

    # What there was, and is

    def _dicts_before(self) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
        """Each dict, and what it held."""
        entries = zip(self._keys, self._values, strict=True)
        for each, count in zip(self._dicts, self._lengths, strict=False):
            yield each, dict(islice(entries, count))

    def _lists_before(self) -> Iterator[tuple[Any, list[Any]]]:
        """Each list or set, and what it held."""
        items = iter(self._items)
        for each, count in zip(self._lists, self._lengths[len(self._dicts) :], strict=True):
            yield each, list(islice(items, count))

    def _lengths_now(self) -> list[int]:
        return list(map(len, chain(self._dicts, self._lists)))

    def _kinds_now(self) -> list[Any]:
        return list(map(_KIND, self._owned))

    def _hooked_now(self) -> list[bool]:
        return list(map(_hooks, self._owned))

    def _reads_now(self) -> list[Any]:
        return [read() for _, read in self._found.reads]

    def _strides_now(self) -> list[tuple[int, ...]]:
        return list(map(torch.Tensor.stride, self._owned))

    def _strides_are_same(self) -> bool:
        """A tensor that is paged out shows one NaN in every place: no stride at all."""
        return self._strides == self._strides_now() or all(
            before == now or not any(now)
            for before, now in zip(self._strides, self._strides_now(), strict=True)
        )

    def _settings_now(self) -> list[Any]:
        return [autocast_around() if self._ambient else None, torch_settings()]

    # What is different

    def _difference(self) -> str | None:
        """Where something truly differs, its name."""
        found = self._found
        if self._settings != self._settings_now():
            if self._settings[0] != self._settings_now()[0]:
                return "the autocast around the step"
            return "a setting of torch that chooses kernels"
        if self._options != self._options_now():
            return "the options or parameters of the optimizer"
        for hooks in self._empty:
            if hooks:
                return _new_text(found, hooks)
        for (name, tensor), kind, stride, hooked in zip(
            found.owned, self._kinds, self._strides, self._hooked, strict=True
        ):
            text = _tensor_text(name, tensor, kind, stride, hooked)
            if text:
                return text
        for (name, content), old in zip(found.contents, self._contents, strict=True):
            if content() != old:
                return f"the content of {name}"
        for (name, read), was in zip(found.reads, self._reads, strict=True):
            if not _same(was, read()):
                return name
        for each, before in self._dicts_before():
            readable = found.mentioned if id(each) in found.open else None
            is_bare = id(each) in found.bare
            text = _entry_text(found, found.names[id(each)], before, each, readable, is_bare)
            if text:
                return text
        for items, held in self._lists_before():
            if not _same_all(held, items):
                return found.names[id(items)]
        for thing, kind in zip(found.objects, self._types, strict=True):
            if type(thing) is not kind:
                return f"the class of {found.names[id(thing)]}"
        return None


def _hooks(tensor: torch.Tensor) -> bool:
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def _tensor_text(
    name: str, tensor: torch.Tensor, kind: tuple[Any, ...], stride: tuple[int, ...], hooked: bool
) -> str | None:
    if tensor.requires_grad != kind[0]:
        return f"{name}, which is {'trained' if tensor.requires_grad else 'frozen'} now"
    for what, was, now in (
        ("dtype", kind[1], tensor.dtype),
        ("shape", tuple(kind[2]), tuple(tensor.shape)),
        ("device", kind[3], tensor.device),
    ):
        if was != now:
            return f"the {what} of {name}, from {was} to {now}"
    if _hooks(tensor) != hooked:
        return f"the gradient hooks of {name}"
    if tensor.stride() != stride and any(tensor.stride()):
        return f"the memory format of {name}"
    return None


def _entry_text(
    found: Found,
    name: str,
    before: dict[Any, Any],
    now: dict[Any, Any],
    readable: frozenset[str] | None,
    is_bare: bool,
) -> str | None:
    """The first readable entry of a dict that was added, taken away or changed."""
    for key in chain(before, (key for key in now if key not in before)):
        if (readable is not None and key not in readable) or (is_bare and is_about_hooks(key)):
            continue
        path = _path(name, key)
        if key not in now:
            return f"{path}, which is gone"
        if key not in before:
            if key in found.stored and isinstance(now[key], torch.Tensor):
                continue
            return f"{path}, which is new"
        was, here = before[key], now[key]
        if not _same(was, here):
            if key in found.stored and isinstance(here, torch.Tensor):
                continue  # left behind by a forward pass, which does not read it
            if isinstance(was, ATOMS) and isinstance(here, ATOMS):
                return f"{path}, from {was!r} to {here!r}"
            return path
    if readable is None and not is_bare and list(before) != list(now):
        return f"the order of {name or 'the model'}"
    return None


def _refill(items: Any, before: list[Any]) -> None:
    if len(items) != len(before) or not all(map(is_, items, before)):
        items.clear()
        (items.update if isinstance(items, set) else items.extend)(before)


def _new_text(found: Found, container: Collection[Any]) -> str:
    name = found.names.get(id(container), "hooks of all modules")
    if "hooks" in name or not isinstance(container, dict):
        return name
    return f"{_path(name, next(iter(container)))}, which is new"


def _path(name: str, key: Any) -> str:
    inner = ("_parameters", "_buffers", "_modules")
    parts = [part for part in name.split(".") if part not in inner]
    return ".".join([*(part for part in parts if part), str(key)])


def _same(was: Any, now: Any) -> bool:
    """Whether an object that is another one has the same value, as far as that is sure."""
    if was is now:
        return True
    if type(was) is not type(now):
        return False
    if isinstance(was, ATOMS):
        return repr(was) == repr(now)
    return type(was) is tuple and _same_all(was, now)


def _same_all(was: Collection[Any], now: Collection[Any]) -> bool:
    return len(was) == len(now) and all(map(_same, was, now))
