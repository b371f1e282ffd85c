"""The part of a trainer that lasts: what it can give away, take back, save and load.

`trainer` makes steps of it. Where a step failed halfway, the model is neither before nor after it:
nothing is given away until a checkpoint or a state dict has been loaded, which undoes the step.
"""

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from poet.errors import PoetError, PoetWarning
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
from poet.runtime.state.persistent import Lasting, kinds
from poet.runtime.state.random_state import random_state, set_random_state
from poet.runtime.state.tensor_file import TornFile, fill, kind_of
from poet.runtime.stores.base import Store
from poet.tracer.program import Program
from poet.values.plan import Plan


class State(ABC):
    """Subclasses make plans and steps."""

    plan: Plan
    _laid_out: dict[int, int]
    """The pages in the store, with their bytes."""
    _in_parts: frozenset[int]
    """Those of them that move in parts."""

    def __init__(self, program: Program, store: Store | None) -> None:
        self.program = program
        self.steps = program.steps_done  # those of a torch optimizer, before this trainer
        self._lasting = Lasting(program, store)
        self._broken = False
        self._folders: set[Path] = set()
        """Where this training keeps checkpoints, or had them from."""

    @abstractmethod
    def _lend(self) -> None:
        """Tell the programs of other batch shapes where the lasting tensors are."""

    def _check_whole(self) -> None:
        if self._broken:
            raise PoetError(
                "a step of this trainer failed halfway, so its model is neither before nor after "
                "that step: load a checkpoint, or a state dict"
            )

    @property
    def learning_rates(self) -> list[float]:
        """One a parameter group; change them between steps as you like."""
        return self.program.learning_rates

    @contextlib.contextmanager
    def unpaged(self) -> Iterator[nn.Module]:
        """The model with its parameters in RAM, to evaluate or save; it may pass the budget."""
        if self._lasting.away:
            self._check_whole()
            self._lasting.come_back()
            self._lend()
        yield self.program.model

    def state_dict(self) -> dict[str, Any]:
        """The model's state dict, the optimizer's state by parameter, and the steps made.

        `rest` has what a step may change besides: buffers that the model's state dict leaves out,
        and what belongs to the loss.
        """
        self._check_whole()
        with self.unpaged() as model:
            return {
                "model": {name: value.clone() for name, value in model.state_dict().items()},
                "optimizer": {
                    name: {kept: value.clone() for kept, value in held.items()}
                    for name, held in self.program.state.items()
                },
                "rest": {name: kept.tensor.clone() for name, kept in self._lasting.rest().items()},
                "steps": self.steps,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state dict of a trainer of the same model and optimizer."""
        given = {f"model/{name}": value for name, value in state["model"].items()}
        given |= state.get("rest", {})
        for owner, held in state["optimizer"].items():
            given |= {f"optimizer/{owner}/{kept}": value for kept, value in held.items()}
        mine = {f"model/{name}": kept for name, kept in self._lasting.weights().items()}
        mine |= self._lasting.rest() | self._lasting.state()
        apart = difference(kinds(mine), {name: kind_of(value) for name, value in given.items()})
        if apart:
            raise PoetError(f"the state dict is of {apart}")
        with self._filling(state["steps"]):
            for name, kept in mine.items():
                with self._lasting.writing(kept)() as tensor:
                    tensor.detach().copy_(given[name])

    def save(self, path: str | Path | Generations, origin: Origin | None = None) -> Path:
        """Write a checkpoint, whole or not at all: all of `state_dict`, and the random states.

        A path that ends in `.safetensors` is one file; any other is a folder, which keeps the last
        two. It is written tensor by tensor, so that the budget holds. Gives the file.
        """
        self._check_whole()
        about = Checkpoint(
            steps=self.steps,
            learning_rates=tuple(map(float, self.learning_rates)),
            optimizer=optimizer_text(self.program.graph),
            origin=origin or Origin(),
            random=random_state(self.program.model_device),
            graph_fingerprint=self.program.fingerprint,
            plan_fingerprint=plan_fingerprint(self.plan),
        )
        items = self._lasting.items(self._lasting.tensors())
        if isinstance(path, Generations):
            return path.save(about, items)
        if Path(path).suffix == SINGLE:
            write_checkpoint(Path(path), about, items)
            return Path(path)
        with Generations(path) as folder:
            here = folder.folder.resolve()
            if folder.steps and here not in self._folders:
                raise PoetError(
                    f"{path} has checkpoints of another training, up to step {folder.steps[-1]:,}: "
                    "load them to go on from there, or give another folder"
                )
            self._folders.add(here)
            return folder.save(about, items)

    def save_weights(self, path: str | Path) -> None:
        """The model's state dict as a plain safetensors file, for anybody's `load_file`."""
        self._check_whole()
        write_weights(Path(path), self._lasting.items(self._lasting.weights()))

    def load(self, path: str | Path | Found) -> Checkpoint:
        """Go on from a checkpoint: the newest in a folder that is not damaged, or one file.

        Random states and learning rates are as they were, a step that had failed is undone. What
        does not fit changes nothing. Damaged ones in a folder are passed over, with a warning.
        """
        found = path if isinstance(path, Found) else _find(Path(path))
        self.check_fits(found)
        places = found.content.places
        with self._filling(found.about.steps):
            try:
                fill(
                    found.path,
                    (
                        (places[name], self._lasting.writing(kept))
                        for name, kept in self._lasting.tensors().items()
                    ),
                )
            except (OSError, TornFile) as error:
                raise PoetError(f"cannot read the checkpoint {found.path}: {error}") from None
        self.learning_rates[:] = found.about.learning_rates
        set_random_state(found.about.random)
        self._folders.add(found.path.parent.resolve())
        return found.about

    def check_fits(self, found: Found) -> None:
        """Refuse a checkpoint of another model or optimizer."""
        mine, theirs = optimizer_text(self.program.graph), found.about.optimizer
        there = {name: place.kind for name, place in found.content.places.items()}
        apart = difference(kinds(self._lasting.tensors()), there)
        if mine != theirs and (apart is None or apart.startswith("another optimizer")):
            apart = f"another optimizer: it is {theirs} there and {mine} here"
        rates = (len(found.about.learning_rates), len(self.learning_rates))
        if apart is None and rates[0] != rates[1]:
            apart = f"another optimizer: it has {rates[0]} parameter groups, not {rates[1]}"
        if apart:
            raise PoetError(f"the checkpoint {found.path} is of {apart}")

    @contextlib.contextmanager
    def _filling(self, steps: int) -> Iterator[None]:
        """While all that lasts is written anew: unless all of it is, the trainer is broken."""
        self._broken = True
        self._lasting.begin_filling(self._laid_out, self._in_parts)
        yield
        self._lasting.end_filling()
        self._lend()
        self.steps = steps
        self._broken = False


def _find(path: Path) -> Found:
    if path.suffix == SINGLE:
        return single(path)
    return newest(path, lambda message: warnings.warn(message, PoetWarning, stacklevel=5))
