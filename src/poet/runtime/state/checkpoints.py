"""Checkpoints: all that a trainer needs to go on, to the bit, in one safetensors file.

The tensors are `persistent`'s; beside them, in the file's metadata, is a `Checkpoint`: steps,
random states, learning rates, and whose they are. Files are written under another name, flushed to
disk and renamed, so that one exists whole or not at all, and have a checksum that is looked at
before anything is loaded. Nothing here is a pickle.

`generations` keeps several in a folder and falls back to the one before; `saving` does the loading.
"""

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from poet.calls.updates import ALL_UPDATES
from poet.errors import PoetError
from poet.runtime.state.random_state import RandomState
from poet.runtime.state.tensor_file import Content, Item, Kind, TornFile, verify, write_tensors
from poet.tracer.gathered import ScalerState
from poet.values.graph import MAX_BYTES, Graph, check_range
from poet.values.plan import Plan
from poet.values.update_rules import UpdateRule
from poet.version import __version__

FORMAT = "poet-checkpoint/1"
PART = ".part"
_ABOUT = "checkpoint"
_PLAIN = UpdateRule()


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What whoever trains wants to find again; a trainer itself asks for none of it."""

    model: str = ""
    seed: int | None = None
    data_position: int | None = None
    """Batches that were taken from the stream."""
    data_digest: str | None = None
    """Of the last of them, where the data are the user's own."""
    device: str = ""
    params: str = ""
    ram: str = ""
    """What was asked for: bytes, a share, `min`, or nothing."""
    has_store: bool = False


class Checkpoint(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag=FORMAT,
):
    """What a checkpoint says besides its tensors."""

    steps: int
    """Batches that were trained on."""
    updates: int | None = None
    """Where this is another number."""
    gathered: int = 0
    """Batches whose gradients are gathered for the next update."""
    scaler: ScalerState | None = None
    """What scales the loss, where something does."""
    learning_rates: tuple[float, ...]
    options: tuple[dict[str, float], ...] = ()
    """Momentum and betas of each group, where schedulers may change them."""
    optimizer: str
    origin: Origin
    random: RandomState
    graph_fingerprint: str
    plan_fingerprint: str
    poet_version: str = __version__
    torch_version: str = str(torch.__version__)
    file_bytes: int | None = None
    """Of the file with the tensors; None inside that file."""
    file_checksum: str | None = None

    def __post_init__(self) -> None:
        check_range("steps", self.steps, MAX_BYTES)


def optimizer_text(graph: Graph, rule: UpdateRule = _PLAIN) -> str:
    """The updates of a step as people may compare them: `adam(beta1=0.9, …)`."""
    found = set()
    for op in graph.ops:
        for call in op.calls:
            if call.kind in ALL_UPDATES:
                fixed = [
                    f"{name}={value}"
                    for name, value in call.arguments.items()
                    if not isinstance(value, dict)
                ]
                found.add(f"{call.kind.removeprefix('poet.')}({', '.join(fixed)})")
    more = {
        "once in {} batches": rule.accumulate if rule.keeps_gradients else None,
        "clipped at a norm of {}": rule.clip_norm,
        "clipped at {}": rule.clip_value,
        "scaled": rule.is_scaled or None,
    }
    told = [text.format(value) for text, value in more.items() if value is not None]
    return ", ".join((" and ".join(sorted(found)) or "none", *told))


def plan_fingerprint(plan: Plan) -> str:
    """Hash of what a plan does: its graph, its budget, its schedule."""
    told = (plan.graph.fingerprint, plan.budget, plan.schedule)
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]


def write_checkpoint(path: Path, about: Checkpoint, items: Mapping[str, Item]) -> Checkpoint:
    """Write it, whole or not at all. Gives it with the file's size and checksum."""
    with _said("the checkpoint ", path), whole_file(path) as file:
        checksum = write_tensors(file, items, {_ABOUT: msgspec.json.encode(about).decode()})
        size = os.fstat(file.fileno()).st_size
    return msgspec.structs.replace(about, file_bytes=size, file_checksum=checksum)


def read_checkpoint(path: Path) -> tuple[Checkpoint, Content]:
    """What a file holds, after a look at every byte of it; raises `TornFile`."""
    try:
        content = verify(path)
    except OSError as error:
        raise TornFile(error.strerror or str(error)) from None
    told = content.metadata.get(_ABOUT)
    if told is None:
        raise TornFile(f"it has no format {FORMAT!r}")
    try:
        return msgspec.json.decode(told, type=Checkpoint), content
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TornFile(str(error)) from None


def write_weights(path: Path, items: Mapping[str, Item]) -> None:
    """A plain file of tensors, as others read it, whole or not at all."""
    with _said("", path), whole_file(path) as file:
        write_tensors(file, items, {"format": "pt"})


def write_whole(path: Path, content: bytes) -> None:
    """A small file of a checkpoint."""
    with _said("the checkpoint ", path), whole_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def _said(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PoetError(
            f"cannot write {what}{path}: {error.strerror or error}. Free space there, or give "
            "another place"
        ) from None


def difference(mine: Mapping[str, Kind], theirs: Mapping[str, Kind]) -> str | None:
    """The first thing that keeps a checkpoint's tensors from fitting these, in words."""
    for name in (*mine, *theirs):
        what = "optimizer" if name.startswith("optimizer/") else "model"
        here, there = mine.get(name), theirs.get(name)
        if here is None:
            return f"another {what}: it has {name}, which is unknown here"
        if there is None:
            return f"another {what}: it has no {name}"
        if here != there:
            return f"another {what}: {name} is {there} there and {here} here"
    return None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """A file to fill: flushed to disk and given its name at the end, or removed."""
    target = Path(os.path.realpath(path))  # a link stays a link
    _remove_left(target)
    part = target.with_name(f"{target.name}.{os.getpid()}-{secrets.token_hex(4)}{PART}")
    file = open(part, "xb", buffering=0)  # noqa: SIM115
    try:
        with file:
            yield file
            os.fsync(file.fileno())
            # It will not be read soon, and the page cache is RAM too.
            with contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    sync_folder(target.parent)


def _remove_left(target: Path) -> None:
    """Remove what processes left that were killed while they filled this file."""
    name = re.compile(re.escape(target.name) + r"\.(\d{1,9})-[0-9a-f]+" + re.escape(PART))
    for path in target.parent.iterdir():
        match = name.fullmatch(path.name)
        if match is not None:
            try:
                os.kill(int(match[1]), 0)
            except ProcessLookupError:
                with contextlib.suppress(OSError):  # not ours to remove
                    path.unlink()
            except OSError:  # somebody else's process
                continue


def sync_folder(folder: Path) -> None:
    """Have the folder's names on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
