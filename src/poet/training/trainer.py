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

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from poet.errors import PoetError, PoetWarning
from poet.planning.defaults import HERE
from poet.planning.problem import read_costs
from poet.planning.question import terms
from poet.rewrites.granularity import Granularity
from poet.runtime.session import Session, shape_text
from poet.runtime.state import saving
from poet.runtime.state.checkpoints import Checkpoint, Origin
from poet.runtime.state.generations import Found, Generations
from poet.runtime.step.executor import Executor
from poet.runtime.step.machine import Machine
from poet.runtime.stores.base import Store
from poet.tracer.capture import capture
from poet.tracer.gathered import Rates
from poet.tracer.groups import options_of
from poet.tracer.program import Program, Result
from poet.tracer.watch import Watch
from poet.training.guards import guards
from poet.training.planned import PlannedSteps
from poet.training.scaling import ScaledLoss, checked_scaler
from poet.values.device import Costs, Device
from poet.values.optimizers import Optimizer
from poet.values.plan import Plan
from poet.values.profile import Profile
from poet.values.schedule import Goal, Params, Transfers
from poet.values.update_rules import UpdateRule


class TrainingSource(NamedTuple):
    """Captures whole training steps of a model."""

    model: nn.Module
    loss_fn: Callable[..., torch.Tensor] | None
    optimizer: Optimizer | torch.optim.Optimizer | None
    granularity: Granularity
    autocast: torch.dtype | str | None
    cache: bool
    rule: UpdateRule
    scaler: torch.amp.GradScaler | None

    def capture(self, batch: Any) -> Program:
        program = capture(
            self.model,
            self.loss_fn,
            self.optimizer,
            example=batch,
            granularity=self.granularity,
            autocast=self.autocast,
            updates=self.rule,
            cache=self.cache,
        )
        if self.scaler is not None:
            program.scale_by(ScaledLoss(self.scaler, program.model_device))
        return program

    def key(self, batch: Any) -> tuple[bool, str]:
        return self.rule.gathers, shape_text(batch)

    def watch(self) -> Watch:
        roots = {"": self.model, "loss_fn": self.loss_fn}
        options = options_of(self.optimizer, self.rule.has_live_options)
        return Watch(roots, ambient=self.autocast is None, options=options)


class Trainer:
    """Training steps of a model that never take more RAM than they were given.

    `step(*inputs, target)` (or keyword arguments, for a dict example) captures and plans each batch
    shape when it comes first, runs it by the plan, and gives the loss. `ram` is bytes, a size such
    as `"2 GiB"`, a share such as `"60%"` of what keeping everything takes, or `"min"`; by default
    it is what this machine, or the model's GPU, has. `store` is a folder for pages. Plans follow
    the rates of the board `device`, by default a laptop's, or better measured `costs` (a profile,
    or its file); batches of other shapes than the profile's follow its machine's rates.

    `params` says where parameters and optimizer state live between steps: `resident` in RAM,
    `paged` in the store, `streamed` there too, where ops may read large ones in tiles. `auto` is
    the first of these that fits. With tiles, sums are rounded differently than in eager PyTorch.

    With `accumulate=n` every nth step updates, by gradients summed up over n batches, of which each
    counts one part in n. `clip_norm` and `clip_value` clip gradients before an update; a `scaler`
    scales the loss, for float16, and skips updates by gradients that are not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        optimizer: Optimizer | torch.optim.Optimizer | None = None,
        *,
        example: Any,
        ram: str | int | None = None,
        store: str | Path | Store | None = None,
        device: str | Device | None = None,
        costs: Costs | Profile | str | Path | None = None,
        deadline: str | float | None = None,
        minimize: Goal = "joules",
        transfers: Transfers | None = None,
        plan: Plan | None = None,
        params: Params = "auto",
        time_limit: float = 20.0,
        granularity: Granularity = "planning",
        autocast: torch.dtype | str | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        cache: bool = True,
    ) -> None:
        given = read_costs(costs) if isinstance(costs, str | Path) else costs
        scaler = checked_scaler(scaler)
        rule = UpdateRule(
            accumulate=accumulate,
            clip_norm=clip_norm,
            clip_value=clip_value,
            is_scaled=scaler is not None,
            # A plan, or costs, that come from elsewhere are for a step with these as numbers.
            has_live_options=given is None
            and plan is None
            and isinstance(optimizer, torch.optim.Optimizer),
        )
        asked = terms(
            device or (None if isinstance(given, Profile) else HERE),
            ram,
            deadline,
            costs=given,
            transfers=transfers,
            params=params,
            paging=store is not None,
            pinned_roles=("input",),  # the batch is the caller's
            in_torch=True,
        )
        if optimizer is None and rule != UpdateRule():
            raise PoetError(
                "accumulate, clip_norm, clip_value and scaler say how gradients become updates, "
                "and no optimizer is given: give one, or leave them out"
            )
        if optimizer is None:
            warnings.warn(
                "no optimizer is given: steps compute the loss and gradients (trainer.run(batch)) "
                "and change no parameter",
                PoetWarning,
                stacklevel=2,
            )
        if params in ("paged", "streamed") and store is None:
            raise PoetError(f'params="{params}" needs a store: give a folder, store="pages/"')
        source = TrainingSource(
            model, loss_fn, optimizer, granularity, autocast, cache, rule, scaler
        )
        self._rule = rule
        self._gathering = source._replace(rule=msgspec.structs.replace(rule, gathers=True))
        self._planned = PlannedSteps(
            source, asked, example, store=store, plan=plan, minimize=minimize, time_limit=time_limit
        )
        assert asked.board is not None
        is_given = asked.costs is not None and asked.costs.graph == self.plan.graph.fingerprint
        where = (asked.machine or asked.board).title
        self.costs_text = f"costs measured on {where}" if is_given else f"the rates of {where}"
        self.is_measured = asked.costs is not None
        """Whether the plan's seconds and joules were measured: else they are not this machine's."""
        self._guards = guards(optimizer)
        self.gradient_norm: float | None = None
        """That of all gradients at the last update, before `clip_norm` clipped them."""
        self._folders: set[Path] = set()
        """Where this training keeps checkpoints, or had them from."""

    # Steps

    def step(self, *batch: Any, **named: Any) -> torch.Tensor:
        """One training step on a batch like the example. Gives the loss."""
        return self.run(batch if batch else named).loss

    def run(self, batch: Any) -> Result:
        """The same, with the gradients where no optimizer uses them up."""
        with self._planned.alone():
            executor = self.executor_for(batch)  # it may begin another session
            result = self._session.run(executor, batch)
            if result.norm is not None:
                self.gradient_norm = result.norm.item()
            return result

    def executor_for(self, batch: Any) -> Executor:
        """Who runs the next batch, of this shape; a new shape is captured and planned first."""
        self._planned.notice_changes()
        executor = self._planned.executor(batch)
        if self._rule.keeps_gradients:
            gathering = self._planned.executor(batch, self._gathering)
            if self._session.counts.gathered + 1 < self._rule.accumulate:
                return gathering
        return executor

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Give up the gradients that are gathered for the next update, as a loop of one's own does.

        After an update nothing is gathered, and there is nothing to do: a loop may say so all the
        same.
        """
        with self._planned.alone() as session:
            saving.drop_gathered(session)

    # What it is, and what it took

    @property
    def _session(self) -> Session:
        return self._planned.session

    @property
    def program(self) -> Program:
        """The captured step of the example."""
        return self._session.program

    @property
    def plan(self) -> Plan:
        """The plan for the example's shape."""
        return self._session.plan

    @property
    def steps(self) -> int:
        """Steps made, one a batch, with those before a resume."""
        return self._session.steps

    @property
    def updates(self) -> int:
        """Updates made: with `accumulate` one in so many steps, without those that were skipped."""
        return self._session.counts.updates

    @property
    def budget_bytes(self) -> int | None:
        """The most RAM that a step may take."""
        return self._planned.budget_bytes

    @property
    def peak_bytes(self) -> int:
        """The most RAM that a step has taken, the store's buffers among it."""
        return self._session.peak_bytes

    @property
    def store_buffer_bytes(self) -> int:
        """What the store's buffers take of the budget."""
        return self._session.buffer_bytes

    @property
    def paged_bytes(self) -> int:
        """What was moved to and from the store so far."""
        return self._session.paged_bytes

    @property
    def is_paged(self) -> bool:
        """Whether parameters and state live in the store between steps."""
        return self._session.is_paged

    @property
    def last(self) -> Machine | None:
        """The machine that ran the last step."""
        return self._session.last

    @property
    def learning_rates(self) -> Rates:
        """One a parameter group; change them between steps as you like.

        With a torch optimizer they are its own, read from its parameter groups and set there.
        """
        return self.program.learning_rates

    @property
    def mean_watts(self) -> float:
        """What the plan takes on the average: where nothing counts, the best there is to know."""
        return (self.plan.joules or 0.0) / self.plan.seconds if self.plan.seconds else 0.0

    @property
    def removed_stale(self) -> tuple[Path, ...]:
        """Page files of processes that had died, removed when this trainer's was made."""
        return getattr(self._session.store, "removed_stale", ())

    # What lasts

    def unpaged(self) -> contextlib.AbstractContextManager[nn.Module]:
        """The model with its parameters in RAM, to evaluate or save; it may pass the budget."""
        with self._planned.alone() as session:
            return session.unpaged()

    def state_dict(self) -> dict[str, Any]:
        """The model's state dict, the optimizer's state by parameter, and the steps made."""
        with self._planned.alone() as session:
            return saving.state_dict(session)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state dict of a trainer of the same model and optimizer."""
        with self._planned.alone() as session:
            saving.load_state_dict(session, state)

    def save(self, path: str | Path | Generations, origin: Origin | None = None) -> Path:
        """Write a checkpoint, whole or not at all: a `.safetensors` file, or into a folder."""
        where = path if isinstance(path, Generations) else Path(path)
        with self._planned.alone() as session:
            return saving.save(session, where, origin, self._folders)

    def save_weights(self, path: str | Path) -> None:
        """The model's state dict as a plain safetensors file, for anybody's `load_file`."""
        with self._planned.alone() as session:
            saving.save_weights(session, Path(path))

    def load(self, path: str | Path | Found) -> Checkpoint:
        """Go on from a checkpoint: the newest in a folder that is not damaged, or one file."""
        with self._planned.alone() as session:
            found = saving.load(session, path if isinstance(path, Found) else Path(path))
        self._folders.add(found.path.parent.resolve())
        return found.about

    def check_fits(self, found: Found) -> None:
        """Refuse a checkpoint of another model or optimizer."""
        saving.check_fits(self._session, found)

    def close(self, bring_back: bool = True) -> None:
        """Bring parameters back into RAM, unless a step failed, and remove the page file."""
        for guard in self._guards:
            guard.remove()
        self._planned.close(bring_back)

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
