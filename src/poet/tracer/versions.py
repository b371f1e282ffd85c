"""Versions: all the code that a capture of a zoo model depends on, without importing torch."""

import functools
import hashlib
import importlib.metadata
import sys
from pathlib import Path

import msgspec

from poet.values.optimizers import Optimizer


@functools.cache
def versions() -> list[str]:
    """Every installed package with its version, Python's own, and POET's code."""
    found = sorted(f"{each.name} {each.version}" for each in importlib.metadata.distributions())
    home = Path(__file__).parent.parent
    ours = hashlib.sha256()
    rooms = ("values", "calls", "rewrites", "tracer", "zoo")
    for file in sorted(file for room in rooms for file in home.glob(f"{room}/*.py")):
        ours.update(file.read_bytes())
    return [*found, sys.version, ours.hexdigest()]


def zoo_key(model: str, optimizer: Optimizer | None, *settings: str | bool) -> str:
    """The key of a zoo model's capture where nobody has touched the settings of torch."""
    same = None if optimizer is None else msgspec.structs.replace(optimizer, lr=0.0)
    kind = type(optimizer).__name__
    about = msgspec.json.encode(["zoo", model, kind, same, settings, versions()])
    return hashlib.sha256(about).hexdigest()[:40]
