"""Session: steps of one model under plans, one plan for each batch shape, or other key.

It runs what it is given: programs with their plans, and a store for their pages. Where parameters,
buffers and optimizer state live in the store between steps, the model shows NaN; `unpaged` brings
them back until the next step. Who captures and plans is `poet.training`; who saves and loads is
`state.saving`.

A step that fails after its first update leaves a model that is neither before nor after it. Nothing
of it is given away until a checkpoint or a state dict has been loaded, which undoes the step.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from poet.errors import PoetError
from poet.runtime.state.persistent import PersistentState
from poet.runtime.step.executor import Executor
from poet.runtime.step.machine import Machine
from poet.runtime.stores.base import Store
from poet.tracer.gathered import Counts
from poet.tracer.program import Program, Result
from poet.values.plan import Plan

_PAGES = 1_000_000
"""Page numbers that each plan has to itself."""


class Session:
    """Steps of a model. `lap` is told when each instruction of a step has ended (`Executor`)."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        store: Store | None = None,
        key: Hashable | None = None,
        lap: Callable[[int], None] | None = None,
    ) -> None:
        self.program, self.plan, self.store = program.for_plan(plan), plan, store
        self.counts = program.counts  # those of a torch optimizer, before this session
        self.is_paged = "store" in plan.budget.start.values()
        self.peak_bytes = 0
        self.last: Machine | None = None
        self.is_broken = False
        self.persistent = PersistentState(self.program, store)
        self._lap = lap
        self._executors: dict[Hashable, Executor] = {}
        self._added = 0
        # In the order in which what lasts is moved all at once (`PersistentState`).
        by_page = sorted(self.program.lasting.items(), key=itemgetter(1))
        self._pages_of = {what: page for page, (what, _) in enumerate(by_page)}
        self._pages: dict[int, int] = {}
        self._in_parts: frozenset[int] = frozenset()
        self.add(key, self.program, plan)

    @property
    def steps(self) -> int:
        """Batches that were trained on, with those before a resume."""
        return self.counts.steps

    @property
    def buffer_bytes(self) -> int:
        """RAM that the store takes for itself."""
        return 0 if self.store is None else self.store.buffer_bytes

    @property
    def paged_bytes(self) -> int:
        """What was moved to and from the store so far."""
        return 0 if self.store is None else self.store.read_bytes + self.store.written_bytes

    @property
    def plans(self) -> dict[Hashable, Plan]:
        """The plans by which it runs, by key."""
        return {key: executor.plan for key, executor in self._executors.items()}

    def add(self, key: Hashable, program: Program, plan: Plan) -> Executor:
        """Run batches of this key by this plan. Pages of the store are laid out anew."""
        self._added += 1
        first_page = _PAGES * self._added
        for what in program.lasting:
            self._pages_of.setdefault(what, len(self._pages_of))
        executor = Executor(program, plan, self.store, first_page, self._pages_of, self._lap)
        pages, in_parts = {**self._pages, **executor.pages}, self._in_parts | executor.in_parts
        if self.store is not None and (pages, in_parts) != (self._pages, self._in_parts):
            self.store.reserve(pages, in_parts)
            self._pages, self._in_parts = pages, in_parts
        self._executors[key] = executor
        self._store_constants()
        return executor

    def _store_constants(self) -> None:
        """After pages were laid out anew."""
        for executor in self._executors.values():
            executor.store_constants()

    def executor(self, key: Hashable = None) -> Executor | None:
        """Who runs batches of this key; None where none was added."""
        self.check_whole()
        return self._executors.get(key)

    def can_add(self, program: Program) -> bool:
        """Whether all that this program keeps from step to step is kept, saved and paged here."""
        mine, theirs = self.program.lasting.keys(), program.lasting.keys()
        if self.is_paged:
            return mine == theirs
        return theirs <= mine or not self.program.layout.member  # nothing of it but the model

    def forget(self, key: Hashable) -> None:
        """Let go of what runs batches of this key, and of pages that nobody else has."""
        del self._executors[key]
        pages = {page for executor in self._executors.values() for page in executor.pages}
        self._pages = {page: nbytes for page, nbytes in self._pages.items() if page in pages}

    def run(self, executor: Executor, batch: Any) -> Result:
        """One step: the loss, and the gradients where no optimizer uses them up."""
        persistent = self.persistent
        if self.is_paged and not persistent.away:
            try:
                persistent.leave()
            except BaseException:  # a page that could not be written leaves all in RAM
                self.is_broken = persistent.away
                raise
        self.program.lend(executor.program)
        executor.program.counts = self.counts
        machine, given = executor.prepared(batch)
        try:
            result = executor.follow(machine, given)
        except BaseException:
            is_hidden = persistent.hide_empty()
            self.is_broken = machine.has_updated or is_hidden or persistent.away
            raise
        if persistent.away:  # what the plan left in RAM is in the store, too
            persistent.empty()
        self.last = machine
        self.counts = executor.program.counts
        self.peak_bytes = max(self.peak_bytes, machine.peak_bytes + self.buffer_bytes)
        return result

    @contextlib.contextmanager
    def unpaged(self) -> Iterator[nn.Module]:
        """The model with its parameters in RAM, to evaluate or save; it may pass the budget."""
        if self.persistent.away:
            self.check_whole()
            self.persistent.come_back()
            self._lend()
        yield self.program.model

    @contextlib.contextmanager
    def refilling(self, counts: Counts) -> Iterator[None]:
        """While all that lasts is written anew: unless all of it is, the session is broken."""
        self.is_broken = True
        self.persistent.begin_filling(self._pages, self._in_parts)
        self._store_constants()
        yield
        self.persistent.end_filling()
        self._lend()
        self.counts = counts
        self.is_broken = False

    def check_whole(self) -> None:
        """Refuse to go on with what a failed step left."""
        if self.is_broken:
            raise PoetError(
                "a step of this trainer failed halfway, so its model is neither before nor after "
                "that step: load a checkpoint, or a state dict"
            )

    def close(self, bring_back: bool = True) -> None:
        """Bring parameters back into RAM, unless a step failed. The store is its owner's."""
        if bring_back and not self.is_broken:
            with self.unpaged():
                pass
        self._executors.clear()

    def _lend(self) -> None:
        """Tell the programs of other batch shapes where the model's own tensors are."""
        for executor in self._executors.values():
            self.program.lend(executor.program)


def shape_text(batch: Any) -> str:
    """What tells batches apart that need plans of their own: shapes, layouts, dtypes, constants."""
    leaves = torch.utils._pytree.tree_flatten_with_path(
        dict(batch) if isinstance(batch, dict) else batch
    )[0]
    return repr([(str(path), _about(x)) for path, x in leaves])


def _about(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf).__qualname__, leaf
    strides = leaf.stride() if leaf.layout == torch.strided else None
    return list(leaf.shape), strides, leaf.dtype, leaf.requires_grad
