"""Boards by name: one TOML file each in this folder, every figure with its source.

A path to a user's own TOML works everywhere a name does.
"""

import difflib
import os
from pathlib import Path

import msgspec

from poet.errors import PoetError
from poet.values.device import Device
from poet.values.files import read_toml

_FOLDER = Path(__file__).parent


def device_names() -> list[str]:
    """The names of the boards that come with POET."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def find_device(name: str) -> Device:
    """The board of that name, or the one described by the TOML file at that path."""
    names = device_names()
    if name.lower() in names:
        path = _FOLDER / f"{name.lower()}.toml"
    elif name.endswith(".toml") or os.sep in name:
        path = Path(name)
    else:
        near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(names)}."
        raise PoetError(
            f"there is no board named {name!r}. {hint} A path to your own .toml works too."
        )
    device = read_toml(path, Device)
    return msgspec.structs.replace(device, name=device.name or path.stem)
