"""Emitting: a plan becomes a folder of C, with its card and, where torch is, a reference.

Joins firmware to the planner (an arena that does not fit is planned again with less RAM), to the
zoo (what its networks begin with, and their data) and to PyTorch, which runs the same steps on the
same data for `poet emulate` to compare with.
"""

from importlib.util import find_spec
from math import inf
from pathlib import Path

import msgspec

from poet.errors import Infeasible, PoetError
from poet.firmware.boards import Board, find_board
from poet.firmware.card.image import Arrays, Header, card_layout, inputs_of, write_image
from poet.firmware.card.initial import first_values, random_samples, samples_from, weights_from
from poet.firmware.card.safetensors import Array
from poet.firmware.emulate.comparison import REFERENCE
from poet.firmware.place.arena import Placed, placed
from poet.firmware.write.folder import Firmware, check_plan, whole_folder, write_folder
from poet.planning.solve import solve
from poet.values.graph import Graph
from poet.values.plan import Plan
from poet.values.schedule import Effort

_MOST = 2**32 - 1
"""The largest number that the header of a card holds."""
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
    lr: float = 0.01,
    force: bool = False,
) -> Firmware:
    """Write a folder of C that performs the planned step on a board, and the image of its card.

    Weights come from a safetensors file or from a seed; so do samples, or with `data="real"` they
    are those that training of the zoo's models holds out. The card asks for `steps` steps with the
    learning rate `lr`, which take the samples in turn. When it fails, no folder is left behind, and
    one that is written over (`force`) is as it was.
    """
    folder, board, graph = Path(folder), find_board(target), plan.graph
    check_plan(plan)
    _check_numbers(seed=seed, samples=samples, steps=steps, lr=lr)
    _check_folder(folder, force)
    limit = _arena_limit(plan, board)
    plan, found = _fitting(plan, limit)
    card_layout(plan, samples if data is None else 1)  # refused before anything is made
    tensors = _tensors(graph, weights, seed)
    records = _records(graph, data, samples, seed)
    card = card_layout(plan, len(records))
    header = Header(
        steps_to_do=steps, steps_done=0, samples=len(records), data_at=card.data_at, seed=seed,
        learning_rate=lr, fingerprint=graph.fingerprint,
    )  # fmt: skip
    with whole_folder(folder) as new:
        made = write_folder(new, plan, board, found, limit, card, steps, lr)
        write_image(new / "card.img", graph, card, header, tensors, records)
        if find_spec("torch") is not None:
            from poet.firmware.reference import write_reference

            write_reference(new)
    if find_spec("torch") is None:
        (folder / REFERENCE).unlink(missing_ok=True)  # of a card that is no longer there
    return made


def _check_numbers(*, seed: int, samples: int, steps: int, lr: float) -> None:
    for name, number, least in (("seed", seed, 0), ("samples", samples, 1), ("steps", steps, 1)):
        if not least <= number <= _MOST:
            raise PoetError(f"{name} is {number}; it must be from {least} to {_MOST:,}")
    if not 0 <= lr < inf:
        raise PoetError(f"lr is {lr}; it must be 0 or more, and finite")


def _check_folder(folder: Path, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise PoetError(f"{folder} is a file; C is written into a folder")
    if folder.exists() and any(folder.iterdir()) and not force:
        raise PoetError(f"{folder} is not empty: force=True writes over it")


def _arena_limit(plan: Plan, board: Board | None) -> int | None:
    """The most bytes an arena may have: the plan's budget, on a board what it has."""
    asked = plan.budget.ram_bytes
    if board is None:
        return asked
    free = board.ram_bytes - board.reserved_bytes
    if asked is not None and asked > free:
        if plan.peak_bytes is not None and plan.peak_bytes <= free:
            return free
        raise PoetError(
            f"the plan is for {asked:,} bytes of RAM; {board.name} has {free:,} beside "
            f'{board.reserved_bytes:,} for stack and variables. Plan with ram="{free}"'
        )
    return free if asked is None else asked


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
    raise Infeasible(
        f"the tensors of {first.graph.name} cannot be placed in {limit:,} bytes without gaps "
        f"(the plan's peak is {first.peak_bytes or 0:,}). Try more RAM",
        proven=False,
    )


def _tensors(graph: Graph, weights: str | Path | None, seed: int) -> Arrays:
    """What lasts from step to step, as the card begins with it."""
    known = _known_values(graph, seed)
    if weights is None:
        return first_values(graph, seed, known)
    return weights_from(graph, Path(weights), seed, known)


def _known_values(graph: Graph, seed: int) -> dict[str, Array]:
    """What a new network of the zoo holds. Code that a plan names is not run."""
    from poet.zoo import parse

    try:
        spec = parse(graph.name)
    except PoetError:
        return {}
    if find_spec("torch") is None:
        return {}
    from poet.tracer.by_name import made_by_name

    model = made_by_name(spec.text, seed)[0]
    shapes = {t.name: tuple(t.shape or ()) for t in graph.tensors}
    return {
        name: tensor.detach().numpy()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if shapes.get(name) == tuple(tensor.shape)
    }


def _records(graph: Graph, data: str | Path | None, count: int, seed: int) -> list[Arrays]:
    """The samples of the card: a file's, held-out ones of the zoo, or noise."""
    if data is None:
        return random_samples(graph, count, seed)
    return _real_samples(graph, count) if str(data) == "real" else samples_from(graph, Path(data))


def _real_samples(graph: Graph, count: int) -> list[Arrays]:
    """Held-out batches of the data that the zoo has for this model."""
    from poet.data import evaluation

    wanted = inputs_of(graph)
    made = []
    for example in evaluation(graph.name, count):
        leaves = list(example.values() if isinstance(example, dict) else example)
        if len(leaves) != len(wanted):
            names = ", ".join(graph.tensors[i].name for i in wanted)
            raise PoetError(
                f"a batch of {graph.name}'s data has {len(leaves)} tensors; the inputs of the step "
                f"are {names}"
            )
        made.append({i: leaf.numpy() for i, leaf in zip(wanted, leaves, strict=True)})
    return made
