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
from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec
import torch
from torch import nn

from poet.tracer.code_names import mentions
from poet.tracer.step import Step
from poet.tracer.versions import versions

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
_TORCH = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_NO_CODE = ("__dict__", "__weakref__", "__doc__", "__module__")
_HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
_BUILTIN = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


_RISKY = frozenset(
    ("globals", "locals", "vars", "eval", "exec", "compile", "open", "input", "__import__",
     "importlib", "sys", "os", "environ", "getenv", "time", "datetime", "random", "gc", "inspect",
     "builtins", "getattr", "setattr", "__dict__")
)  # fmt: skip
"""Names by which code can reach what this walk does not see: such code is not cached."""


class _Bare:
    """An object that holds attributes and nothing else."""


class _CannotTell(Exception):
    """The step depends on something that has no hash."""


def key_of(step: Step, *settings: Any) -> str | None:
    """The key of a capture, or None where it cannot be told apart from others."""
    walk = _Walk({id(value) for _, _, value in (*step.owned_parameters(), *step.owned_buffers())})
    try:
        _check_untouched()
        walk.add([versions(), torch_settings(), autocast_around()])
        walk.add(settings)
        walk.add(step.example.constants)
        walk.add(str(step.example.spec))
        walk.add([_shape(tensor) for tensor in step.example.tensors])
        walk.add(str(step.autocast))
        walk.add(step.loss)
        walk.add(step.model)
    except Exception:  # _CannotTell, or an object that does not want to be looked at
        return None
    return walk.hash.hexdigest()[:40]


@functools.cache
def _library_homes() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({os.path.realpath(paths[name]) for name in ("stdlib", "purelib", "platlib")})


def torch_settings() -> list[Any]:
    """The global settings of torch that choose kernels."""
    sdp: Any = torch.backends.cuda
    return [
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        [sdp.flash_sdp_enabled(), sdp.math_sdp_enabled(), sdp.mem_efficient_sdp_enabled()],
        str(torch.get_default_device()),
        torch.backends.mha.get_fastpath_enabled(),
    ]


def autocast_around() -> list[Any]:
    """For each kind of device, the dtype of the autocast around us, or False."""
    return [
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        for kind in ("cpu", "cuda")
    ]


def settings_are_usual() -> bool:
    """Whether nobody has touched the global settings of torch that choose kernels."""
    usual = [torch.float32, False, True, [True, True, True], "cpu", True]
    return torch_settings() == usual and autocast_around() == [False, False]


def _shape(tensor: torch.Tensor) -> list[Any]:
    return [
        list(tensor.shape), list(tensor.stride()), tensor.dtype, str(tensor.device),
        tensor.requires_grad,
    ]  # fmt: skip


class _Walk:
    """Feeds things into one hash; each object once, by the place where it was met first."""

    def __init__(self, owned: set[int]) -> None:
        self.hash = hashlib.sha256()
        self._owned = owned
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
        if type(thing) in (list, tuple) or hasattr(thing, "_fields"):
            self._all(thing)
        elif type(thing) in (dict, OrderedDict):
            self._all(x for pair in thing.items() for x in pair)
        elif type(thing) in (set, frozenset):
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
                    if tensor is not None and id(tensor) in self._owned:
                        self._met.setdefault(id(tensor), len(self._met))
                        self.add([self._met[id(tensor)], _shape(tensor)])
                    else:  # none, or of a module that is not trained here: a constant of the step
                        self.add(tensor)
            else:
                self.add(value)

    def _add_class(self, kind: type) -> None:
        self._word(f"{kind.__module__}.{kind.__qualname__}")
        library = is_library(kind.__module__)
        if not library:
            self._all(kind.__mro__[1:])
        for name, value in sorted(vars(kind).items()):
            foreign = isinstance(value, types.FunctionType) and not is_library_code(value)
            if (foreign or not library) and name not in _NO_CODE:
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
        if is_library_code(function):
            return
        self.add(function.__code__)
        for name in _names_in(function.__code__):
            if name in _RISKY:
                raise _CannotTell
            if name in function.__globals__:
                self._word(name)
                self.add(function.__globals__[name])

    def _add_code(self, code: types.CodeType) -> None:
        self.hash.update(code.co_code)
        self._all(code.co_consts)
        self._all((code.co_names, code.co_varnames, code.co_freevars, code.co_flags))

    def _add_python_module(self, module: types.ModuleType) -> None:
        if not is_library(module.__name__):
            raise _CannotTell  # whatever it holds may change
        self._word(module.__name__)

    def _add_instance(self, thing: Any) -> None:
        bare = type(thing).__basicsize__ == _Bare.__basicsize__
        if not (bare and hasattr(thing, "__dict__")):
            raise _CannotTell  # it holds more than its attributes: slots, or something in C
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


def _check_untouched() -> None:
    """Whether torch is as it was installed: no hooks for all modules, no functions replaced."""
    hooks = [x for name, x in vars(nn.modules.module).items() if name.startswith("_global_")]
    if any(hook for hook in hooks if isinstance(hook, dict)):
        raise _CannotTell
    for module in (nn.functional, torch):
        for value in vars(module).values():
            if isinstance(value, types.FunctionType) and not is_library_code(value):
                raise _CannotTell


def _names_in(code: types.CodeType) -> list[str]:
    """The names that a function, or one written inside it, may take from its module.

    An import inside a function is one of the risky ways to reach what is not seen here.
    """
    names = mentions(code)
    if names.imported:
        raise _CannotTell
    return sorted(names.from_module | names.others)


def is_library_code(function: types.FunctionType) -> bool:
    """Whether a function was written in an installed package, whatever it says of itself."""
    file = function.__code__.co_filename
    if file.startswith("<"):
        return is_library(function.__module__)
    real = os.path.realpath(file)
    return bool(real.startswith((*_library_homes(), _HOME)))


@functools.cache
def is_library(module: str | None) -> bool:
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
