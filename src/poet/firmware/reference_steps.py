"""The steps of the reference, in a process of their own: `python -m poet.firmware.reference_steps`.

Given a folder of firmware and a number of bytes, it takes the steps that the folder's card asks
for, in float32, in float64, and in float64 with noise in the place of float32's rounding, on the
tensors and samples of the card, with the firmware's own random numbers in the place of PyTorch's.
What it cannot do it says in one line, with exit code 2.
"""

import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from poet.calls.operands import works
from poet.calls.shapes.check import check_calls, check_work
from poet.errors import PoetError
from poet.firmware.card.commits import Commit, commit_of, order_of
from poet.firmware.card.image import Arrays, read_records, read_tensors
from poet.firmware.card.layout import scalars
from poet.firmware.card.safetensors import Array, write_safetensors
from poet.firmware.emulate.comparison import REFERENCE
from poet.firmware.write.folder import read_folder
from poet.runtime.step.reference import reference_step
from poet.values.graph import Graph


class Way(NamedTuple):
    """How the steps are taken."""

    dtype: torch.dtype
    is_noisy: bool = False


WAYS = {
    "float32": Way(torch.float32),
    "float64": Way(torch.float64),
    "noise": Way(torch.float64, is_noisy=True),
}


def main(folder: Path, most_bytes: int) -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _limit_memory(most_bytes)
    made, plan = read_folder(folder)
    card, number = folder / "card.img", 0
    try:
        for k in range(len(plan.graph.ops)):
            check_calls(plan.graph, k)
            for work in works(plan.graph, k):
                check_work(plan.graph, k, work)
        header, steps = commit_of(card), order_of(card).stop_at
        tensors = read_tensors(card, plan.graph, made.card)
        records = read_records(card, plan.graph, made.card)
        kept = {f"start/{plan.graph.tensors[i].name}": array for i, array in tensors.items()}
        for name, way in WAYS.items():
            state, losses = _as_torch(tensors), []
            for number in range(1, steps + 1):
                batch = _as_torch(records[(number - 1) % len(records)])
                state, loss = _step(plan.graph, state, batch, way, header, number)
                losses.append(loss)
            for i, tensor in state.items():
                kept[f"{name}/{plan.graph.tensors[i].name}"] = tensor.contiguous().numpy()
            kept[f"{name} losses"] = np.array(losses)
        write_safetensors(kept, folder / REFERENCE)
    except PoetError as error:
        return _complain(str(error))
    except Exception as error:  # whatever an operator may raise
        text = str(error).strip() or type(error).__name__
        first = text.splitlines()[0]
        return _complain(f"PyTorch cannot take step {number} of {plan.graph.name}: {first}")
    return 0


def _complain(text: str) -> int:
    print(text.replace("\n", " "), file=sys.stderr)
    return 2


def _end_with_parent() -> None:
    """Nothing comes over the pipe but its end: whoever wanted the reference is gone."""
    os.read(0, 1)
    os._exit(1)


def _limit_memory(most_bytes: int) -> None:
    """So much more than there is already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + most_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _step(
    graph: Graph,
    state: dict[int, torch.Tensor],
    batch: dict[int, torch.Tensor],
    way: Way,
    header: Commit,
    number: int,
) -> tuple[dict[int, torch.Tensor], float]:
    """What lasts after one more step, and its loss."""
    given = {"learning_rate": torch.tensor(header.learning_rate, dtype=torch.float64),
             "step": torch.tensor(number)}  # fmt: skip
    batch |= {i: given[argument] for argument, i in scalars(graph).items()}

    def mask(op: int, shape: tuple[int, ...], p: float) -> torch.Tensor:
        return torch.from_numpy(dropout_mask(shape, p, header.seed, number, op))

    loss = next((i for i, t in enumerate(graph.tensors) if t.role == "output"), None)
    heirs = {i: graph.heir.get(i, i) for i in state}
    wanted = {*heirs.values(), *(() if loss is None else (loss,))}
    noise = torch.Generator().manual_seed(number) if way.is_noisy else None
    done = reference_step(graph, {**state, **batch}, way.dtype, mask, wanted, noise)
    said = float(done[loss]) if loss is not None and done[loss].numel() == 1 else 0.0
    return {i: done[heir] for i, heir in heirs.items()}, said


def _as_torch(arrays: Arrays) -> dict[int, torch.Tensor]:
    return {i: torch.from_numpy(array.copy()) for i, array in arrays.items()}


def dropout_mask(shape: tuple[int, ...], p: float, seed: int, step: int, op: int) -> Array:
    """The mask that dropout.c makes, number for number."""
    with np.errstate(over="ignore"):

        def mixed(x: Any) -> Any:
            x = x ^ (x >> np.uint32(16))
            x = x * np.uint32(0x7FEB352D)
            x = x ^ (x >> np.uint32(15))
            x = x * np.uint32(0x846CA68B)
            return x ^ (x >> np.uint32(16))

        key = mixed(mixed(mixed(np.uint32(seed)) + np.uint32(step)) + np.uint32(op))
        count = int(np.prod(shape, dtype=np.int64))
        drawn = mixed(key + np.arange(count, dtype=np.uint32)) >> np.uint32(8)
    kept = np.float32(1.0 - p)
    chance = drawn.astype(np.float32) * np.float32(1 / 16777216)
    value = np.float32(1) / kept if kept > 0 else np.float32(0)
    return np.where(chance < kept, value, np.float32(0)).reshape(shape)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
