"""timm without torchvision, of which the package index has no build for this torch.

timm's networks need nothing of torchvision but the class `FrozenBatchNorm2d`, to ask whether a
layer is one, and names of image transforms, for data that nobody loads here. While this holds,
importing torchvision gives modules whose every name is an empty class. timm itself is the real one:
`pip install --no-deps timm`.
"""

import contextlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.append(finder)  # the last to be asked: a torchvision that is there is used
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Names(type):
    """An enumeration of which nothing is known but that it has the name that was asked."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""
