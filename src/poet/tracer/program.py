"""Program: a captured step, joined with the user's model.

A `Layout` says which tensor of the graph is which parameter, buffer, input or state; `Program`
brings the model's own tensors there and back. It can run a step by itself (`interpreter`); the
runtime that trains for real is its own room.

A program changes the model it was captured from, as a training step does: parameters are updated
in place, buffers get their new values at the end, and gradients come back by name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from poet.errors import PoetError
from poet.rewrites.granularity import Granularity
from poet.tracer.batches import checked_batch, laid_out, tensor_from
from poet.tracer.gathered import Counts, Rates, Scaler, ScalerState, Training, fresh_state
from poet.tracer.interpreter import Interpreter
from poet.tracer.layout import Layout
from poet.tracer.mismatch import likely_cause
from poet.tracer.outputs import Outputs, Returned
from poet.tracer.owned import Owned
from poet.tracer.step import Step
from poet.values.plan import Plan
from poet.values.schedule import Schedule


class Result(NamedTuple):
    """What one step gives: the loss, and the gradients where no optimizer used them up."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    norm: torch.Tensor | None = None
    """That of all gradients, before they were clipped by it."""
    was_skipped: bool = False
    """Whether a scaled gradient was not finite, so that nothing was updated."""


class Lasting(NamedTuple):
    """What tells tensors apart that last from step to step."""

    name: str
    nbytes: int


class Program:
    """A captured training step of one model."""

    def __init__(
        self,
        traced: Layout,
        step: Step,
        learning_rates: Sequence[float] = (),
        *,
        granularity: Granularity = "planning",
        fuse_updates: bool = False,
    ) -> None:
        self.traced = traced
        self.granularity, self.has_fused_updates = granularity, fuse_updates
        self.layout = layout = traced.rewritten(granularity, fuse_updates)
        self.graph = layout.graph
        self._interpreter = Interpreter(self.graph)
        self.model: nn.Module = step.model
        self.example = step.example
        self._step = step
        self._aside: dict[int, torch.Tensor] | None = None
        self._owned = Owned(step)
        parameters = self._owned.parameters()
        state = {
            name: {
                kept: fresh_state(
                    parameters[name], self.graph.tensors[i], layout.first_values[name][kept]
                )
                for kept, i in held.items()
            }
            for name, held in layout.state.items()
        }
        self._trained = {name: parameters[name] for name in (*layout.member, *layout.gradients)}
        # As they are before any is set aside, which hides their strides.
        self._laid_out = {name: (each.shape, each.stride()) for name, each in self._trained.items()}
        self._training = Training(learning_rates, state, self._trained, layout.first_values)

    @property
    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """The optimizer's, by parameter."""
        return self._training.state

    @property
    def learning_rates(self) -> Rates:
        """One a parameter group; change them between steps as you like."""
        return self._training.rates

    @property
    def counts(self) -> Counts:
        """What this training has done, whichever program did it."""
        return self._training.counts

    @counts.setter
    def counts(self, counts: Counts) -> None:
        self._training.counts = counts

    @property
    def steps_done(self) -> int:
        """Updates of this training."""
        return self.counts.updates

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the state a torch optimizer has gathered, and from now on its learning rates."""
        self._training.follow(optimizer)

    @property
    def live_options(self) -> tuple[dict[str, float], ...]:
        """Momentum and betas of a torch optimizer's groups, where they are inputs of the step."""
        return self._training.options(self.layout)

    @live_options.setter
    def live_options(self, options: Sequence[Mapping[str, float]]) -> None:
        self._training.set_options(self.layout, options)

    def scale_by(self, scaler: Scaler | None) -> None:
        """Multiply the loss by the scale that this has at each step."""
        self._training.scaler = scaler

    @property
    def scaler_state(self) -> ScalerState | None:
        """What the scaler would go on from; None where there is none."""
        scaler = self._training.scaler
        return None if scaler is None else scaler.state()

    def load_scaler(self, state: ScalerState | None) -> None:
        """Let the scaler go on from there."""
        if state is not None and self._training.scaler is not None:
            self._training.scaler.load(state)

    def share_state(self, other: "Program") -> None:
        """Be part of another program's training: the same model, for another batch shape or
        changed."""
        self._training = self._training.join(other._training)
        if not self.has_fused_updates and "fused" in self.__dict__:
            self.fused._training = other._training
            if "in_pieces" in self.__dict__:
                self.in_pieces._training = other._training

    @property
    def lasting(self) -> dict["Lasting", int]:
        """The tensors that the step keeps for the next: parameters, buffers, optimizer state."""
        layout, tensors = self.layout, self.graph.tensors
        named = {**layout.parameters, **layout.buffers}
        named |= {f"{n}/{kept}": i for n, held in layout.state.items() for kept, i in held.items()}
        return {Lasting(name, tensors[i].nbytes): i for name, i in named.items()}

    @cached_property
    def fused(self) -> "Program":
        """The same step of the same training, weight gradients and updates in one op where they can
        be."""
        if self.has_fused_updates:
            return self
        made = copy(self)
        made.layout = self.traced.rewritten(self.granularity, fuse_updates=True)
        made.graph, made.has_fused_updates = made.layout.graph, True
        made._interpreter = Interpreter(made.graph)
        return made

    @cached_property
    def in_pieces(self) -> "Program":
        """The same with an op for each kernel, so that each can run piece by piece."""
        if self.granularity == "op":
            return self.fused
        made = copy(self.fused)
        made.layout = self.traced.rewritten("op", fuse_updates=True)
        made.graph = made.layout.graph
        made._interpreter = Interpreter(made.graph)
        return made

    def for_plan(self, plan: Plan) -> "Program":
        """This step as the plan has it, its updates fused or apart; else an error says why not."""
        if plan.graph.fingerprint == self.fingerprint:
            return self
        if plan.graph.fingerprint == self.fused.fingerprint:
            return self.fused
        if plan.graph.fingerprint == self.in_pieces.fingerprint:
            return self.in_pieces
        raise PoetError(
            f"the plan is for the graph {plan.graph.name!r} with fingerprint "
            f"{plan.graph.fingerprint}; this program is {self.graph.name!r} with fingerprint "
            f"{self.fingerprint}. {likely_cause(plan.graph, self.graph)}"
        )

    @property
    def fingerprint(self) -> str:
        """The graph's: it ties plans and profiles to this program."""
        return self.graph.fingerprint

    def __repr__(self) -> str:
        ops, tensors = len(self.graph.ops), len(self.graph.tensors)
        return f"<Program {self.graph.name}: {ops} ops, {tensors} tensors, {self.fingerprint[:8]}>"

    def run(
        self,
        batch: Any = None,
        plan: Plan | None = None,
        schedule: Schedule | None = None,
        in_store: Iterable[int] = (),
    ) -> Result:
        """One training step on a batch of the example's shapes, by default the example itself.

        It follows a plan, or a bare schedule with the tensors that start `in_store`; without either
        it runs every op once in order. The model and the optimizer state are changed.
        """
        if plan is not None:
            if not plan.schedule:
                raise PoetError(f"the plan has no schedule: it is {plan.status}. {plan.reason}")
            stored = [i for i, place in plan.budget.start.items() if place == "store"]
            return self.for_plan(plan).run(batch, schedule=plan.schedule, in_store=stored)
        given = self.given(batch)
        with torch.autocast(self.model_device.type, enabled=False):
            return self._interpreter.run(given, schedule, in_store, self.finish)

    def takes(self, batch: Any) -> bool:
        """Whether the step does the same for the values of this batch as for the example's."""
        return self._step.asked is None or self._step.asked.holds(
            self._step.taken_apart(batch).tensors
        )

    @property
    def model_device(self) -> torch.device:
        """Where the model is."""
        step = self._step
        owned = chain(step.parameters(), step.buffers(), self.example.tensors)
        return next(owned).device

    def given(
        self, batch: Any, homes: dict[int, torch.Tensor] | None = None
    ) -> dict[int, torch.Tensor]:
        """The tensors that exist when a step on this batch starts, by id."""
        layout = self.layout
        example = self.example
        taken = example if batch is None else self._step.taken_apart(batch)
        tensors = checked_batch(taken, example, layout, self.graph)
        if self._step.asked is not None:
            self._step.asked.check(tensors)
        self._training.begin_step(self._trained, layout.step_count is not None)
        ram = {
            i: laid_out(tensors[place].detach(), self.graph.tensors[i])
            for place, i in layout.inputs.items()
        }
        homes = self.homes() if homes is None else homes
        ram |= homes
        ram |= self.constants()
        ram |= self._training.numbers(layout)
        return ram

    def constants(self) -> dict[int, torch.Tensor]:
        """Tensors that the step reads though no module owns them, by id."""
        return {
            i: tensor_from(content, self.graph.tensors[i])
            for i, content in self.layout.constants.items()
        }

    def homes(self) -> dict[int, torch.Tensor]:
        """Where the lasting tensors live, by the id they have when a step starts."""
        layout = self.layout
        if self._aside is not None:
            return self._aside
        parameters, buffers = self._owned.parameters(), self._owned.buffers()
        return {
            **{i: parameters[name].detach() for name, i in layout.parameters.items()},
            **{i: buffers[name].detach() for name, i in layout.buffers.items()},
            **{
                i: self.state[name][kept]
                for name, held in layout.state.items()
                for kept, i in held.items()
            },
        }

    def set_aside(self) -> None:
        """Take parameters, buffers and state out of the model, which shows NaN in their place.

        Their storages may then be emptied without anybody reading beyond them.
        """
        homes = self.homes()
        self._aside = {i: tensor.detach() for i, tensor in homes.items()}
        for tensor in self._shown():
            blank = torch.zeros((), dtype=tensor.dtype, device=tensor.device)
            if tensor.is_floating_point() or tensor.is_complex():
                blank.fill_(float("nan"))
            tensor.data = blank.expand(tensor.shape)

    def lend(self, other: "Program") -> None:
        """Let a program of the same model for another batch shape use what is set aside here."""
        if self._aside is None or other is self:
            other._aside = self._aside
            return
        mine, theirs = self.layout, other.layout
        same = [
            *((mine.parameters[name], i) for name, i in theirs.parameters.items()),
            *((mine.buffers[name], i) for name, i in theirs.buffers.items()),
            *(
                (mine.state[name][kept], i)
                for name, held in theirs.state.items()
                for kept, i in held.items()
            ),
        ]
        other._aside = {i: self._aside[j] for j, i in same}

    def put_back(self) -> None:
        """The other way round."""
        assert self._aside is not None
        for tensor, home in zip(self._shown(), self._aside.values(), strict=True):
            tensor.data = home
        self._aside = None

    def _shown(self) -> list[torch.Tensor]:
        """The model's own tensors, in the order of `homes`."""
        layout, parameters, buffers = self.layout, self._owned.parameters(), self._owned.buffers()
        return [
            *(parameters[name] for name in layout.parameters),
            *(buffers[name] for name in layout.buffers),
            *(self.state[name][kept] for name, held in layout.state.items() for kept in held),
        ]

    def finish(self, found: Callable[[int], torch.Tensor | None]) -> Result:
        """Hand over what a step made: parameters, state and buffers to where they live.

        `found` gives a tensor by id, or None for one that is where it belongs.
        """
        self._hand_over(found)
        layout = self.layout
        told = {i: found(i) for i in (layout.norm, layout.skip) if i is not None}
        skipped = bool(told.get(layout.skip)) if layout.skip is not None else False
        self._training.done(layout.rule.gathers, skipped)
        loss = found(layout.loss)
        assert loss is not None
        norm = None if layout.norm is None else told[layout.norm]
        return Result(loss, self.gradients(found), norm, skipped)

    def gradients(self, found: Callable[[int], torch.Tensor | None]) -> dict[str, torch.Tensor]:
        """The gradients that the step gives out, by parameter."""
        gradients: dict[str, torch.Tensor] = {}
        for name, i in self.layout.gradients.items():
            made, (shape, strides) = found(i), self._laid_out[name]
            assert made is not None
            if made.shape != shape or made.stride() != strides:
                made = made.as_strided(shape, strides)
            gradients[name] = made
        return gradients

    def _hand_over(self, found: Callable[[int], torch.Tensor | None]) -> None:
        """Bring new values of parameters, state and buffers to where they live."""
        heirs = self.graph.heir
        with torch.no_grad():
            for old, home in self.homes().items():
                new = found(heirs[old]) if old in heirs else None
                if new is not None and new.data_ptr() != home.data_ptr():
                    if not home.untyped_storage().nbytes():  # emptied when the step freed it
                        home.untyped_storage().resize_(self.graph.tensors[old].nbytes)
                    home.copy_(new)

    @property
    def trained_parameters(self) -> dict[str, torch.Tensor]:
        """Those that require a gradient now, each once, by the name the program knows them by."""
        first: dict[int, tuple[str, torch.Tensor]] = {}
        for name, value in self._owned.parameters().items():
            if value.requires_grad:
                first.setdefault(id(value), (name, value))
        return dict(first.values())

    @cached_property
    def adds_up_otherwise(self) -> str | None:
        """Why gradients of several passes may be added in another order than eager's, if so."""
        layout, graph = self.layout, self.graph
        if self._step.autocast is not None:
            return "autocast casts weights once for all calls in its block"
        inputs = {f"input {n}": each.tensor for n, each in layout.input_gradients.items()}
        for name, i in {**layout.gradients, **inputs}.items():
            k = graph.producer[i]
            calls = () if k is None else graph.ops[k].calls
            made = (each for each in calls if {"tensor": i} in each.results)
            if any(each.kind.startswith("aten.add.") for each in made):
                return f"{name} is used more than once in the model"
        return None

    @property
    def returned(self) -> Returned:
        """What the model returns, where the step ends there."""
        assert isinstance(self._step, Outputs)
        return self._step.returned
