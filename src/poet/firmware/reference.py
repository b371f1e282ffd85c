"""The reference: the steps that a new card asks for, as PyTorch takes them.

`poet emulate` compares with them. They run in float32 and in float64, on the tensors and samples of
the card, with the firmware's own random numbers in the place of PyTorch's.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from poet.errors import PoetError
from poet.firmware.card.image import Arrays, scalars
from poet.firmware.card.safetensors import Array, write_safetensors
from poet.runtime.step.reference import reference_step
from poet.values.graph import Graph


def write_reference(
    path: Path,
    graph: Graph,
    tensors: Arrays,
    records: list[Arrays],
    *,
    steps: int,
    lr: float,
    seed: int,
) -> None:
    """A safetensors file with the card's tensors before the steps and after them, and losses."""
    loss = next((i for i, t in enumerate(graph.tensors) if t.role == "output"), None)
    special = scalars(graph)
    kept = {f"start/{graph.tensors[i].name}": array for i, array in tensors.items()}
    for dtype in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        state, losses = _as_torch(tensors), []
        for number in range(1, steps + 1):
            batch = _as_torch(records[(number - 1) % len(records)])
            given = {"learning_rate": torch.tensor(lr, dtype=torch.float64),
                     "step": torch.tensor(number)}  # fmt: skip
            batch |= {i: given[argument] for argument, i in special.items()}

            def mask(op: int, shape: tuple[int, ...], p: float, step: int = number) -> torch.Tensor:
                return torch.from_numpy(dropout_mask(shape, p, seed, step, op))

            try:
                done = reference_step(graph, {**state, **batch}, dtype, mask)
            except (IndexError, RuntimeError) as error:
                raise PoetError(
                    f"PyTorch cannot take step {number} of {graph.name}: {error}"
                ) from error
            state = {i: done[graph.heir.get(i, i)] for i in state}
            if loss is not None:
                losses.append(float(done[loss]))
        for i, tensor in state.items():
            kept[f"{name}/{graph.tensors[i].name}"] = tensor.contiguous().numpy()
        kept[f"{name} losses"] = np.array(losses)
    write_safetensors(kept, path)


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
