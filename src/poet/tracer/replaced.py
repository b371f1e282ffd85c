"""Replaced: a method of somebody else's class, while a step is traced."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(kind: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """While this holds, the class has another method."""
    before = vars(kind).get(name)
    setattr(kind, name, function)
    try:
        yield
    finally:
        if before is None:
            delattr(kind, name)
        else:
            setattr(kind, name, before)
