"""What lasts from step to step: parameters, buffers and optimizer state, and where it is.

It is in RAM, in the model's own storages, or away: in the store, while the storages are empty and
the model shows NaN. Here it moves between the two, and each tensor can be brought into RAM alone,
to be written to a file or filled from one, so that keeping a model takes no more RAM than its
largest tensor.

Names: `model/…` for the model's own, `loss/…` for those of a loss that has some, and
`optimizer/…/momentum_buffer`. A tensor that the model knows by several names has the first.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import torch

from poet.errors import PoetError
from poet.runtime.state.tensor_file import Item, Kind, kind_of
from poet.runtime.stores.base import Store
from poet.tracer.program import Program

_LOSS = "loss_fn."
_STATE = "optimizer/"


Present = Callable[[], contextlib.AbstractContextManager[torch.Tensor]]
"""Brings a tensor into RAM for the length of a block."""


class KeptTensor(NamedTuple):
    """One tensor that lasts."""

    tensor: torch.Tensor
    page: int | None = None
    """Its page in the store; None where the step does not know the tensor, so that it stays."""
    nbytes: int = 0
    """Of its storage, when that is not empty."""


class PersistentState:
    """All that lasts of a program."""

    def __init__(self, program: Program, store: Store | None) -> None:
        self.program = program
        self.store = store
        self.away = False
        self._hidden = False

    def homes(self) -> list[KeptTensor]:
        """What the step uses, in the order of its pages."""
        homes, graph = self.program.homes(), self.program.graph
        return [
            KeptTensor(homes[i], page, graph.tensors[i].nbytes)
            for page, i in enumerate(sorted(homes))
        ]

    # All at once

    def leave(self) -> None:
        """Move all into the store. Until all of it is there, nothing changes."""
        assert self.store is not None
        for kept in self.homes():
            self.store.write(_page(kept), kept.tensor.untyped_storage()).wait()
        self.away = True
        self.program.set_aside()
        self.empty()

    def come_back(self) -> None:
        """Bring all into RAM; where a page does not come, none does."""
        assert self.store is not None
        try:
            for kept in self.homes():
                kept.tensor.untyped_storage().resize_(kept.nbytes)
                self.store.read(_page(kept), kept.tensor.untyped_storage()).wait()
        except BaseException:
            self.empty()
            raise
        self.program.put_back()
        self.away = False

    def hide_empty(self) -> bool:
        """After a step that failed: nobody may see a storage that it had emptied. If any, True."""
        self._settle()
        homes = self.homes()
        if any(kept.tensor.untyped_storage().nbytes() < kept.nbytes for kept in homes):
            self._hidden = True
            self.program.set_aside()
        return self._hidden

    def empty(self) -> None:
        """Give back the RAM of what is in the store."""
        for kept in self.homes():
            kept.tensor.untyped_storage().resize_(0)

    def _settle(self) -> None:
        """Wait for what a step that failed left on its way."""
        if self.store is not None:
            with contextlib.suppress(Exception):  # the step's own error is told already
                self.store.flush()

    # One by one

    def tensors(self) -> dict[str, KeptTensor]:
        """All tensors that last, by name, those that no step touches too."""
        layout, model = self.program.layout, self.program.model
        homes = {kept.page: kept for kept in self.homes()}
        page = {i: number for number, i in enumerate(sorted(self.program.homes()))}
        found: dict[str, KeptTensor] = {}
        for name, i in (*layout.parameters.items(), *layout.buffers.items()):
            found[_name(name)] = homes[page[i]]
        known = {id(each) for name, each in _own(model) if _name(name) in found}
        for name, each in _own(model):
            if id(each) not in known:
                found[_name(name)] = KeptTensor(each)
                known.add(id(each))
        for owner, held in layout.state.items():
            for what, i in held.items():
                found[f"{_STATE}{owner}/{what}"] = homes[page[i]]
        return found

    def weights(self) -> dict[str, KeptTensor]:
        """What the model's own state dict has, under each of its names."""
        tensors = self.tensors()
        return {name: tensors[ours] for name, ours in self._state_names().items()}

    def rest(self) -> dict[str, KeptTensor]:
        """What is in neither the model's state dict nor the optimizer's state."""
        listed = {*self._state_names().values()}
        return {
            name: kept
            for name, kept in self.tensors().items()
            if name not in listed and not name.startswith(_STATE)
        }

    def _state_names(self) -> dict[str, str]:
        """For each name in the model's state dict, the one that its tensor has here."""
        tensors, model = self.tensors(), self.program.model
        names = {id(each): _name(name) for name, each in _own(model) if _name(name) in tensors}
        found = {}
        for name, value in model.state_dict(keep_vars=True).items():
            if id(value) not in names:
                raise PoetError(
                    f"the model's state dict has {name}, which is neither a parameter nor a buffer "
                    "of it: POET cannot keep it. A checkpoint (trainer.save) leaves it out"
                )
            found[name] = names[id(value)]
        return found

    def state(self) -> dict[str, KeptTensor]:
        """The optimizer's."""
        return {name: kept for name, kept in self.tensors().items() if name.startswith(_STATE)}

    def items(self, tensors: dict[str, KeptTensor]) -> dict[str, Item]:
        """The same, to be written."""
        return {
            name: Item(kind_of(kept.tensor), self.reading(kept)) for name, kept in tensors.items()
        }

    def reading(self, kept: KeptTensor) -> Present:
        """The tensor in RAM, for as long as one looks at it."""

        @contextlib.contextmanager
        def present() -> Iterator[torch.Tensor]:
            if not self.away or kept.page is None:
                yield kept.tensor
                return
            assert self.store is not None
            storage = kept.tensor.untyped_storage()
            storage.resize_(kept.nbytes)
            try:
                self.store.read(kept.page, storage, now=True).wait()
                yield kept.tensor
            finally:
                storage.resize_(0)

        return present

    def writing(self, kept: KeptTensor) -> Present:
        """The tensor in RAM, to be filled, and then back to where it was."""

        @contextlib.contextmanager
        def present() -> Iterator[torch.Tensor]:
            storage = kept.tensor.untyped_storage()
            if kept.page is not None and storage.nbytes() < kept.nbytes:
                storage.resize_(kept.nbytes)
            yield kept.tensor
            if self.away and kept.page is not None:
                assert self.store is not None
                self.store.write(kept.page, storage, now=True).wait()
                storage.resize_(0)

        return present

    def begin_filling(self, pages: Mapping[int, int], in_parts: Collection[int]) -> None:
        """Before all is written anew: whatever a failed step left, here or in the store, goes."""
        self._settle()
        if self.store is not None and pages:
            self.store.reserve(pages, in_parts)
        if self.away:
            self.program.set_aside()
            self.empty()

    def end_filling(self) -> None:
        """All is written: in RAM, the model shows it again if it had been hidden."""
        if self._hidden and not self.away:
            self.program.set_aside()
            self.program.put_back()
        self._hidden = False


def kinds(tensors: Mapping[str, KeptTensor]) -> dict[str, Kind]:
    return {name: kind_of(kept.tensor) for name, kept in tensors.items()}


def _page(kept: KeptTensor) -> int:
    assert kept.page is not None
    return kept.page


def _own(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The model's tensors as it has them now, under every name."""
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _name(known: str) -> str:
    """In files, of what the program knows by this name."""
    if known.startswith(_LOSS):
        return f"loss/{known.removeprefix(_LOSS)}"
    return f"model/{known}"
