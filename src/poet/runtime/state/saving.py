"""Saving and loading: what a session can give away, take back, keep on disk and go on from."""

import warnings
from pathlib import Path
from typing import Any

from poet.errors import PoetError, PoetWarning
from poet.runtime.session import Session
from poet.runtime.state.checkpoints import (
    Checkpoint,
    Origin,
    difference,
    optimizer_text,
    plan_fingerprint,
    write_checkpoint,
    write_weights,
)
from poet.runtime.state.generations import SINGLE, Found, Generations, newest, single
from poet.runtime.state.persistent import kinds
from poet.runtime.state.random_state import check_random_state, random_state, set_random_state
from poet.runtime.state.tensor_file import TornFile, fill, kind_of
from poet.tracer.gathered import Counts, ScalerState
from poet.values.update_rules import GATHERED, NOTHING


def state_dict(session: Session) -> dict[str, Any]:
    """The model's state dict, the optimizer's state by parameter, and the steps made.

    `rest` has what a step may change besides: buffers that the model's state dict leaves out, and
    what belongs to the loss.
    """
    session.check_whole()
    with session.unpaged() as model:
        return {
            "model": {name: value.clone() for name, value in model.state_dict().items()},
            "optimizer": {
                name: {kept: session.program.state[name][kept].clone() for kept in held}
                for name, held in session.program.layout.state.items()
            },
            "rest": {name: kept.tensor.clone() for name, kept in session.persistent.rest().items()},
            "steps": session.steps,
            "updates": session.counts.updates,
            "gathered": session.counts.gathered,
            "scaler": session.program.scaler_state,
        }


def load_state_dict(session: Session, state: dict[str, Any]) -> None:
    """Go on from a state dict of a session with the same model and optimizer."""
    persistent = session.persistent
    given = {f"model/{name}": value for name, value in state["model"].items()}
    given |= state.get("rest", {})
    for owner, held in state["optimizer"].items():
        given |= {f"optimizer/{owner}/{kept}": value for kept, value in held.items()}
    mine = {f"model/{name}": kept for name, kept in persistent.weights().items()}
    mine |= persistent.rest() | persistent.state()
    apart = difference(kinds(mine), {name: kind_of(value) for name, value in given.items()})
    if apart:
        raise PoetError(f"the state dict is of {apart}")
    steps = state["steps"]
    counts = Counts(steps, state.get("updates", steps), state.get("gathered", 0))
    _check_scaler(session, state.get("scaler"), "the state dict")
    with session.refilling(counts):
        for name, kept in mine.items():
            with persistent.writing(kept)() as tensor:
                tensor.detach().copy_(given[name])
    session.program.load_scaler(state.get("scaler"))


def drop_gathered(session: Session) -> None:
    """Give up the gradients that are gathered for the next update."""
    session.check_whole()
    persistent, counts = session.persistent, session.counts
    if not counts.gathered:
        return
    session.is_broken = True  # until all of them are gone
    for name, kept in persistent.state().items():
        if name.endswith(f"/{GATHERED}"):
            with persistent.writing(kept)() as tensor:
                tensor.fill_(NOTHING)
    session.is_broken = False
    session.counts = counts._replace(gathered=0)


def save(
    session: Session, path: Path | Generations, origin: Origin | None, folders: set[Path]
) -> Path:
    """Write a checkpoint, whole or not at all: all of `state_dict`, and the random states.

    A path that ends in `.safetensors` is one file; any other is a folder, which keeps the last two;
    `folders` are those that this training uses. It is written tensor by tensor, so that the budget
    holds. Gives the file.
    """
    session.check_whole()
    program = session.program
    about = Checkpoint(
        steps=session.steps,
        updates=session.counts.updates,
        gathered=session.counts.gathered,
        scaler=program.scaler_state,
        learning_rates=tuple(map(float, program.learning_rates)),
        options=program.live_options,
        optimizer=optimizer_text(program.graph, program.layout.rule),
        origin=origin or Origin(),
        random=random_state(program.model_device),
        graph_fingerprint=program.fingerprint,
        plan_fingerprint=plan_fingerprint(session.plan),
    )
    items = session.persistent.items(session.persistent.tensors())
    if isinstance(path, Generations):
        return path.save(about, items)
    if path.suffix == SINGLE:
        write_checkpoint(path, about, items)
        return path
    with Generations(path) as folder:
        here = folder.folder.resolve()
        if folder.steps and here not in folders:
            raise PoetError(
                f"{path} has checkpoints of another training, up to step {folder.steps[-1]:,}: "
                "load them to go on from there, or give another folder"
            )
        folders.add(here)
        return folder.save(about, items)


def save_weights(session: Session, path: Path) -> None:
    """The model's state dict as a plain safetensors file, for anybody's `load_file`."""
    session.check_whole()
    write_weights(path, session.persistent.items(session.persistent.weights()))


def load(session: Session, path: Path | Found) -> Found:
    """Go on from a checkpoint: the newest in a folder that is not damaged, or one file.

    Random states and learning rates are as they were, a step that had failed is undone. What does
    not fit changes nothing. Damaged ones in a folder are passed over, with a warning.
    """
    found = path if isinstance(path, Found) else _find(path)
    check_fits(session, found)
    persistent, places = session.persistent, found.content.places
    about = found.about
    updates = about.steps if about.updates is None else about.updates
    with session.refilling(Counts(about.steps, updates, about.gathered)):
        try:
            fill(
                found.path,
                (
                    (places[name], persistent.writing(kept))
                    for name, kept in persistent.tensors().items()
                ),
            )
        except (OSError, TornFile) as error:
            raise PoetError(f"cannot read the checkpoint {found.path}: {error}") from None
    session.program.learning_rates[:] = about.learning_rates
    if len(about.options) == len(session.program.live_options):  # else of poet's own optimizer
        session.program.live_options = about.options
    session.program.load_scaler(about.scaler)
    set_random_state(about.random)
    return found


def check_fits(session: Session, found: Found) -> None:
    """Refuse a checkpoint of another model or optimizer."""
    program = session.program
    mine, theirs = optimizer_text(program.graph, program.layout.rule), found.about.optimizer
    there = {name: place.kind for name, place in found.content.places.items()}
    apart = difference(kinds(session.persistent.tensors()), there)
    if mine != theirs and (apart is None or apart.startswith("another optimizer")):
        apart = f"another optimizer: it is {theirs} there and {mine} here"
    rates = (len(found.about.learning_rates), len(session.program.learning_rates))
    if apart is None and rates[0] != rates[1]:
        apart = f"another optimizer: it has {rates[0]} parameter groups, not {rates[1]}"
    if apart:
        raise PoetError(f"the checkpoint {found.path} is of {apart}")
    _check_scaler(session, found.about.scaler, f"the checkpoint {found.path}")
    try:
        check_random_state(found.about.random)
    except PoetError as error:
        raise PoetError(f"the checkpoint {found.path} cannot be used: {error}") from None


def _check_scaler(session: Session, there: ScalerState | None, what: str) -> None:
    if (there is None) != (session.program.scaler_state is None):
        raise PoetError(
            f"{what} {'has no' if there is None else 'has a'} scaler of the loss: "
            f"make the trainer {'without' if there is None else 'with'} scaler="
        )


def _find(path: Path) -> Found:
    if path.suffix == SINGLE:
        return single(path)
    return newest(path, lambda message: warnings.warn(message, PoetWarning, stacklevel=6))
