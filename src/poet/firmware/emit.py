"""Emitting: a plan becomes a folder of C, with its card and, where torch is, a reference.

What is written is what was planned: a plan for a board brings the addresses of its tensors along,
and for one that does not they are looked for here. Joins firmware to the zoo (what its networks
begin with, and their data) and to PyTorch, which runs the same steps on the same data for `poet
emulate` to compare with.
"""

from importlib.util import find_spec
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import msgspec

from poet.errors import Infeasible, PoetError
from poet.firmware.boards import Board, find_board
from poet.firmware.card.commits import Commit, Order
from poet.firmware.card.image import Arrays, write_image
from poet.firmware.card.initial import first_values, random_samples, samples_from, weights_from
from poet.firmware.card.layout import CardLayout, InFlash, card_layout, inputs_of
from poet.firmware.card.safetensors import Array
from poet.firmware.card.sectors import HELD, SECTOR
from poet.firmware.emulate.comparison import REFERENCE
from poet.firmware.missing import refuse_missing
from poet.firmware.packages import (
    check_package,
    clear_old,
    library_sources,
    package_name,
    write_package,
)
from poet.firmware.packages.contents import Contents
from poet.firmware.place.arena import Placed, placed
from poet.firmware.write.folder import (
    MANIFEST,
    ON_BOARD,
    SAVE_EVERY,
    Firmware,
    check_plan,
    read_firmware,
    whole_folder,
    write_folder,
)
from poet.values.graph import Graph
from poet.values.plan import Arena, Plan
from poet.values.progress import CountProgress

_MOST = 2**32 - 1
"""The largest number that the header of a card holds."""
_PARTS = 5


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
    save_every: int = SAVE_EVERY,
    package: str | None = None,
    flash: InFlash = "none",
    force: bool = False,
    progress: CountProgress | None = None,
) -> Firmware:
    """Write a folder of C that performs the planned step on a board, and the image of its card.

    Weights come from a safetensors file or from a seed; so do samples, or with `data="real"` they
    are those that training of the zoo's models holds out. The card asks for `steps` steps with the
    learning rate `lr`, which take the samples in turn. When it fails, no folder is left behind, and
    one that is written over (`force`) is as it was. `progress` is told what is being done.
    A network whose parameters live in RAM is saved after each `save_every` steps; with 0, in the
    end. `package` makes the folder one that an ecosystem expects: arduino, cmake, cmsis-pack,
    esp-idf, platformio, zephyr. `flash` makes weights constant data of the image: `frozen` those
    that no step changes, which then are not on the card; `all` the others as well, as they begin,
    so that a device can make its own card (`poet_format`).
    """
    report = progress or (lambda what, done, count: None)
    folder, board, graph = Path(folder), find_board(target), plan.graph
    if package is not None:
        check_package(package, target)
    if flash not in get_args(InFlash):
        raise PoetError(f"flash is {flash!r}; it must be one of {', '.join(get_args(InFlash))}")
    check_plan(plan)
    refuse_missing(plan)
    _check_numbers(seed=seed, samples=samples, steps=steps, lr=lr, every=save_every)
    _check_folder(folder, force)
    _check_kind(folder, package)
    limit = _arena_limit(plan, board)
    report("addresses", 0, _PARTS)
    plan, found = _with_addresses(plan, limit)
    report("weights and samples", 1, _PARTS)
    _card(plan, samples if data is None else 1, flash)  # refused before anything is made
    tensors = _tensors(graph, weights, seed)
    records = _records(graph, data, samples, seed)
    card = _card(plan, len(records), flash)
    commit = Commit(
        generation=0, steps_done=0, side=0, seed=seed, learning_rate=lr,
        fingerprint=graph.fingerprint,
    )  # fmt: skip
    order = Order(stop_at=steps, samples=len(records))
    with whole_folder(folder) as new:
        report("C", 2, _PARTS)
        if package is None:
            made = write_folder(
                new, plan, board, found, limit, card, steps, lr, save_every, None, flash, tensors
            )
        else:
            with TemporaryDirectory(prefix="poet-package-") as beside:
                plain = Path(beside)
                made = write_folder(
                    plain, plan, board, found, limit, card, steps, lr, save_every, package,
                    flash, tensors,
                )  # fmt: skip
                contents = Contents(
                    name=package_name(graph.name), plain=plain, sources=library_sources(plain),
                    samples=len(records), steps=steps, board=board, board_flags=ON_BOARD,
                )  # fmt: skip
                write_package(package, contents, new)
        report("the card", 3, _PARTS)
        write_image(new / "card.img", graph, card, commit, order, tensors, records)
        if find_spec("torch") is not None:
            from poet.firmware.reference import write_reference

            report("the same steps in PyTorch", 4, _PARTS)
            write_reference(new)
    if find_spec("torch") is None:
        (folder / REFERENCE).unlink(missing_ok=True)  # of a card that is no longer there
    if package is not None:
        clear_old(folder, contents)
    return made


def emit_source(
    plan: Plan, folder: str | Path, target: str = "host", *, samples: int = 4, steps: int = 5,
    lr: float = 0.01, save_every: int = SAVE_EVERY,
) -> Firmware:  # fmt: skip
    """The C alone, in a new folder: it needs only the plan. `emit` makes the same, and the card."""
    folder, board = Path(folder), find_board(target)
    check_plan(plan)
    refuse_missing(plan)
    _check_folder(folder, force=False)
    limit = _arena_limit(plan, board)
    plan, found = _with_addresses(plan, limit)
    card = _card(plan, samples)
    with whole_folder(folder) as new:
        return write_folder(new, plan, board, found, limit, card, steps, lr, save_every)


def _card(plan: Plan, samples: int, in_flash: InFlash = "none") -> CardLayout:
    card, most = card_layout(plan, samples, in_flash), plan.budget.store_bytes
    if most is not None and card.image_bytes > most:
        each = card.record_bytes // HELD * SECTOR
        raise PoetError(
            f"the card takes {card.image_bytes:,} bytes, {samples:,} samples of {each:,} among "
            f"them; the plan's store has {most:,}"
        )
    return card


def _check_numbers(*, seed: int, samples: int, steps: int, lr: float, every: int) -> None:
    for name, number, least in (
        ("seed", seed, 0),
        ("samples", samples, 1),
        ("steps", steps, 1),
        ("save_every", every, 0),
    ):
        if not least <= number <= _MOST:
            raise PoetError(f"{name} is {number}; it must be from {least} to {_MOST:,}")
    if not 0 <= lr < inf:
        raise PoetError(f"lr is {lr}; it must be 0 or more, and finite")


def _check_folder(folder: Path, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise PoetError(f"{folder} is a file; C is written into a folder")
    if folder.exists() and any(folder.iterdir()) and not force:
        raise PoetError(f"{folder} is not empty: force=True writes over it")


def _check_kind(folder: Path, package: str | None) -> None:
    """Of two packages in one folder each tool would take the other's files for its own."""
    if not (folder / MANIFEST).is_file():
        return
    try:
        there = read_firmware(folder).package
    except PoetError:
        return  # of another version: it is written over, as what has no manifest is
    if there != package:
        kinds = [f"a package for {x}" if x else "a plain folder of C" for x in (there, package)]
        raise PoetError(
            f"{folder} is {kinds[0]}, and {kinds[1]} is to be written: choose another folder"
        )


def _arena_limit(plan: Plan, board: Board | None) -> int | None:
    """The most bytes an arena may have: the plan's budget, on a board what it has."""
    asked = plan.budget.ram_bytes
    if board is None:
        return asked
    free = board.free_bytes
    if asked is not None and asked > free:
        if plan.peak_bytes is not None and plan.peak_bytes <= free:
            return free
        raise PoetError(board.refusal(asked))
    return free if asked is None else asked


def _with_addresses(plan: Plan, limit: int | None) -> tuple[Plan, Placed]:
    """The plan with addresses, its own if it has them, and what they are."""
    found = placed(plan, limit)
    placement = found.placement
    if limit is not None and placement.arena_bytes > limit:
        raise Infeasible(
            f"the tensors of {plan.graph.name} take {plan.peak_bytes or 0:,} bytes at the most, "
            f"and {placement.arena_bytes:,} with the gaps between their addresses; the limit is "
            f'{limit:,}. Plan with target="host", or the board: then addresses are found first',
            proven=False,
        )
    arena = Arena(nbytes=placement.arena_bytes, offsets=placement.offsets)
    return msgspec.structs.replace(plan, arena=arena), found


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
