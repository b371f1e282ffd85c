"""Keys: a hash of all that a capture depends on, or none where that cannot be told.

A step's graph follows from the model's code and configuration, the shapes of its parameters and of
the example, the loss, and the versions of the libraries. All of it is walked: modules attribute by
attribute, functions by their bytecode, defaults, closures and the globals they name, classes by
their methods, constants by their bytes. Code of installed packages is taken at the word of its
version, and everything else is read. Whatever cannot be read (a file, a lock, an object of an
extension) makes the step uncacheable: a missing key costs seconds, a wrong one would cost the
user's trust.
"""

import functools
import hashlib
import os
import sys
import sysconfig
import types
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from poet.tracer.joint import Step
from poet.tracer.versions import versions

_WRITTEN_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
_TORCH = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_BUILTIN = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


class _CannotTell(Exception):
    """The step depends on something that has no hash."""


def key_of(step: Step, *settings: Any) -> str | None:
    """The key of a capture, or None where it cannot be told apart from others."""
    walk = _Walk()
    try:
        walk.add([versions(), _settings()])
        walk.add(settings)
        walk.add(step.example.constants)
        walk.add(str(step.example.spec))
        walk.add([_shape(tensor) for tensor in step.example.tensors])
        walk.add(str(step.autocast))
        walk.add(step.loss)
        walk.add(step.model)
    except (_CannotTell, RecursionError):
        return None
    return walk.hash.hexdigest()[:40]


@functools.cache
def _library_homes() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({os.path.realpath(paths[name]) for name in ("stdlib", "purelib", "platlib")})


def _settings() -> list[Any]:
    """The global settings of torch that choose kernels."""
    sdp: Any = torch.backends.cuda
    return [
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        [sdp.flash_sdp_enabled(), sdp.math_sdp_enabled(), sdp.mem_efficient_sdp_enabled()],
        [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
    ]


def settings_are_usual() -> bool:
    """Whether nobody has touched the global settings of torch that choose kernels."""
    return _settings() == [torch.float32, False, True, [True, True, True], [False, False]]


def _shape(tensor: torch.Tensor) -> list[Any]:
    return [
        list(tensor.shape), list(tensor.stride()), tensor.dtype, str(tensor.device),
        tensor.requires_grad,
    ]  # fmt: skip


class _Walk:
    """Feeds things into one hash; each object once, by the place where it was met first."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._met: dict[int, int] = {}
        self._held: list[Any] = []

    def add(self, thing: Any) -> None:
        self._word(type(thing).__qualname__)
        if isinstance(thing, (*_PLAIN, *_TORCH)):
            self._word(repr(thing))
            return
        if isinstance(thing, Enum):
            self._word(str(thing))
            return
        if id(thing) in self._met:
            self._word(f"again {self._met[id(thing)]}")
            return
        self._met[id(thing)] = len(self._met)
        self._held.append(thing)  # so that no id is used twice
        self._add_object(thing)

    def _add_object(self, thing: Any) -> None:
        if isinstance(thing, list | tuple):
            self._all(thing)
        elif isinstance(thing, dict):
            self._all(x for pair in thing.items() for x in pair)
        elif isinstance(thing, set | frozenset):
            self._all(sorted(thing, key=repr))
        elif isinstance(thing, msgspec.Struct):
            self._all((type(thing), msgspec.structs.asdict(thing)))
        elif isinstance(thing, torch.Tensor):
            self._add_tensor(thing)
        elif isinstance(thing, nn.Module):
            self._add_module(thing)
        elif isinstance(thing, types.FunctionType):
            self._add_function(thing)
        elif isinstance(thing, types.MethodType):
            self._all((thing.__func__, thing.__self__))
        elif isinstance(thing, functools.partial):
            self._all((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, type):
            self._add_class(thing)
        elif isinstance(thing, types.CodeType):
            self._add_code(thing)
        elif isinstance(thing, types.ModuleType):
            self._add_python_module(thing)
        elif isinstance(thing, _BUILTIN):
            self._word(f"{getattr(thing, '__module__', '')}.{thing.__qualname__}")
        elif isinstance(thing, _DESCRIPTORS):
            parts = ("__func__", "fget", "fset", "func")
            self._all(getattr(thing, part) for part in parts if hasattr(thing, part))
        else:
            self._add_instance(thing)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        """A constant is part of the graph, so its content counts."""
        self.add(_shape(tensor))
        content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        self.hash.update(content.numpy().tobytes())

    def _add_module(self, module: nn.Module) -> None:
        self.add(type(module))
        for name, value in sorted(module.__dict__.items()):
            self._word(name)
            if name in ("_parameters", "_buffers"):
                for each, tensor in value.items():
                    self._word(each)
                    self.add(None if tensor is None else [id(tensor) in self._met, _shape(tensor)])
                    self._met.setdefault(id(tensor), len(self._met))
                    self._word(str(self._met[id(tensor)]))
            else:
                self.add(value)

    def _add_class(self, kind: type) -> None:
        self._word(f"{kind.__module__}.{kind.__qualname__}")
        if _is_library(kind.__module__):
            return
        self._all(kind.__mro__[1:])
        for name, value in sorted(vars(kind).items()):
            if name not in ("__dict__", "__weakref__", "__doc__", "__module__"):
                self._word(name)
                self.add(value)

    def _add_function(self, function: types.FunctionType) -> None:
        self._word(f"{function.__module__}.{function.__qualname__}")
        self.add([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._word("empty cell")
        if _is_library(function.__module__):
            return
        self.add(function.__code__)
        for name in _names_in(function.__code__):
            if name in function.__globals__:
                self._word(name)
                self.add(function.__globals__[name])

    def _add_code(self, code: types.CodeType) -> None:
        self.hash.update(code.co_code)
        self._all(code.co_consts)
        self._all((code.co_names, code.co_varnames, code.co_freevars, code.co_flags))

    def _add_python_module(self, module: types.ModuleType) -> None:
        self._word(module.__name__)
        if _is_library(module.__name__):
            return
        file = getattr(module, "__file__", None)
        if file is None or not file.endswith(".py"):
            raise _CannotTell
        self.hash.update(Path(file).read_bytes())

    def _add_instance(self, thing: Any) -> None:
        if not all(
            kind is object or kind.__flags__ & _WRITTEN_IN_PYTHON for kind in type(thing).__mro__
        ):
            raise _CannotTell
        if any("__slots__" in vars(kind) for kind in type(thing).__mro__):
            raise _CannotTell
        self.add(type(thing))
        for name, value in sorted(vars(thing).items()):
            self._word(name)
            self.add(value)

    def _all(self, things: Iterable[Any]) -> None:
        self._word("(")
        for thing in things:
            self.add(thing)
        self._word(")")

    def _word(self, text: str) -> None:
        self.hash.update(text.encode("utf-8", "surrogatepass") + b"\0")


def _names_in(code: types.CodeType) -> list[str]:
    """The names that a function, or one written inside it, may take from its module."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return sorted({*code.co_names, *(name for each in inner for name in _names_in(each))})


@functools.cache
def _is_library(module: str | None) -> bool:
    """Whether a module belongs to an installed package, whose version stands for its code."""
    if module is None:
        return False
    if module.partition(".")[0] == "poet":
        return True  # `versions` has read it
    if module == "builtins" or module.partition(".")[0] in sys.builtin_module_names:
        return True
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None) if found else None
    if file is None:
        return module.partition(".")[0] in sys.stdlib_module_names
    return bool(os.path.realpath(file).startswith(_library_homes()))
