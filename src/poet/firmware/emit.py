"""Emitting: a plan becomes a folder of C, with its card and, where torch is, a reference.

Joins firmware to the planner (an arena that does not fit is planned again with less RAM) and to
PyTorch, which runs the same steps on the same data for `poet emulate` to compare with.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from poet.errors import PoetError
from poet.firmware.boards import find_board
from poet.firmware.card.contents import (
    Arrays,
    first_values,
    inputs_of,
    random_samples,
    samples_from,
    scalars,
    weights_from,
    write_safetensors,
)
from poet.firmware.card.image import Header, layout, write_image
from poet.firmware.emulate.comparing import REFERENCE
from poet.firmware.write.folder import Firmware, Placed, arena_limit, placed, write_folder
from poet.planning.solve import solve
from poet.referee.replay import check
from poet.values.graph import Graph
from poet.values.plan import Plan
from poet.values.schedule import Effort

_TRIES = 6
_PLANNING_SECONDS = 120.0
_PLANNING_WORK = 2


def emit(
    plan: Plan,
    folder: str | Path,
    target: str = "host",
    *,
    weights: str | Path | None = None,
    data: str | Path | None = None,
    seed: int = 0,
    samples: int = 4,
    steps: int = 5,
    learning_rate: float = 0.01,
    force: bool = False,
) -> Firmware:
    """Write a folder of C that performs the planned step on a board, and the image of its card.

    Weights come from a safetensors file or from a seed; so do samples, or with `data="real"` they
    are those that training of the zoo's models holds out. The card asks for `steps` steps, which
    take the samples in turn.
    """
    folder, board = Path(folder), find_board(target)
    if not plan.schedule:
        raise PoetError(f"the plan has no schedule: {plan.reason or plan.status}")
    verdict = check(plan)
    if verdict.violation is not None:
        raise PoetError(f"the plan is not valid: {verdict.violation}")
    if steps < 1 or samples < 1:
        raise PoetError("a card needs at least one step and one sample")
    graph = plan.graph
    for i in inputs_of(graph):
        if plan.budget.start[i] == "store":
            raise PoetError(f"{graph.tensor_text(i)} starts in the store; C loads inputs into RAM")
    if folder.exists() and any(folder.iterdir()) and not force:
        raise PoetError(f"{folder} is not empty (--force writes over it)")
    limit = arena_limit(plan, board)
    plan, found = _fitting(plan, limit)
    known = _known_values(graph, seed)
    if weights is None:
        values = first_values(graph, seed, known)
    else:
        values = weights_from(graph, Path(weights), seed, known)
    if data is not None and str(data) == "real":
        records = _real_samples(graph, samples)
    elif data is not None:
        records = samples_from(graph, Path(data))
    else:
        records = random_samples(graph, samples, seed)
    where = layout(plan, len(records), inputs_of(graph))
    made = write_folder(
        folder, plan, board, found, limit, where, scalars(graph), steps, learning_rate
    )
    header = Header(
        steps_to_do=steps, steps_done=0, samples=len(records), data_at=where.data_at, seed=seed,
        learning_rate=learning_rate, fingerprint=graph.fingerprint,
    )  # fmt: skip
    write_image(folder / "card.img", graph, where, header, values, records)
    (folder / REFERENCE).unlink(missing_ok=True)
    if find_spec("torch") is not None:
        _write_reference(folder / REFERENCE, graph, values, records, steps, learning_rate, seed)
    return made


def _known_values(graph: Graph, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """What a new network of the zoo holds. Code that a plan names is not run."""
    from poet.zoo import parse

    try:
        spec = parse(graph.name)
    except PoetError:
        return {}
    if find_spec("torch") is None:
        return {}
    from poet.tracer.capture import made_by_name

    model = made_by_name(spec.text, seed)[0]
    shapes = {t.name: tuple(t.shape or ()) for t in graph.tensors}
    return {
        name: tensor.detach().numpy()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if shapes.get(name) == tuple(tensor.shape)
    }


def _real_samples(graph: Graph, count: int) -> list[Arrays]:
    """Held-out batches of the data that the zoo has for this model."""
    from poet.data import evaluation

    wanted = inputs_of(graph)
    made = []
    for example in evaluation(graph.name, count):
        leaves = example.values() if isinstance(example, dict) else example
        made.append({i: leaf.numpy() for i, leaf in zip(wanted, leaves, strict=True)})
    return made


def _fitting(plan: Plan, limit: int | None) -> tuple[Plan, Placed]:
    """The plan with its placement; planned again with less RAM while the arena is too large."""
    first = plan
    for _ in range(_TRIES):
        found = placed(plan, limit)
        if limit is None or found.placement.arena_bytes <= limit:
            return plan, found
        over = found.placement.arena_bytes - limit
        less = (plan.budget.ram_bytes or limit) - over
        budget = msgspec.structs.replace(plan.budget, ram_bytes=max(0, less))
        # Counted, not timed: the same plan gives the same files.
        effort = Effort(time_limit_seconds=_PLANNING_SECONDS, work_limit=_PLANNING_WORK)
        again = solve(plan.graph, plan.costs, budget, effort, None, plan.minimize)
        if not again.schedule:
            break
        plan = again
    raise PoetError(
        f"the tensors of {first.graph.name} cannot be placed in {limit:,} bytes without gaps "
        f"(the plan's peak is {first.peak_bytes or 0:,}). Try more RAM"
    )


def _write_reference(
    path: Path,
    graph: Graph,
    values: Arrays,
    records: list[Arrays],
    steps: int,
    learning_rate: float,
    seed: int,
) -> None:
    """The same steps in PyTorch, in float32 and in float64."""
    import torch

    from poet.runtime.step.reference import reference_step

    special = scalars(graph)
    heir = {t.becomes: i for i, t in enumerate(graph.tensors) if t.becomes is not None}
    kept: dict[str, np.ndarray[Any, Any]] = {
        f"start/{graph.tensors[i].name}": array for i, array in values.items()
    }
    loss = next((i for i, t in enumerate(graph.tensors) if t.role == "output"), None)
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        state = {i: torch.from_numpy(array.copy()) for i, array in values.items()}
        losses = []
        for step in range(steps):
            batch = {i: torch.from_numpy(array.copy())
                     for i, array in records[step % len(records)].items()}  # fmt: skip
            if "learning_rate" in special:
                batch[special["learning_rate"]] = torch.tensor(learning_rate, dtype=torch.float64)
            if "step" in special:
                batch[special["step"]] = torch.tensor(step + 1, dtype=torch.int64)

            def mask(op: int, shape: tuple[int, ...], p: float, step: int = step) -> torch.Tensor:
                return torch.from_numpy(dropout_mask(shape, p, seed, step + 1, op))

            done = reference_step(graph, {**state, **batch}, dtype, mask)
            state = {i: done[heir.get(i, i)] for i in state}
            if loss is not None:
                losses.append(float(done[loss]))
        for i, tensor in state.items():
            kept[f"{name}/{graph.tensors[i].name}"] = tensor.contiguous().numpy()
        kept[f"{name} losses"] = np.array(losses)
    write_safetensors(kept, path)


def dropout_mask(
    shape: tuple[int, ...], p: float, seed: int, step: int, op: int
) -> np.ndarray[Any, Any]:
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
