"""Trainer: training steps that never take more RAM than they were given.

    trainer = poet.Trainer(model, loss_fn, optimizer, example=(x, y), ram="2 GiB", store="pages/")
    for x, y in loader:
        loss = trainer.step(x, y)

The first step of a batch shape is captured and planned; further ones only run. Updates happen
inside the step, in place, on the model's own parameters. With `params="paged"` parameters, buffers
and optimizer state live in the store between steps and the model shows NaN; `unpaged()` brings them
back until the next step. With `params="streamed"` they live there, too, and ops may read large ones
in tiles, so that they never are whole in RAM.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch

from poet.errors import PoetError
from poet.runtime.heap import keep_freed_memory
from poet.runtime.state.keeping import State
from poet.runtime.step.executor import Executor
from poet.runtime.step.machine import Machine
from poet.runtime.stores.base import Store
from poet.runtime.stores.file_store import CHUNK_BYTES, FileStore
from poet.runtime.stores.page_file import BLOCK_BYTES
from poet.tracer.program import Program, Result
from poet.values.plan import Plan
from poet.values.quantities import amount_text, bytes_text, parse_bytes
from poet.values.schedule import PageIn, PageOut
from poet.values.schedule import Params as Kind

_PAGES = 1_000_000
"""Page numbers that each plan has to itself."""
Params = Literal["auto", "resident", "paged", "streamed"]
Capture = Callable[[Any, bool], Program]
"""Captures the step of a batch; streaming needs updates in one op with their gradients."""


class Planner(Protocol):
    """Whoever makes a plan for a program within so many bytes."""

    def __call__(self, program: Program, ram_bytes: int | None, kind: Kind) -> Plan: ...


class Trainer(State):
    """Trains a model under plans. Use `poet.Trainer`, which knows how to capture and to plan."""

    def __init__(
        self,
        capture: Capture,
        planner: Planner,
        example: Any,
        *,
        ram: str | int | None = None,
        store: str | Path | Store | None = None,
        plan: Plan | None = None,
        params: Params = "auto",
        quiet: bool = False,
        lap: Callable[[int], None] | None = None,
    ) -> None:
        if params not in get_args(Params):
            kinds = ", ".join(get_args(Params))
            raise PoetError(f"params is {params!r}; it must be one of {kinds}")
        if params in ("paged", "streamed") and store is None:
            raise PoetError(f"params is {params!r}, which needs a store: give a folder")
        keep_freed_memory()
        self._capture, self._planner = capture, planner
        self._params: Params = params
        self._quiet = quiet
        self._lap = lap  # told when each instruction of a step has ended (`Executor`)
        asked = None if ram is None else parse_bytes(ram, "RAM budget")
        self._store = _opened(store, asked) if isinstance(store, str | Path) else store
        self._owns_store = isinstance(store, str | Path)
        self._executors: dict[str, Executor] = {}
        try:
            self._set_up(example, plan, asked)
        except BaseException:  # nobody else can close it
            self._close_store()
            raise

    def _set_up(self, example: Any, plan: Plan | None, asked: int | None) -> None:
        held = self._store.buffer_bytes if self._store is not None else 0
        if asked is not None and asked <= held:
            raise PoetError(
                f"the budget is {asked:,} bytes; the store's buffers alone take {held:,}"
            )
        self.budget_bytes = asked
        self.ram_bytes = None if asked is None else asked - held
        self.store_buffer_bytes = held
        self._laid_out: dict[int, int] = {}
        self._in_parts: frozenset[int] = frozenset()
        self.peak_bytes = 0
        self.last: Machine | None = None
        if plan is None:
            program, plan, self._kind = self._chosen(example)
        else:
            paged = any(place == "store" for place in plan.budget.start.values())
            self._kind = "paged" if paged else "resident"
            if self._params == "streamed" or plan.streamed_runs:
                self._kind = "streamed"
            program = self._capture(example, self._kind == "streamed")
        super().__init__(program, self._store)
        self.plan = plan
        self._paged = any(place == "store" for place in plan.budget.start.values())
        self._executors[self._shape(example)] = self._executor(self.program, self.plan)

    # Steps

    def step(self, *batch: Any, **named: Any) -> torch.Tensor:
        """One training step on a batch like the example. Gives the loss."""
        return self.run(batch if batch else named).loss

    def run(self, batch: Any) -> Result:
        """The same, with the gradients where no optimizer uses them up."""
        executor = self.executor_for(batch)
        if self._paged and not self._lasting.away:
            try:
                self._lasting.leave()
            except BaseException:  # a page that could not be written leaves all in RAM
                self._broken = self._lasting.away
                raise
        self.program.lend(executor.program)
        executor.program.steps_done = self.steps
        try:
            result, machine = executor.run(batch)
        except BaseException:
            self._broken = True
            self._lasting.hide_empty()
            raise
        if self._lasting.away:  # what the plan left in RAM is in the store, too
            self._lasting.empty()
        self.last = machine
        self.steps = executor.program.steps_done
        self.peak_bytes = max(self.peak_bytes, machine.peak_bytes + self.store_buffer_bytes)
        return result

    def executor_for(self, batch: Any) -> Executor:
        """Who runs batches of this shape; a new shape is captured and planned first."""
        self._check_whole()
        shape = self._shape(batch)
        if shape not in self._executors:
            with self.unpaged():
                program = self._capture(batch, self._kind == "streamed")
                program.share_state(self.program)
                plan = self._planned(program, self._kind)
                self._executors[shape] = self._executor(program, plan)
        return self._executors[shape]

    @staticmethod
    def _shape(batch: Any) -> str:
        leaves = torch.utils._pytree.tree_flatten_with_path(
            dict(batch) if isinstance(batch, dict) else batch
        )[0]
        return repr(
            [
                (str(path), list(x.shape), x.dtype)
                if isinstance(x, torch.Tensor)
                else (str(path), x)
                for path, x in leaves
            ]
        )

    def _chosen(self, example: Any) -> tuple[Program, Plan, Kind]:
        """The example's step, a plan for it, and where parameters live by that plan."""
        kinds: tuple[Kind, ...] = (
            ("resident", "paged", "streamed") if self._params == "auto" else (self._params,)
        )
        if self._params == "auto" and self._store is None:
            kinds = ("resident",)
        program, refused = None, None
        for kind in kinds:
            if program is None or kind == "streamed":
                program = None  # its optimizer state goes before another's is made
                program = self._capture(example, kind == "streamed")
            try:
                return program, self._planned(program, kind), kind
            except _NoPlanError as error:
                refused = error
        assert refused is not None
        raise refused

    def _planned(self, program: Program, kind: Kind) -> Plan:
        plan = self._planner(program, self.ram_bytes, kind)
        if not plan.schedule:
            raise _NoPlanError(f"no plan within the budget: {plan.status}. {plan.reason}")
        self._say(plan)
        return plan

    def _executor(self, program: Program, plan: Plan) -> Executor:
        first_page = _PAGES * (1 + len(self._executors))
        executor = Executor(program, plan, self._store, first_page, self._lap)
        pages, in_parts = {**self._laid_out, **executor.pages}, self._in_parts | executor.in_parts
        if self._store is not None and (pages, in_parts) != (self._laid_out, self._in_parts):
            self._store.reserve(pages, in_parts)
            self._laid_out, self._in_parts = pages, in_parts
        return executor

    def _say(self, plan: Plan) -> None:
        if self._quiet:
            return
        outs, ins = (sum(isinstance(s, kind) for s in plan.schedule) for kind in (PageOut, PageIn))
        limit = None if self.ram_bytes is None else plan.budget.ram_bytes
        of = ", no limit" if limit is None else f" of {bytes_text(limit)}"
        streamed = len(plan.streamed_runs)
        streams = f", {streamed} ops streamed" if streamed else ""
        gap = "" if plan.gap is None else f", within {plan.gap:.1%} of the best possible"
        print(
            f"poet: {plan.graph.name}: peak {bytes_text(plan.peak_bytes or 0)}{of}; "
            f"{plan.recomputed} ops recomputed, {outs} page-outs, {ins} page-ins{streams}; "
            f"{amount_text(plan.seconds or 0.0, 's')} predicted{gap}",
            file=sys.stderr,
        )

    def _lend(self) -> None:
        for executor in self._executors.values():
            self.program.lend(executor.program)

    @property
    def is_paged(self) -> bool:
        """Whether parameters and state live in the store between steps."""
        return self._paged

    @property
    def paged_bytes(self) -> int:
        """What was moved to and from the store so far."""
        return 0 if self._store is None else self._store.read_bytes + self._store.written_bytes

    @property
    def removed_stale(self) -> tuple[Path, ...]:
        """Page files of processes that had died, removed when this trainer's was made."""
        return getattr(self._store, "removed_stale", ())

    def close(self, bring_back: bool = True) -> None:
        """Bring parameters back into RAM, unless a step failed, and remove the page file."""
        try:
            if bring_back and not self._broken:
                with self.unpaged():
                    pass
        finally:
            self._close_store()

    def _close_store(self) -> None:
        if self._store is not None and self._owns_store:
            self._store.close()
        self._executors.clear()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _NoPlanError(PoetError):
    """There is none, or none was found."""


def _opened(folder: str | Path, ram_bytes: int | None) -> FileStore:
    """A store whose buffers take a few percent of the budget, and no more than they need."""
    if ram_bytes is None:
        return FileStore(folder)
    share = ram_bytes // 64 // BLOCK_BYTES * BLOCK_BYTES
    return FileStore(folder, chunk_bytes=max(4 * BLOCK_BYTES, min(share, CHUNK_BYTES)))
