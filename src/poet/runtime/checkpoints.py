"""Checkpoints: a trainer's state in one safetensors file, whole or not at all.

Tensors are named `model/…` and `optimizer/…/momentum_buffer`; the number of steps is in the header.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from poet.errors import PoetError

FORMAT = "poet-checkpoint/1"


def write_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Fill a temporary file beside the target, flush it to disk, and rename it over it."""
    tensors = {f"model/{name}": value.contiguous() for name, value in state["model"].items()}
    for name, held in state["optimizer"].items():
        tensors |= {f"optimizer/{name}/{kept}": value for kept, value in held.items()}
    content = save(tensors, metadata={"format": FORMAT, "steps": str(state["steps"])})
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except OSError as error:
        raise PoetError(f"cannot write the checkpoint {path}: {error.strerror or error}") from None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state that was written."""
    state: dict[str, Any] = {"model": {}, "optimizer": {}}
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != FORMAT:
                raise PoetError(f"{path} is no checkpoint of POET: it has no format {FORMAT!r}")
            state["steps"] = int(about["steps"])
            for name in file.keys():  # noqa: SIM118
                part, _, rest = name.partition("/")
                if part == "model":
                    state["model"][rest] = file.get_tensor(name)
                else:
                    parameter, _, kept = rest.rpartition("/")
                    state["optimizer"].setdefault(parameter, {})[kept] = file.get_tensor(name)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise PoetError(f"cannot read the checkpoint {path}: {error}") from None
    return state
