"""Walking: all that the Python of a training step can read, found once.

Modules and their attributes, hooks, children and tensors; containers and plain objects that they
hold; functions with their defaults, closures and the globals that they name, for code that is not
of an installed package; classes of such code. What cannot be looked into (a file, a lock, an object
of an extension) is known by its identity alone.
"""

import contextvars
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from typing import Any

import torch
from torch import nn

from poet.tracer.code_names import mentions, outside
from poet.tracer.found import Found
from poet.tracer.keys import is_library, is_library_code

SMALL_BYTES = 64 * 1024
"""Constants up to this size are compared byte by byte; larger ones by torch's count of writes, and
by a sample of so many bytes."""
_MOST_ITEMS = 10_000
"""Larger containers are data, not settings: their length and identity are watched."""
ATOMS = (
    bool, int, float, complex, str, bytes, type(None), type(...), range, slice, Enum, torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip
_DYNAMIC = frozenset(
    ("getattr", "hasattr", "attrgetter", "vars", "__dict__", "globals", "locals", "eval", "exec")
)
"""Code that names one of these may read anything, whether it mentions it or not."""
_MODULE_INTERNALS = frozenset(vars(nn.Module()))
_MACHINERY = frozenset(
    ("torch", "logging", "threading", "_thread", "weakref", "_weakref", "re", "io", "_io", "queue",
     "ctypes", "multiprocessing", "concurrent", "asyncio", "socket", "subprocess", "typing", "abc",
     "inspect", "warnings", "contextlib", "importlib", "_frozen_importlib",
     "_frozen_importlib_external")
)  # fmt: skip
"""Packages whose objects are no settings, and change by themselves."""
_NOT_IN_STEPS = frozenset(
    ("__init__", "__new__", "__init_subclass__", "__class_getitem__", "__repr__", "__str__",
     "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__del__", "__deepcopy__")
)  # fmt: skip
GONE = object()
"""Stands for a name that is not there."""


def walk(roots: dict[str, Any], bare: bool = False) -> Found:
    """Find what can be read from these, each under the name that people know it by.

    `bare` leaves out the roots' own hooks, which somebody else calls.
    """
    modules = [thing for thing in roots.values() if isinstance(thing, nn.Module)]
    owned = {id(x) for each in modules for x in (*each.parameters(), *each.buffers())}
    walker = _Walker(owned, {id(each) for each in modules} if bare else set())
    for name, thing in roots.items():
        walker.visit(thing, name)
    return walker.walked()


class _Walker:
    def __init__(self, owned: set[int], bare: set[int]) -> None:
        self.found = Found()
        self._bare = bare
        self._own = owned
        """Tensors that the step gets anew each time; those of other modules are constants."""
        self._waiting: list[tuple[Any, str]] = []
        self._loaded: set[str] = set()
        self._mentioned: set[str] = set()
        """All names in the code that was walked."""
        self._unmentioned: dict[str, list[Callable[[], None]]] = {}
        """What to look at as soon as some code mentions a name."""

    def walked(self) -> Found:
        """Look at each thing, and then at all that it leads to."""
        while self._waiting:
            thing, name = self._waiting.pop()
            if id(thing) not in self.found.names:
                self.found.names[id(thing)] = name
                self.found.held.append(thing)
                self._look(thing, name)
        self.found.stored -= self._loaded
        if not _DYNAMIC.isdisjoint(self._mentioned):
            self.found.stored.clear()
        else:
            self.found.mentioned = frozenset(self._mentioned | _MODULE_INTERNALS)
        return self.found

    def visit(self, thing: Any, name: str) -> None:
        if not isinstance(thing, ATOMS):
            self._waiting.append((thing, name))

    def _when_mentioned(self, name: str, look: Callable[[], None]) -> None:
        if name in self._mentioned or not _DYNAMIC.isdisjoint(self._mentioned):
            look()
        else:
            self._unmentioned.setdefault(name, []).append(look)

    def _mention(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._mentioned:
                continue
            self._mentioned.add(name)
            due = [name] if name not in _DYNAMIC else list(self._unmentioned)
            for each in due:
                for look in self._unmentioned.pop(each, ()):
                    look()

    def _look(self, thing: Any, name: str) -> None:
        if isinstance(thing, nn.Module):
            self._module(thing, name)
        elif isinstance(thing, torch.Tensor):
            self._constant(thing, name)
        elif isinstance(thing, dict):
            self._container(self.found.dicts, thing, name)
            for key, value in _few(thing.items()):
                self.visit(value, f"{name}.{key}")
        elif isinstance(thing, list | set | deque | frozenset | tuple):
            if not isinstance(thing, tuple | frozenset):
                self._container(self.found.lists, thing, name)
            for n, value in enumerate(_few(thing)):
                self.visit(value, f"{name}[{n}]")
        elif isinstance(thing, types.FunctionType):
            self._function(thing, name)
        elif isinstance(thing, types.MethodType):
            self.visit(thing.__func__, name)
            self.visit(thing.__self__, name)
        elif isinstance(thing, functools.partial):
            for part in (thing.func, thing.args, thing.keywords):
                self.visit(part, name)
        elif isinstance(thing, staticmethod | classmethod):
            self.visit(thing.__func__, name)
        elif isinstance(thing, property):
            self.visit(thing.fget, name)
        elif isinstance(thing, type):
            self._class(thing, name)
        elif isinstance(thing, types.BuiltinMethodType):
            if not isinstance(thing.__self__, types.ModuleType | type(None)):
                self.visit(thing.__self__, name)  # the `get` of a dict
        elif isinstance(thing, types.ModuleType):
            self._python_module(thing, ())
        else:
            self._instance(thing, name)

    def _container(self, among: list[Any], thing: Any, name: str) -> None:
        self.found.names[id(thing)] = name
        self.found.held.append(thing)
        (among if thing else self.found.empty).append(thing)

    def _read(self, name: str, read: Callable[[], Any]) -> None:
        self.found.reads.append((name, read))

    def _module(self, module: nn.Module, name: str) -> None:
        self.found.objects.append(module)
        self.visit(type(module), type(module).__qualname__)
        self._mention(("forward",))
        attributes = vars(module)
        self._container(self.found.dicts, attributes, name)
        ours = all(not is_library(k.__module__) for k in _own_classes(type(module)))
        if ours:
            self.found.open.add(id(attributes))
        for key, value in attributes.items():
            path = f"{name}.{key}".lstrip(".")
            if key in ("_parameters", "_buffers"):
                self._container(self.found.dicts, value, name)
                for inner, tensor in value.items():
                    self._owned(tensor, f"{name}.{inner}".lstrip("."))
            elif key == "_modules":
                self._container(self.found.dicts, value, name)
                for inner, child in value.items():
                    self.visit(child, f"{name}.{inner}".lstrip("."))
            elif id(module) in self._bare and is_about_hooks(key):
                self.found.bare.add(id(attributes))
            elif "hooks" in key and isinstance(value, dict):
                hooks = f"the {key.strip('_').replace('_', ' ')} of {name or 'the model'}"
                self._container(self.found.dicts, value, hooks)
                for each in value.values():
                    self.visit(each, hooks)
            elif ours and key not in _MODULE_INTERNALS:
                self._when_mentioned(key, functools.partial(self.visit, value, path))
            else:
                self.visit(value, path)

    def _owned(self, tensor: torch.Tensor | None, name: str) -> None:
        if tensor is None or id(tensor) in self.found.names:
            return
        if id(tensor) not in self._own:
            self.visit(tensor, name)
            return
        self.found.names[id(tensor)] = name
        self.found.owned.append((name, tensor))

    def _constant(self, tensor: torch.Tensor, name: str) -> None:
        """A tensor that nobody owns is a constant of the step."""
        if tensor.is_inference() or tensor.layout != torch.strided:
            return
        self.found.constants.append((name, tensor))
        on_cpu = tensor.device.type == "cpu"

        def content() -> Any:
            about = (tensor.dtype, tensor.shape, tensor.data_ptr(), tensor._version)
            return (*about, _bytes(tensor)) if on_cpu else about

        self.found.contents.append((name, content))

    def _function(self, function: types.FunctionType, name: str) -> None:
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            self._read(name, functools.partial(getattr, function, part, None))
        self.visit(function.__defaults__, name)
        self.visit(function.__kwdefaults__, name)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        for free, cell in cells:
            read = functools.partial(getattr, cell, "cell_contents", GONE)
            self._read(free, functools.partial(_or_gone, read))
            self.visit(_or_gone(read), free)
        if is_library_code(function):
            return
        names = mentions(function.__code__)
        self._mention(names.from_module | names.others)
        self.found.stored |= names.stored
        self._loaded |= names.loaded
        for each in names.imported:
            if isinstance(sys.modules.get(each), types.ModuleType):
                self._python_module(sys.modules[each], names.others)
                self.found.outside += outside([each], names.others, sys.modules)
        space = function.__globals__
        self.found.outside += outside(names.from_module, names.others, space)
        for key in names.from_module:
            self._entry(space, key, function.__module__)
            value = space.get(key)
            if isinstance(value, types.ModuleType):
                self._python_module(value, names.others)
            else:
                self.visit(value, key)

    def _python_module(self, module: types.ModuleType, names: Iterable[str]) -> None:
        """What code that names a module may take from it: `F.relu`, `config.SCALE`.

        Of a module of the user's own that is whatever any code mentions, at whatever depth.
        """
        space = vars(module)
        if is_library(module.__name__):
            for name in names:
                if name in space:
                    self._entry(space, name, module.__name__)
            return
        if id(space) in self.found.names:
            return
        self.found.names[id(space)] = module.__name__
        self.found.held.append(space)
        for name, value in list(space.items()):
            if name.startswith("__"):
                continue

            def look(name: str = name, value: Any = value) -> None:
                self._entry(space, name, module.__name__)
                self.visit(value, f"{module.__name__}.{name}")

            self._when_mentioned(name, look)

    def _entry(self, space: dict[str, Any], name: str, owner: str) -> None:
        """A name in a namespace, which can be read again and put back."""
        self.found.entries.append((len(self.found.reads), space, name))
        self._read(f"{owner}.{name}", functools.partial(space.get, name, GONE))

    def _numpy(self, thing: Any, name: str) -> None:
        if type(thing).__name__ == "ndarray":
            self.found.contents.append((name, _sampled(thing)))
        elif hasattr(thing, "bit_generator"):
            self.found.contents.append((name, lambda: repr(thing.bit_generator.state)))

    def _class(self, kind: type, name: str) -> None:
        if is_library(kind.__module__):
            if issubclass(kind, nn.Module):
                self._read(f"{name}.forward", functools.partial(getattr, kind, "forward", GONE))
            return
        for base in kind.__mro__[1:]:
            self.visit(base, base.__qualname__)
        space = vars(kind)
        for key, value in space.items():
            path = f"{name}.{key}"

            def look(key: str = key, value: Any = value, path: str = path) -> None:
                self._read(path, functools.partial(space.get, key, GONE))
                self.visit(value, path)

            if not key.startswith("__"):
                self._when_mentioned(key, look)
            elif isinstance(value, types.FunctionType) and key not in _NOT_IN_STEPS:
                look()  # Python calls it by itself: x[0], len(x), x + y
        self.found.contents.append((f"the attributes of {name}", lambda: len(space)))

    def _instance(self, thing: Any, name: str) -> None:
        """An object of somebody's class: its attributes, or what stands for its state."""
        kind = type(thing)
        package = kind.__module__.partition(".")[0]
        if package == "numpy":
            self._numpy(thing, name)
            return
        if isinstance(thing, random.Random):
            self.found.contents.append((name, thing.getstate))
            return
        if isinstance(thing, contextvars.ContextVar):
            self.found.contents.append((name, functools.partial(thing.get, None)))
            return
        if isinstance(thing, Iterator):
            self.found.outside.append(f"{name}, an iterator")
            return
        if isinstance(thing, functools._lru_cache_wrapper):
            self.found.caches.append(thing)
            self.visit(thing.__wrapped__, name)
            return
        if package in _MACHINERY or (package == "builtins" and not hasattr(thing, "__dict__")):
            return
        self.found.objects.append(thing)
        self.visit(kind, kind.__qualname__)
        if isinstance(getattr(thing, "__dict__", None), dict):
            self.visit(vars(thing), name)
        for key in _slots(kind):
            read = functools.partial(getattr, thing, key, GONE)
            self._read(f"{name}.{key}", read)
            self.visit(read(), f"{name}.{key}")


def _sampled(array: Any) -> Callable[[], bytes]:
    """All bytes of a small array, and a sample of a large one."""
    step = 1 + array.nbytes // SMALL_BYTES
    return lambda: array.reshape(-1)[::step].tobytes()


def is_about_hooks(attribute: str) -> bool:
    """Whether an attribute of a module says what is called around its forward pass."""
    return "hook" in attribute or attribute == "_compiled_call_impl"


def _own_classes(kind: type) -> list[type]:
    """A module's classes up to nn.Module."""
    return [each for each in kind.__mro__ if each not in nn.Module.__mro__]


def _few(items: Collection[Any]) -> Collection[Any]:
    return items if len(items) <= _MOST_ITEMS else ()


def _or_gone(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValueError:  # an empty cell
        return GONE


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _bytes(tensor: torch.Tensor) -> bytes:
    """All bytes of a small tensor, and a sample of a large one."""
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
    step = 1 + tensor.numel() * tensor.element_size() // SMALL_BYTES
    return bytes(flat[::step].contiguous().view(torch.uint8).numpy())
