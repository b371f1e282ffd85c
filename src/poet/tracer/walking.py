"""Walking: all that the Python of a training step can read, found once.

Modules and their attributes, hooks, children and tensors; containers and plain objects that they
hold; functions with their defaults, closures and the globals that they name, for code that is not
of an installed package; classes of such code. What cannot be looked into (a file, a lock, an object
of an extension) is known by its identity alone.
"""

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import Any

import torch
from torch import nn

from poet.tracer.keys import is_library, is_library_code

SMALL_BYTES = 64 * 1024
"""Constants up to this size are compared byte by byte; larger ones by torch's count of writes."""
_MOST_ITEMS = 10_000
"""Larger containers are data, not settings: their length and identity are watched."""
_ATOMS = (
    bool, int, float, complex, str, bytes, type(None), type(...), range, slice, Enum, torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size,
)  # fmt: skip
_DYNAMIC = frozenset(("getattr", "vars", "__dict__", "globals", "locals", "eval", "exec"))
"""Code that names one of these may read anything, whether it mentions it or not."""
_MODULE_INTERNALS = frozenset(vars(nn.Module()))
_ASKS = {
    "os": frozenset(("environ", "getenv", "listdir", "urandom")),
    "time": frozenset(("time", "time_ns", "monotonic", "perf_counter")),
    "datetime": frozenset(("now", "today", "utcnow")),
}
"""By module, what asks the world: its answer may be another at each step."""
_GONE = object()
"""Stands for a name that is not there."""


class Found:
    """What a walk has found, sorted by the way in which it is compared."""

    def __init__(self) -> None:
        self.dicts: list[dict[Any, Any]] = []
        self.lists: list[Any] = []
        self.empty: list[Any] = []
        self.objects: list[Any] = []
        """Things whose class might be replaced."""
        self.reads: list[tuple[str, Callable[[], Any]]] = []
        """Names of a namespace, cells and slots: how to read them again."""
        self.contents: list[tuple[str, Callable[[], Any]]] = []
        """Constants: what stands for their content."""
        self.owned: list[tuple[str, torch.Tensor]] = []
        self.names: dict[int, str] = {}
        """What people call a thing, by its id."""
        self.mentioned: frozenset[str] | None = None
        """All names in the code that was walked; None where it may read others, too."""
        self.stored: set[str] = set()
        """Attributes that the code puts something into."""
        self.open: set[int] = set()
        """Dicts, by id, of which only what is mentioned can be read."""
        self.outside: list[str] = []
        """What the code asks the world for, such as the time: a trace would freeze its answer."""
        self.held: list[Any] = []
        """Keeps everything named alive, so that no id is used twice."""


def walk(roots: dict[str, Any]) -> Found:
    """Find what can be read from these, each under the name that people know it by."""
    walker = _Walker()
    for name, thing in roots.items():
        walker.visit(thing, name)
    return walker.walked()


class _Walker:
    def __init__(self) -> None:
        self.found = Found()
        self._waiting: list[tuple[Any, str]] = []
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
        if _DYNAMIC.isdisjoint(self._mentioned):
            self.found.mentioned = frozenset(self._mentioned | _MODULE_INTERNALS)
        return self.found

    def visit(self, thing: Any, name: str) -> None:
        if not isinstance(thing, _ATOMS):
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
        elif not isinstance(thing, types.ModuleType):
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
        if tensor is not None and id(tensor) not in self.found.names:
            self.found.names[id(tensor)] = name
            self.found.owned.append((name, tensor))

    def _constant(self, tensor: torch.Tensor, name: str) -> None:
        """A tensor that nobody owns is a constant of the step."""
        if tensor.is_inference() or tensor.layout != torch.strided:
            return
        small = tensor.numel() * tensor.element_size() <= SMALL_BYTES
        with_bytes = small and tensor.device.type == "cpu"

        def content() -> Any:
            about = (tensor.dtype, tensor.shape, tensor.data_ptr(), tensor._version)
            return (*about, _bytes(tensor)) if with_bytes else about

        self.found.contents.append((name, content))

    def _function(self, function: types.FunctionType, name: str) -> None:
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            self._read(name, functools.partial(getattr, function, part, None))
        self.visit(function.__defaults__, name)
        self.visit(function.__kwdefaults__, name)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        for free, cell in cells:
            read = functools.partial(getattr, cell, "cell_contents", _GONE)
            self._read(free, functools.partial(_or_gone, read))
            self.visit(_or_gone(read), free)
        if is_library_code(function):
            return
        from_module, others = names_in(function.__code__)
        self._mention(from_module | others)
        self.found.stored |= _stored_in(function.__code__)
        space = function.__globals__
        self.found.outside += _outside(from_module, others, space)
        for key in from_module:
            self._read(f"{function.__module__}.{key}", functools.partial(space.get, key, _GONE))
            value = space.get(key)
            if isinstance(value, types.ModuleType):
                self._python_module(value, others)
            else:
                self.visit(value, key)

    def _python_module(self, module: types.ModuleType, names: Iterable[str]) -> None:
        """What code that names a module may take from it: `F.relu`, `config.SCALE`."""
        space, ours = vars(module), not is_library(module.__name__)
        for name in names:
            if name in space:
                path = f"{module.__name__}.{name}"
                self._read(path, functools.partial(space.get, name, _GONE))
                if ours:
                    self.visit(space[name], path)

    def _class(self, kind: type, name: str) -> None:
        if is_library(kind.__module__):
            if issubclass(kind, nn.Module):
                self._read(f"{name}.forward", functools.partial(getattr, kind, "forward", _GONE))
            return
        for base in kind.__mro__[1:]:
            self.visit(base, base.__qualname__)
        space = vars(kind)
        for key, value in space.items():
            path = f"{name}.{key}"

            def look(key: str = key, value: Any = value, path: str = path) -> None:
                self._read(path, functools.partial(space.get, key, _GONE))
                self.visit(value, path)

            if key in ("__call__", "__getattr__"):
                look()
            elif not key.startswith("__"):
                self._when_mentioned(key, look)

    def _instance(self, thing: Any, name: str) -> None:
        """An object of somebody's class: its attributes. Those of Python's own are left alone."""
        kind = type(thing)
        package = kind.__module__.partition(".")[0]
        if package == "numpy":
            if kind.__name__ == "ndarray" and thing.nbytes <= SMALL_BYTES:
                self.found.contents.append((name, thing.tobytes))
            return
        if package in sys.stdlib_module_names and kind is not types.SimpleNamespace:
            return
        self.found.objects.append(thing)
        self.visit(kind, kind.__qualname__)
        if isinstance(getattr(thing, "__dict__", None), dict):
            self.visit(vars(thing), name)
        for key in _slots(kind):
            read = functools.partial(getattr, thing, key, _GONE)
            self._read(f"{name}.{key}", read)
            self.visit(read(), f"{name}.{key}")


def names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names that a function, or one written inside it, takes from its module, and others."""
    from_module = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    others = set(code.co_names) - from_module
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, rest = names_in(inner)
            from_module, others = from_module | more, others | rest
    return from_module, others


def _outside(from_module: set[str], others: set[str], space: dict[str, Any]) -> list[str]:
    """The environment, the clock and files, where code names them."""
    found: list[str] = [x for x in ("open", "input") if x in from_module and x not in space]
    for name in sorted(from_module):
        thing = space.get(name)
        if isinstance(thing, types.ModuleType | type):  # time.time(), datetime.now()
            home = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
            found += [f"{name}.{each}" for each in sorted(_ASKS.get(home, frozenset()) & others)]
        elif getattr(thing, "__name__", "") in _ASKS.get(getattr(thing, "__module__", ""), ()):
            found.append(name)
    return found


def _stored_in(code: types.CodeType) -> set[str]:
    return {str(s.argval) for s in dis.get_instructions(code) if s.opname == "STORE_ATTR"}


def _own_classes(kind: type) -> list[type]:
    """A module's classes up to nn.Module."""
    return [each for each in kind.__mro__ if each not in nn.Module.__mro__]


def _few(items: Collection[Any]) -> Collection[Any]:
    return items if len(items) <= _MOST_ITEMS else ()


def _or_gone(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValueError:  # an empty cell
        return _GONE


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat.numpy())
