"""Generations: a folder with the last checkpoints of a run, of which the newest good one counts.

    step-00000040.safetensors    the tensors, and all else, with a checksum
    step-00000040.json           what it is, and the size and checksum the file beside must have

The tensors' file is whole, on disk and named before its JSON is written, the same way: a generation
exists once its JSON does. Two are kept. When one is saved, older ones go, and newer ones too: who
saves step 40 has gone back there, because what came after was damaged. What else is called
`step-…` is what a process left behind that was killed, and goes as well.

Whoever uses a folder holds a lock on it, which the kernel drops with the process.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from poet.errors import PoetError
from poet.runtime.state.checkpoints import (
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
    write_whole,
)
from poet.runtime.state.tensor_file import Content, Item, TornFile
from poet.values.plan import Plan

SINGLE = ".safetensors"
"""A path that ends so is one file; any other is a folder of generations."""
_KEPT = 2
PLAN = "plan.json"
"""Where a run keeps its plan, beside the generations."""
_NAME = re.compile(r"step-(\d{8,})\.(?:json|safetensors)")
_LEFT = re.compile(r"(?:step-\d{8,}\.(?:json|safetensors)|plan\.json)\.\d+-[0-9a-f]+\.part")


class Found(NamedTuple):
    """A checkpoint that can be loaded."""

    path: Path
    about: Checkpoint
    content: Content


class Generations:
    """The folder of a run, made if it is missing, locked until it is closed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(exist_ok=True)
            self._handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PoetError(
                f"cannot write the checkpoint {folder}: {reason}. Give a folder, or a file "
                f"that ends in {SINGLE}"
            ) from None
        self.is_locked = self._lock()

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            raise PoetError(
                f"another process keeps its checkpoints in {self.folder}: wait for it, or give "
                "another folder"
            ) from None
        except OSError:  # a file system without locks
            return False
        return True

    @property
    def steps(self) -> list[int]:
        """Of the generations that exist, oldest first."""
        return steps_in(self.folder)

    def save(self, about: Checkpoint, items: Mapping[str, Item]) -> Path:
        """A new generation; then those that are too old go."""
        path = tensors_path(self.folder, about.steps)
        self._sweep(self.steps)  # what was left behind may be what fills the disk
        complete = write_checkpoint(path, about, items)
        content = msgspec.json.format(msgspec.json.encode(complete)) + b"\n"
        write_whole(about_path(path), content)
        self._sweep([step for step in self.steps if step <= about.steps][-_KEPT:])
        return path

    def write_plan(self, plan: Plan) -> None:
        """Keep the plan of the run, for the next resume."""
        write_whole(self.folder / PLAN, msgspec.json.encode(plan) + b"\n")

    def _sweep(self, staying: Collection[int]) -> None:
        """Leave these generations alone, and remove what else is called so."""
        going = []
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            left = self.is_locked and _LEFT.fullmatch(path.name)
            if left or (match is not None and int(match[1]) not in staying):
                going.append(path)
        for path in sorted(going):  # the JSON first: without it there is no generation
            with contextlib.suppress(OSError):  # not ours to remove
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> "Generations":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def steps_in(folder: Path) -> list[int]:
    """The generations in a folder, oldest first."""
    if not folder.is_dir():
        return []
    matches = [_NAME.fullmatch(path.name) for path in folder.glob("step-*.json")]
    return sorted(int(match[1]) for match in matches if match is not None)


def newest(folder: Path, say: Callable[[str], None]) -> Found:
    """The newest generation that is whole. `say` is told of each that is not."""
    trouble: list[str] = []
    for step in reversed(steps_in(folder)):
        path = tensors_path(folder, step)
        try:
            found = _read(path)
        except TornFile as error:
            trouble.append(f"{path.name}: {error}")
            continue
        if trouble:
            say(
                f"in {folder} the newest checkpoint cannot be used ({'; '.join(trouble)}): going "
                f"on from step {step}"
            )
        return found
    if not folder.is_dir():
        what = "it is a file whose name does not end so" if folder.exists() else "it does not exist"
        raise PoetError(
            f"cannot read the checkpoint {folder}: a checkpoint is a folder, or a file that ends "
            f"in {SINGLE}, and {what}"
        )
    if not trouble:
        raise PoetError(f"cannot read the checkpoint {folder}: there is none in this folder")
    raise PoetError(
        f"cannot read the checkpoint {folder}: all in this folder are damaged. "
        + "; ".join(trouble)
    )


def single(path: Path) -> Found:
    """The checkpoint in one file."""
    try:
        return Found(path, *read_checkpoint(path))
    except TornFile as error:
        raise PoetError(f"cannot read the checkpoint {path}: {error}") from None


def tensors_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}{SINGLE}"


def about_path(path: Path) -> Path:
    """The JSON that belongs to a file of tensors."""
    return path.with_suffix(".json")


def _read(path: Path) -> Found:
    """A generation, if its two files agree."""
    told = _told(about_path(path))
    about, content = read_checkpoint(path)
    inside = msgspec.structs.replace(told, file_bytes=None, file_checksum=None)
    # A file that is whole but not the one that the JSON tells of: a second save of the same step
    # was killed between the two. What must not be is a JSON that tells of this file, and lies.
    if told.file_checksum == content.checksum and about != inside:
        raise TornFile(f"{about_path(path).name} is not what was written with it")
    if f"{about.steps:08}" not in path.name:
        raise TornFile(f"it is of step {about.steps:,}")
    return Found(path, about, content)


def _told(path: Path) -> Checkpoint:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Checkpoint)
    except OSError as error:
        raise TornFile(f"{path.name}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TornFile(f"{path.name}: {error}") from None
