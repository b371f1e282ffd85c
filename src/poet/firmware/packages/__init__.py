"""Packages: a firmware as the folder that an ecosystem of firmware expects.

    contents     what is packed, and its name
    example      the program that each example is, but for its store
    one file for each ecosystem: the files around the library

The library is the same everywhere, byte for byte that of the plain folder, in `src/poet`; beside it
lie the header that a sketch includes, the card, the plan, and what the ecosystem asks for.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from poet.errors import PoetError
from poet.firmware.boards import HOST
from poet.firmware.packages import arduino, cmake, cmsis_pack, esp_idf, platformio, zephyr
from poet.firmware.packages.contents import HOME, Contents, filled, package_name

__all__ = [
    "WRITERS", "check_package", "clear_old", "library_sources", "package_name", "place",
    "write_package",
]  # fmt: skip

WRITERS: dict[str, Callable[[Contents], dict[str, str]]] = {
    "arduino": arduino.files,
    "cmake": cmake.files,
    "cmsis-pack": cmsis_pack.files,
    "esp-idf": esp_idf.files,
    "platformio": platformio.files,
    "zephyr": zephyr.files,
}
USE = {
    "arduino": arduino.USE,
    "cmake": cmake.USE,
    "cmsis-pack": cmsis_pack.USE,
    "esp-idf": esp_idf.USE,
    "platformio": platformio.USE,
    "zephyr": zephyr.USE,
}
KERNELS = Path(__file__).parents[1] / "c"
_OF_THE_BOARD = {
    "main.c",
    "board.c",
    "board.h",
    "start.c",
    "limit.c",
    "mpu.h",
    "clock.h",
    "bytes.c",
}
"""Of a plain folder what is no part of the library."""
_BESIDE = {"plan.json", "firmware.json", "flash.safetensors"}


def check_package(name: str, target: str) -> None:
    """Refuse a package that there is not, or not for this target."""
    if name not in WRITERS:
        raise PoetError(f"there is no package {name!r}; the packages are {', '.join(WRITERS)}")
    if name == "esp-idf" and target != HOST:
        raise PoetError(
            f"ESP-IDF builds for processors of Espressif, and {target} has none: "
            'package "esp-idf" goes with target "host", and the RAM that the plan has'
        )


def place(name: str) -> str | None:
    """Where a file of the plain folder is in a package, the same in all; None: not there."""
    if name in _BESIDE:
        return name
    if name in _OF_THE_BOARD or not name.endswith((".c", ".h")):
        return None
    return f"{HOME}/{name}"


def library_sources(plain: Path) -> tuple[str, ...]:
    """What of a plain folder must be compiled for the library."""
    names = sorted(file.name for file in plain.glob("*.c"))
    return tuple(name for name in names if place(name) is not None)


def write_package(package: str, contents: Contents, folder: Path) -> None:
    """Everything but the card, into a folder that exists."""
    (folder / HOME).mkdir(parents=True)
    for file in sorted(contents.plain.iterdir()):
        there = place(file.name)
        if there is not None:
            shutil.copyfile(file, folder / there)
    texts = WRITERS[package](contents)
    texts[f"src/{contents.name}.h"] = filled(_HEADER, guard=contents.name.upper())
    texts["README.md"] = filled(_README, name=contents.name, use=USE[package].strip())
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def clear_old(folder: Path, contents: Contents) -> None:
    """Of a package that was written over: kernels that this network does not need, for tools take
    all sources that they find. Files that POET does not write stay."""
    for file in (folder / HOME).glob("*.c"):
        if file.name not in contents.sources and (KERNELS / file.name).exists():
            file.unlink()


_HEADER = """\
/* What a program includes: the library, and what goes into its network and comes out of it. */
#ifndef @guard@_H
#define @guard@_H

#include "poet/network.h"
#include "poet/poet.h"

#endif
"""
_README = """\
# @name@

Trains a neural network on the device, and infers with it, in memory that was planned.
`src/poet/poet.h` is its interface, `src/poet/network.h` says what goes into the network and what
comes out.

@use@

`card.img` is what the store must hold before `poet_init`: the network as it begins, and samples.
It is read and written by sectors of 512 bytes through two callbacks; the examples have it on an
SD card.

Trained weights come home with `poet card export`, which takes this folder with a `card.img`
copied back from the device.
"""
