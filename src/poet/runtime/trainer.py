"""Trainer: training steps that never take more RAM than they were given.

    trainer = poet.Trainer(model, loss_fn, optimizer, example=(x, y), ram="2 GiB", store="pages/")
    for x, y in loader:
        loss = trainer.step(x, y)

The first step of a batch shape is captured and planned; further ones only run. Updates happen
inside the step, in place, on the model's own parameters. With `params="paged"` parameters, buffers
and optimizer state live in the store between steps and the model shows NaN; `unpaged()` brings them
back until the next step.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from poet.errors import PoetError
from poet.quantities import amount_text, bytes_text, parse_bytes
from poet.runtime.checkpoints import read_checkpoint, write_checkpoint
from poet.runtime.executor import Executor
from poet.runtime.file_store import CHUNK_BYTES, FileStore
from poet.runtime.machine import Machine
from poet.runtime.page_file import BLOCK_BYTES
from poet.runtime.stores import Store
from poet.schedule import Compute, PageIn, PageOut, Plan
from poet.tracer.program import Program, Result

_PAGES = 1_000_000
"""Page numbers that each plan has to itself."""
Params = Literal["auto", "resident", "paged"]


class Planner(Protocol):
    """Whoever makes a plan for a program within so many bytes."""

    def __call__(
        self, program: Program, ram_bytes: int | None, params: Literal["resident", "paged"]
    ) -> Plan: ...


class Trainer:
    """Trains a model under plans. Use `poet.Trainer`, which knows how to capture and to plan."""

    def __init__(
        self,
        capture: Callable[[Any], Program],
        planner: Planner,
        example: Any,
        *,
        ram: str | int | None = None,
        store: str | Path | Store | None = None,
        plan: Plan | None = None,
        params: Params = "auto",
        quiet: bool = False,
    ) -> None:
        if params not in ("auto", "resident", "paged"):
            raise PoetError(f"params is {params!r}; it must be auto, resident or paged")
        self._capture, self._planner = capture, planner
        self._params: Params = params
        self._quiet = quiet
        asked = None if ram is None else parse_bytes(ram, "RAM budget")
        self._store = _opened(store, asked) if isinstance(store, str | Path) else store
        self._owns_store = isinstance(store, str | Path)
        held = self._store.buffer_bytes if self._store is not None else 0
        if asked is not None and asked <= held:
            raise PoetError(
                f"the budget is {asked:,} bytes; the store's buffers alone take {held:,}"
            )
        self.budget_bytes = asked
        self.ram_bytes = None if asked is None else asked - held
        self.store_buffer_bytes = held
        self._executors: dict[str, Executor] = {}
        self._laid_out: dict[int, int] = {}
        self.peak_bytes = 0
        self.steps = 0
        self.last: Machine | None = None
        self.program = capture(example)
        self.plan = self._planned(self.program) if plan is None else plan
        self._paged = any(place == "store" for place in self.plan.budget.start.values())
        self._away = False
        self._executors[self._shape(example)] = self._executor(self.program, self.plan)

    # Steps

    def step(self, *batch: Any, **named: Any) -> torch.Tensor:
        """One training step on a batch like the example. Gives the loss."""
        return self.run(batch if batch else named).loss

    def run(self, batch: Any) -> Result:
        """The same, with the gradients where no optimizer uses them up."""
        executor = self.executor_for(batch)
        if self._paged and not self._away:
            self._page_away()
        self.program.lend(executor.program)
        executor.program.steps_done = self.steps
        try:
            result, machine = executor.run(batch)
        except BaseException:
            self._broken = True
            raise
        self.last = machine
        self.steps = executor.program.steps_done
        self.peak_bytes = max(self.peak_bytes, machine.peak_bytes + self.store_buffer_bytes)
        return result

    _broken = False

    def executor_for(self, batch: Any) -> Executor:
        """Who runs batches of this shape; a new shape is captured and planned first."""
        if self._broken:
            raise PoetError(
                "a step of this trainer failed halfway, so its model is neither before nor after "
                "that step: load a state dict into a new trainer"
            )
        shape = self._shape(batch)
        if shape not in self._executors:
            with self.unpaged():
                program = self._capture(batch)
                program.share_state(self.program)
                plan = self._planned(program)
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

    def _planned(self, program: Program) -> Plan:
        kinds: list[Literal["resident", "paged"]] = (
            ["resident", "paged"] if self._params == "auto" else [self._params]
        )
        if hasattr(self, "_paged"):  # later shapes leave the parameters where they are
            kinds = ["paged"] if self._paged else ["resident"]
        plan = None
        for kind in kinds:
            if kind == "paged" and self._store is None and self._params == "auto":
                break
            plan = self._planner(program, self.ram_bytes, kind)
            if plan.schedule:
                break
        assert plan is not None
        if not plan.schedule:
            raise PoetError(f"no plan within the budget: {plan.status}. {plan.reason}")
        self._say(plan)
        return plan

    def _executor(self, program: Program, plan: Plan) -> Executor:
        executor = Executor(program, plan, self._store, _PAGES * (1 + len(self._executors)))
        pages = {**self._laid_out, **executor.pages}
        if self._store is not None and pages != self._laid_out:
            self._store.reserve(pages)
            self._laid_out = pages
        return executor

    def _say(self, plan: Plan) -> None:
        if self._quiet:
            return
        counts = {
            kind: sum(isinstance(s, kind) for s in plan.schedule)
            for kind in (Compute, PageOut, PageIn)
        }
        again = counts[Compute] - len(plan.graph.ops)
        budget = "no limit" if plan.budget.ram_bytes is None else bytes_text(plan.budget.ram_bytes)
        gap = "" if plan.gap is None else f", within {plan.gap:.1%} of the best possible"
        print(
            f"poet: {plan.graph.name}: peak {bytes_text(plan.peak_bytes or 0)} of {budget}; "
            f"{again} ops recomputed, {counts[PageOut]} page-outs, {counts[PageIn]} page-ins; "
            f"{amount_text(plan.seconds or 0.0, 's')} predicted{gap}",
            file=sys.stderr,
        )

    # Parameters in the store

    def _page_away(self) -> None:
        """Move all that lasts into the store, and empty the model's storages."""
        assert self._store is not None
        self.program.set_aside()
        for page, home in self._lasting():
            self._store.write(page, home.untyped_storage()).wait()
            home.untyped_storage().resize_(0)
        self._away = True

    def _lasting(self) -> list[tuple[int, torch.Tensor]]:
        homes = self.program.homes()
        return [(page, homes[i]) for page, i in enumerate(sorted(homes))]

    @contextlib.contextmanager
    def unpaged(self) -> Iterator[nn.Module]:
        """The model with its parameters in RAM, to evaluate or save; it may pass the budget."""
        if not self._away:
            yield self.program.model
            return
        assert self._store is not None
        for page, home in self._lasting():
            home.untyped_storage().resize_(self._laid_out[page])
            self._store.read(page, home.untyped_storage()).wait()
        self.program.put_back()
        for executor in self._executors.values():
            self.program.lend(executor.program)
        self._away = False
        yield self.program.model

    # State

    def state_dict(self) -> dict[str, Any]:
        """The model's state dict, the optimizer's state by parameter, and the steps made."""
        with self.unpaged() as model:
            return {
                "model": {name: value.clone() for name, value in model.state_dict().items()},
                "optimizer": {
                    name: {kept: value.clone() for kept, value in held.items()}
                    for name, held in self.program.state.items()
                },
                "steps": self.steps,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state dict of a trainer of the same model and optimizer."""
        with self.unpaged() as model:
            mine = {name: set(held) for name, held in self.program.state.items()}
            theirs = {name: set(held) for name, held in state["optimizer"].items()}
            if mine != theirs:
                raise PoetError("the state dict is of another optimizer, or of another model")
            model.load_state_dict(state["model"])
            for name, held in self.program.state.items():
                for kept, value in held.items():
                    value.copy_(state["optimizer"][name][kept])
            self.steps = state["steps"]

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: all of `state_dict` in one file, whole or not at all."""
        write_checkpoint(self.state_dict(), Path(path))

    def load(self, path: str | Path) -> None:
        """Go on from a checkpoint."""
        self.load_state_dict(read_checkpoint(Path(path)))

    @property
    def is_paged(self) -> bool:
        """Whether parameters and state live in the store between steps."""
        return self._paged

    @property
    def paged_bytes(self) -> int:
        """What was moved to and from the store so far."""
        return 0 if self._store is None else self._store.read_bytes + self._store.written_bytes

    @property
    def learning_rates(self) -> list[float]:
        """One a parameter group; change them between steps as you like."""
        return self.program.learning_rates

    def close(self) -> None:
        """Bring parameters back and remove the page file."""
        with self.unpaged():
            pass
        if self._store is not None and self._owns_store:
            self._store.close()
        self._executors.clear()

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(folder: str | Path, ram_bytes: int | None) -> FileStore:
    """A store whose buffers take a few percent of the budget, and no more than they need."""
    if ram_bytes is None:
        return FileStore(folder)
    share = ram_bytes // 64 // BLOCK_BYTES * BLOCK_BYTES
    return FileStore(folder, chunk_bytes=max(4 * BLOCK_BYTES, min(share, CHUNK_BYTES)))
